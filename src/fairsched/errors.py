"""The exceptions of fairsched: a base class, and a subclass for each error that is useful to catch separately."""

from __future__ import annotations

import queue
import sys
from typing import Any

#: Longest time for which a tenant is throttled, in seconds.
LONGEST_THROTTLE = 86_400


class FairschedError(Exception):
    """Base class of the exceptions that fairsched defines."""


# Code that catches the queue.ShutDown of Python 3.13 also catches this exception.
if sys.version_info >= (3, 13):
    _ShutDown = queue.ShutDown
else:
    _ShutDown = Exception


class ShutDown(FairschedError, _ShutDown):
    """The queue was shut down or closed: it accepts no more items, or is empty."""


class ExclusiveSubscription(FairschedError):
    """A PullQueue with an exclusive subscription has no other ones; the message says which are in the way."""


class ConfigurationError(FairschedError, ValueError):
    """A setting has an invalid value; the message names the value, its source and the rule."""


class DecodingError(FairschedError, ValueError):
    """A message's properties or headers cannot be decoded; its body and the other properties are available."""


class UndecodableBody(DecodingError):
    """The body of a message cannot be decoded by the consumer's ``decode``.

    Attributes
    ----------
    message : Message or None
        The message; None in a copy of the error, also in one that was pickled: a message belongs to its channel.
    reason : str
        The kind of error; never contains any of the body.
    """

    def __init__(self, message: Any, reason: str) -> None:
        super().__init__(
            f"the body of message {message.delivery_tag} of queue {message.queue!r} cannot be decoded: {reason}"
        )
        self.message = message
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_init, (type(self), *self.args), {**self.__dict__, "message": None}


def _without_init(kind: type[UndecodableBody], *args: Any) -> UndecodableBody:
    """Create an error from its text; its `__init__` would need the message."""
    return kind.__new__(kind, *args)


class TimeLimitExceeded(BaseException):
    """Raised in a plain handler that has exceeded its time limit; its message then fails with a TimeoutError.

    Not a subclass of `Exception`, so that an ``except Exception`` in the handler does not catch it.
    """


class Throttled(FairschedError):
    """Raised by a handler that was told to slow down, as by an answer 429 with Retry-After.

    The message returns to its queue, and counts as neither failed nor retried. Its tenant (without `key`: its queue)
    takes no turns for so long; all others go on. With ``share_group``, that holds in all processes of the
    group, within a second.

    Parameters
    ----------
    seconds : float
        At least 0, at most 86 400: a day.

    Raises
    ------
    ConfigurationError
        If `seconds` is anything else.

    Notes
    -----
    Messages of the tenant that are in hand already go on. A message of a stream cannot return to it, so it is settled
    as for any other exception. Quorum queues before RabbitMQ 4.3 count every return towards their delivery limit.

    Examples
    --------
    >>> Throttled(30).seconds
    30.0
    """

    def __init__(self, seconds: float) -> None:
        real = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (real and 0 <= seconds <= LONGEST_THROTTLE):
            raise ConfigurationError(
                f"seconds of Throttled must be a number from 0 to {LONGEST_THROTTLE}, got {seconds!r}"
            )
        super().__init__(seconds)
        #: The seconds.
        self.seconds = float(seconds)

    def __str__(self) -> str:
        return f"no turns for {self.seconds:g} s"


class ConnectionFailed(FairschedError):
    """No broker was reachable, or it refused the connection; the message names host and port, never a password."""


class RequestRefused(ConnectionFailed):
    """The broker refused the login or a request, and will again: no permission, a queue that another connection has
    declared for itself, arguments that do not fit.
    """


class QueueNotFound(RequestRefused):
    """A queue to consume does not exist."""


class PublishFailed(FairschedError):
    """A message was refused, returned, or not confirmed in time; the error message says which, and why."""


class MessageReturned(PublishFailed):
    """A mandatory message could not be routed to a queue, so the broker returned it.

    Attributes
    ----------
    reply_code : int
        The broker's reply code, 312 for an unroutable message.
    reply_text : str
        The broker's reply text.
    exchange, routing_key : str
        The exchange and routing key it was published with.
    """

    def __init__(self, reply_code: int, reply_text: str, exchange: str, routing_key: str, message_id: object) -> None:
        super().__init__(reply_code, reply_text, exchange, routing_key, message_id)  # all of them, to be pickled
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self._message_id = message_id

    def __str__(self) -> str:
        return (
            f"no queue takes a message with routing key {self.routing_key!r} on exchange {self.exchange!r} "
            f"({self.reply_code} {self.reply_text}, message_id {self._message_id!r}); declare and bind a queue, or "
            "publish with mandatory=False"
        )
