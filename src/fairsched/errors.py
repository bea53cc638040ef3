"""The exceptions of fairsched: one base, and a subclass where it is useful to catch it separately."""

from __future__ import annotations

import queue
import sys
from typing import Any


class FairschedError(Exception):
    """Base of every error that fairsched itself defines."""


# Code written for the ShutDown of Python 3.13's queues also catches this one.
if sys.version_info >= (3, 13):
    _ShutDown = queue.ShutDown
else:
    _ShutDown = Exception


class ShutDown(FairschedError, _ShutDown):
    """The queue was shut down or closed: it accepts no more items, or has none left."""


class ExistingExclusiveConsumer(FairschedError):
    """The PullQueue has an exclusive subscription, so no other can be added."""


class ExistingConsumerPreventsExclusive(FairschedError):
    """The subscription cannot be exclusive because the PullQueue has others."""


class ConfigurationError(FairschedError, ValueError):
    """A setting has a value that is not allowed; the message names the value, its source and the rule."""


class DecodingError(FairschedError, ValueError):
    """A message's properties or headers cannot be decoded; its body and the other properties are available."""


class UndecodableBody(DecodingError):
    """The body of a message cannot be decoded as the consumer's ``decode`` says.

    Attributes
    ----------
    message : Message
        Whose body it is.
    reason : str
        The kind of error; never what the body contains.
    """

    def __init__(self, message: Any, reason: str) -> None:
        super().__init__(
            f"the body of message {message.delivery_tag} of queue {message.queue!r} cannot be decoded: {reason}"
        )
        self.message = message
        self.reason = reason


class TimeLimitExceeded(BaseException):
    """Raised in a plain handler that has run for its time limit; the failure of its message is a TimeoutError.

    Not an `Exception`, so that handlers do not take it for one of their own.
    """


class ConnectionFailed(FairschedError):
    """No broker was reached, or it refused the connection; the message names host and port, never a password."""


class QueueNotFound(ConnectionFailed):
    """A queue to consume does not exist."""


class PublishFailed(FairschedError):
    """A message was not published: refused, returned, or not confirmed in time; the message says which and why."""


class MessageReturned(PublishFailed):
    """No queue takes a mandatory message, so the broker returned it.

    Attributes
    ----------
    reply_code : int
        The broker's, 312 for a message without a route.
    reply_text : str
        The broker's.
    exchange, routing_key : str
        Where it was published to.
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
            f"({self.reply_code} {self.reply_text}, message_id {self._message_id!r}); declare and bind one, or publish "
            "with mandatory=False"
        )
