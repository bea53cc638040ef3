"""Declaring the ladder and its outlets, on a connection of its own for a few requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pika.exceptions

from fairsched.amqp.errors import broker_text
from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed, PublishFailed
from fairsched.publisher.ladder import (
    DELIVERY,
    LEVELS,
    Target,
    level_arguments,
    level_binding,
    level_name,
    next_exchange,
    outlet_arguments,
    outlet_binding,
)  # fmt: skip

#: Seconds after which an outlet is declared again before a message goes to it: it may have been deleted.
LEASE = 300.0
#: Most requests that are sent before their answers are read.
_TOGETHER = 64
#: What helps against replies of the broker.
_ADVICE = {
    403: "grant this user the permissions to configure, write and read '(celery_delayed_|later:).*', and to write to "
    "the exchange of the message, which is 'amq.default' for the default exchange",
    404: "declare it, or publish with mandatory=False",
    406: "it exists with other arguments: delete it",
}

#: The broker's replies if the user lacks a permission, and if something exists with other arguments.
_NOT_PERMITTED, _DIFFERS = 403, 406

#: A request that takes `callback` for its answer.
_Request = Callable[..., Any]


class LadderBuilder:
    """Declares the ladder once per connection of a publisher, and each outlet once in five minutes.

    Parameters
    ----------
    url : callable
        Returns the URL of the publisher's current connection.
    timeout : float
        Longest time to connect, and for each answer, in seconds.

    Notes
    -----
    Safe from any thread: one declares, the others wait for it. The lock is re-entrant, since the handler of a signal
    may publish in the thread that declares. Declarations are idempotent, and begin with what is last on the way of a
    message, so a message never comes to a part of the ladder from which it cannot go on.

    If the ladder exists with classic queues, as Celery can declare it, it stays as it is.
    """

    def __init__(self, url: Callable[[], str], timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        #: Number of calls of `forget`; it was this when the ladder was declared last.
        self._forgotten = 0
        self._built = -1
        #: The same for each outlet, and until when it need not be declared again.
        self._outlets: dict[Target, tuple[int, float]] = {}
        self._lock = threading.RLock()

    def is_ready(self, target: Target) -> bool:
        """Return whether messages for a target can be published, as far as is known."""
        declared = self._outlets.get(target)
        return declared is not None and declared[0] == self._forgotten and time.monotonic() < declared[1]

    def forget(self) -> None:
        """Declare everything again: the connection is another one, or a part of the ladder is missing.

        Only the I/O thread calls it. What another thread is declaring meanwhile counts as declared before.
        """
        self._forgotten += 1

    def prepare(self, target: Target, mandatory: bool, arguments: dict[str, Any] | None) -> None:
        """Declare what a message for a target needs.

        Parameters
        ----------
        target : Target
            The destination.
        mandatory : bool
            Whether the exchange, or the queue if it is the default exchange, must exist.
        arguments : dict, optional
            Those with which the queue is declared, durable, instead.

        Raises
        ------
        PublishFailed
            There is no connection, or the broker refused a declaration; the message names it and what helps.
        """
        with self._lock:
            if self.is_ready(target):
                return
            before = self._forgotten
            session = Session(self._url(), timeout=self._timeout)
            try:
                session.open()
                _Building(session).build(target, mandatory, arguments, ladder=self._built != before)
            except ConnectionFailed as error:
                raise PublishFailed(f"the message was not published, since it could not be delayed: {error}") from error
            finally:
                session.close()
            self._built = before
            self._outlets[target] = before, time.monotonic() + LEASE


class _Building:
    """The requests of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel = session.channel()
        #: The type of the queues of levels, as far as is known.
        self._type = "quorum"

    def build(self, target: Target, mandatory: bool, arguments: dict[str, Any] | None, *, ladder: bool) -> None:
        """Declare the target's queue, the ladder if it is wanted, and the outlet."""
        if arguments is not None:
            self._ask([self._queue(target.routing_key, arguments)], f"queue {target.routing_key!r}")
        elif mandatory:
            self._check(target)
        if ladder:
            self._build_ladder()
        name = target.outlet
        self._ask([self._queue(name, outlet_arguments(target))], f"queue {name!r}")
        self._ask(
            [partial(self._channel.queue_bind, name, DELIVERY, outlet_binding(target))],
            f"the binding of queue {name!r} to exchange {DELIVERY!r}",
        )

    def _check(self, target: Target) -> None:
        """Raise PublishFailed if what a mandatory message is for does not exist.

        RabbitMQ 4.3 refuses to answer users who have no permission for it; they can publish to it nevertheless.
        """
        channel, (exchange, key) = self._channel, target
        try:
            if exchange:
                self._ask([partial(channel.exchange_declare, exchange, passive=True)], f"exchange {exchange!r}")
            else:
                self._ask([partial(channel.queue_declare, key, passive=True)], f"queue {key!r}")
        except PublishFailed as error:
            if _reply_code(error) != _NOT_PERMITTED:
                raise

    def _build_ladder(self) -> None:
        channel = self._channel
        names = [DELIVERY, *map(level_name, range(LEVELS))]
        self._ask(
            [partial(channel.exchange_declare, name, "topic", durable=True) for name in names],
            f"the exchanges {level_name(0)!r} to {level_name(LEVELS - 1)!r} and {DELIVERY!r}, topic and durable",
        )
        for level in range(LEVELS):
            self._declare_level(level)
        channel = self._channel
        bindings: list[_Request] = []
        for level, name in enumerate(names[1:]):
            bindings.append(partial(channel.exchange_bind, next_exchange(level), name, level_binding(level, 0)))
            bindings.append(partial(channel.queue_bind, name, name, level_binding(level, 1)))
        self._ask(bindings, f"the bindings of {level_name(0)!r} to {level_name(LEVELS - 1)!r}")

    def _declare_level(self, level: int) -> None:
        """Declare a level's queue, of the type that the other levels have."""
        name = level_name(level)
        try:
            self._ask([self._queue(name, level_arguments(level, self._type))], f"queue {name!r}")
        except PublishFailed as error:
            if _reply_code(error) != _DIFFERS:
                raise
        else:
            return
        self._type = "classic" if self._type == "quorum" else "quorum"
        self._ask([self._queue(name, level_arguments(level, self._type))], f"queue {name!r}")

    def _queue(self, name: str, arguments: dict[str, Any]) -> _Request:
        return partial(self._channel.queue_declare, name, durable=True, arguments=arguments)

    def _ask(self, requests: Sequence[_Request], what: str) -> None:
        """Make requests; PublishFailed if the broker closes the channel, and then another one is open."""
        try:
            for start in range(0, len(requests), _TOGETHER):
                self._session.call(requests[start : start + _TOGETHER], what)
        except ConnectionFailed:
            reason = self._session.error
            if not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
                raise
            self._session.recover()
            self._channel = self._session.channel()
            raise _refused(reason, what) from reason


def _reply_code(error: PublishFailed) -> int | None:
    """Return the code with which the broker closed the channel; None: that is not the reason."""
    reason = error.__cause__
    return reason.reply_code if isinstance(reason, pika.exceptions.ChannelClosedByBroker) else None


def _refused(reason: pika.exceptions.ChannelClosedByBroker, what: str) -> PublishFailed:
    advice = _ADVICE.get(reason.reply_code, "see the log of the broker")
    return PublishFailed(
        f"the message was not published, since it could not be delayed: the broker refused {what}: "
        f"{reason.reply_code} {broker_text(reason.reply_text)}; {advice}"
    )
