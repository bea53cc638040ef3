"""Whether a queue is a stream, from which nothing can be moved: it keeps its messages."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from fairsched.errors import QueueNotFound, RequestRefused

if TYPE_CHECKING:
    from fairsched.amqp.session import Session

#: What a broker says of the first argument in which a queue differs from a declaration.
_DIFFERS = re.compile(r"inequivalent arg '(?P<name>[^']+)'(?:.*current is the value '(?P<value>[^']*)')?", re.DOTALL)
#: Arguments that only streams have.
_OF_STREAMS = re.compile(r"x-max-age|x-initial-cluster-size|x-stream-.*")
#: Arguments that streams and other queues have: their values are needed to be told the type.
_SHARED = ("x-max-length-bytes", "x-queue-leader-locator")


def is_stream(session: Session, queue: str) -> bool:
    """Return whether a queue is a stream.

    AMQP does not tell the type of a queue. But a declaration as a stream changes nothing if the queue exists, and the
    answer says in which argument the two differ, if they do.

    Parameters
    ----------
    session : Session
        Open; it is usable afterwards.
    queue : str
        The queue.

    Returns
    -------
    bool
        False, too, if the queue does not exist, or the user may not declare it.

    Raises
    ------
    ConnectionFailed
        If the connection is lost.
    """
    arguments: dict[str, str | int] = {"x-queue-type": "stream"}
    try:
        session.call([partial(session.channel().queue_declare, queue, passive=True)], "queue.declare")
    except (QueueNotFound, RequestRefused):  # what follows would declare it
        session.recover()
        return False
    for _attempt in range(len(_SHARED) + 1):
        declare = partial(session.channel().queue_declare, queue, durable=True, arguments=arguments)
        try:
            session.call([declare], "queue.declare")
        except RequestRefused as error:
            session.recover()
            found = _DIFFERS.search(str(error))
            if found is None or found["name"] not in _SHARED or found["value"] is None:
                return found is not None and _OF_STREAMS.fullmatch(found["name"]) is not None
            value = found["value"]
            arguments[found["name"]] = int(value) if value.isdecimal() else value
        else:
            return True
    return False
