"""Calls: requests that wait for their replies."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched._core import checked_timeout
from fairsched.errors import ConnectionFailed, DecodingError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: The pseudo-queue of direct reply-to: the address that a request names, and the queue that its channel consumes.
DIRECT_REPLY = "amq.rabbitmq.reply-to"
#: Properties that a call sets itself.
_OWN = ("correlation_id", "reply_to")


class Call:
    """A request that waits for its reply.

    Parameters
    ----------
    correlation_id : str
        Identifies the reply.
    routing_key : str
        The routing key of the request, for errors.
    timeout : float or None
        Longest wait in seconds; None: unlimited.
    wake : callable
        Called from any thread when the call has ended.
    settled : callable
        ``settled(call, confirmation)``: the broker has confirmed the request, or the request has failed.

    Attributes
    ----------
    reply : Message or None
        The reply, if there is one.
    problem : Exception or None
        Why there will be none.
    confirmed : bool
        Whether the broker has confirmed the request.

    Notes
    -----
    The thread or task that makes the call owns it; the one that takes it out of `Calls` ends it, once.
    """

    __slots__ = (
        "_deadline", "_settled", "_wake", "confirmed", "correlation_id", "problem", "reply", "routing_key", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        correlation_id: str,
        routing_key: str,
        timeout: float | None,
        wake: Callable[[], object],
        settled: Callable[[Call, Any], object],
    ) -> None:
        self.correlation_id = correlation_id
        self.routing_key = routing_key
        self.timeout: float = checked_timeout(timeout)
        self.reply: Message | None = None
        self.problem: Exception | None = None
        self.confirmed = False
        self._deadline = time.monotonic() + self.timeout
        self._wake = wake
        self._settled = settled

    def __call__(self, confirmation: Any) -> None:
        """Note the end of the request: a call is the done callback of its request, and identifies it so."""
        self._settled(self, confirmation)

    def left(self) -> float | None:
        """Return the remaining seconds, at least 0; None: unlimited."""
        left = self._deadline - time.monotonic()
        return None if left > threading.TIMEOUT_MAX else max(0.0, left)

    def late(self, state: str) -> TimeoutError:
        """Return the error for a call whose time is over."""
        return TimeoutError(
            f"no reply to the call with routing key {self.routing_key!r} within {self.timeout:g} s: {state}"
        )

    def end(self, reply: Message | None, problem: Exception | None) -> None:
        """Set the result, and wake the caller."""
        self.reply, self.problem = reply, problem
        self._wake()


class Calls:
    """The calls of one publisher that wait for their replies.

    Attributes
    ----------
    begun : bool
        Whether there ever was a call; the I/O thread then consumes replies before it sends a message.
    refusal : ConnectionFailed or None
        Why the broker of the present connection gives no replies.

    Notes
    -----
    Thread-safe: a call ends when it is taken out of a dict, which one thread does. O(1) per call; `lost` is O(calls).
    No request has the correlation id of another one, in any process, since servers may recognize duplicates by it.
    """

    def __init__(self) -> None:
        self.begun = False
        self.refusal: ConnectionFailed | None = None
        self._waiting: dict[str, Call] = {}
        self._prefix = f"{secrets.token_hex(8)}-"
        self._numbers = itertools.count(1)

    def create(self, routing_key: str, timeout: float | None, wake: Callable[[], object]) -> Call:
        """Return a call that does not wait for its reply yet."""
        return Call(f"{self._prefix}{next(self._numbers)}", routing_key, timeout, wake, self._on_settled)

    def add(self, call: Call) -> None:
        """Have a call wait for its reply; to be called before its request is published."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        self._waiting[call.correlation_id] = call
        self.begun = True

    def find(self, correlation_id: object) -> Call | None:
        """Return the waiting call that has a correlation id."""
        return self._waiting.get(correlation_id)  # type: ignore[call-overload,no-any-return]

    def is_own(self, correlation_id: object) -> bool:
        """Return whether a correlation id is that of a call, waiting or not."""
        return isinstance(correlation_id, str) and correlation_id.startswith(self._prefix)

    def forget(self, call: Call) -> None:
        """Let a call wait no more; its reply will be dropped."""
        self._waiting.pop(call.correlation_id, None)

    def _on_settled(self, call: Call, confirmation: Any) -> None:
        """Note that the broker has confirmed a request, or end the call because the request has failed."""
        # Reading the failure keeps `flush` from raising it again.
        problem = confirmation.exception()
        if problem is None:
            call.confirmed = True
        elif self._waiting.pop(call.correlation_id, None) is not None:
            call.end(None, problem)

    def on_reply(self, reply: Message) -> None:
        """End the call that a reply belongs to."""
        try:
            correlation_id = reply.properties.correlation_id
        except DecodingError as error:
            _log.debug("a reply was dropped: %s", error)
            return
        call = self._waiting.pop(correlation_id, None)
        if call is None:
            _log.debug("a reply was dropped: no call waits for the correlation id %r any more", correlation_id)
        else:
            call.end(reply, None)

    def lost(self, why: str, unconfirmed: bool = False) -> None:
        """End the calls whose replies cannot arrive any more.

        Parameters
        ----------
        why : str
            What happened to the channel that replies are addressed to.
        unconfirmed : bool
            Whether calls end whose requests are unconfirmed. Otherwise these are published again on another channel,
            and their replies are addressed to that one.
        """
        for call in self._waiting.copy().values():
            if (unconfirmed or call.confirmed) and self._waiting.pop(call.correlation_id, None) is not None:
                call.end(None, ConnectionFailed(f"no reply to the call with routing key {call.routing_key!r}: {why}"))


def request_properties(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a request.

    Raises
    ------
    ValueError
        If a property is given that the call sets itself.
    """
    for name in _OWN:
        if name in values:
            raise ValueError(f"{name} of a call is its own and cannot be given, got {values[name]!r}")
    return {**values, "reply_to": DIRECT_REPLY, "correlation_id": call.correlation_id}
