"""Numbers of messages and consumers of queues at the broker, asked for on demand, every 5 s at most."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched.amqp.side_connection import SideConnection
from fairsched.consumer.log_limit import LogLimit
from fairsched.errors import ConnectionFailed, FairschedError, RequestRefused

if TYPE_CHECKING:
    from pika.channel import Channel

    from fairsched.amqp.session import Session

_log = logging.getLogger(__name__)

#: Seconds for which an answer of the broker is used again.
FRESH = 5.0
#: Seconds for which it is used if the broker gives no other.
LONGEST_KEPT = 60.0
#: Queues that are asked about at a time, and how many times the timeout of one answer all of theirs may take.
_BATCH, _PATIENCE = 50, 2
#: Seconds after which the thread looks whether the consumer has ended.
_LOOK = 1.0


class Count(NamedTuple):
    """The answer to a passive declaration of a queue: its ready messages, and its consumers on all connections."""

    ready: int
    consumers: int


class QueueCounts(SideConnection):
    """Asks the broker for the counts of queues.

    Parameters
    ----------
    urls : sequence of str
        The brokers, which are tried in turn.

    Notes
    -----
    `get` is safe from any thread; the counts, their time, the error and what is wanted are under a lock. A connection
    of its own, since the answer that a queue is missing costs a channel, and a thousand answers take time, for which
    acknowledgements must not wait.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls, "fairsched-counts")
        self._changed = threading.Condition()
        self._counts: Mapping[str, Count] = {}
        self._counted_at: float | None = None
        self._wanted: tuple[str, ...] = ()
        self._error: BaseException | None = None
        self._log = LogLimit()

    def get(self, queues: Collection[str], timeout: float) -> tuple[Mapping[str, Count], float]:
        """Return the counts of queues, and the seconds since they were taken.

        Parameters
        ----------
        queues : collection of str
            The queues, at least one. The answer lacks those that do not exist, that the broker does not tell about, and
            that were not asked for when the broker was asked last.
        timeout : float
            Seconds to wait for the broker. Counts of the last minute are returned if it does not answer in time.

        Returns
        -------
        (mapping of str to Count, float)
            The counts, and their age.

        Raises
        ------
        ConnectionFailed
            If there are none of the last minute; the text has the reason, but no password.

        Notes
        -----
        One round trip for each queue, O(queues), while the counts are older than `FRESH`; O(1) otherwise.
        """
        with self._changed:
            began = time.monotonic()
            if not self._is_younger(FRESH, began):
                self._wanted = self._wanted or tuple(queues)
                self._wake()
                self._changed.wait_for(lambda: self._is_younger(FRESH, began), timeout)
            now = time.monotonic()
            if self._counted_at is None or not self._is_younger(LONGEST_KEPT, now):
                raise ConnectionFailed(
                    f"the broker has not counted the messages of queues: {self._error or 'no answer yet'}"
                )
            return self._counts, now - self._counted_at

    def _is_younger(self, seconds: float, now: float) -> bool:
        """Return whether the counts are younger than so many seconds. Called with the lock."""
        return self._counted_at is not None and now - self._counted_at < seconds

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()

    # The thread --------------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
        if not isinstance(error, FairschedError | KeyboardInterrupt):
            _log.error("counting the messages of queues failed", exc_info=error)
        if self._log.due("lost"):
            _log.warning("the messages of queues are not counted until the broker can be asked: %s", error)

    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Ask when it is wanted, until the connection is lost or this is ended."""
        working()
        channel: Channel | None = None
        while not self.over():
            session.serve_until(lambda: self._wanted or self.over(), _LOOK)
            if self._wanted:
                channel = self._ask(session, channel)

    def _ask(self, session: Session, channel: Channel | None) -> Channel | None:
        """Ask for the counts of all queues that are wanted; return the channel, if that is still open."""
        left, found = deque(self._wanted), dict[str, Count]()
        while left and not self.over():
            if channel is None:
                channel = session.channel()
            batch = [left.popleft() for _ in range(min(_BATCH, len(left)))]
            refused = self._ask_some(session, channel, batch, found)
            if refused:  # the first of them; the broker has closed the channel and answers no other
                channel = None
                left.extendleft(reversed(refused[1:]))
        with self._changed:
            self._counts, self._counted_at, self._wanted, self._error = found, time.monotonic(), (), None
            self._changed.notify_all()
        return channel

    def _ask_some(
        self, session: Session, channel: Channel, queues: Sequence[str], found: dict[str, Count]
    ) -> Sequence[str]:
        """Add the counts of queues; return those of which the first was refused, and none of the others answered."""
        answered = 0

        def note(queue: str, done: Callable[[Any], None], frame: Any) -> None:
            nonlocal answered
            answered += 1
            found[queue] = Count(frame.method.message_count, frame.method.consumer_count)
            done(frame)

        def question(queue: str, callback: Callable[[Any], None]) -> None:
            channel.queue_declare(queue, passive=True, callback=partial(note, queue, callback))

        try:
            session.call([partial(question, queue) for queue in queues], "queue.declare", patience=_PATIENCE)
        except RequestRefused:
            session.recover()
            return queues[answered:]
        return ()
