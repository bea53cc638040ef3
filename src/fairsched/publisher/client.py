"""Shared by the sync and asyncio publishers: options, start, messages, failures, close."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched._core import checked_timeout
from fairsched.amqp._publishing import PublishWindow
from fairsched.amqp.flag import Flag
from fairsched.amqp.urls import endpoint
from fairsched.errors import ConnectionFailed, PublishFailed
from fairsched.publisher.calls import DIRECT_REPLY, Call, request_properties
from fairsched.publisher.contents import Contents
from fairsched.publisher.io_thread import IOThread, PublisherEvents
from fairsched.publisher.ladder import Target, delayed_address, delayed_values, whole_delay
from fairsched.publisher.ladder_builder import LadderBuilder
from fairsched.publisher.options import PublisherOptions
from fairsched.publisher.spread import Spread

if TYPE_CHECKING:
    from datetime import datetime

    from pika.spec import BasicProperties
    from typing_extensions import Buffer

    from fairsched.delivery._delivery import Message

    #: Arguments of `PublishWindow.put`: exchange, routing key, encoded properties, body, mandatory, and the lanes and
    #: the tenant of a message in a lane.
    Outgoing = tuple[str, str, bytes, Buffer, bool, tuple[Spread, object] | None]

_log = logging.getLogger(__name__)

#: Error message in a child process.
_FORKED = (
    "this publisher was opened before a fork and belongs to the parent process, which runs its I/O thread. Create "
    "another publisher in the child process"
)
#: Seconds to wait for the broker to confirm a close.
_CLOSE_TIMEOUT = 5.0
#: Maximum wait in seconds for the own lane of a tenant that has become hot.
LANE_TIMEOUT = 2.0
#: Maximum wait in seconds for unconfirmed messages when an exception ends the `with` block.
_LEAVE_TIMEOUT = 5.0


class Delayed(NamedTuple):
    """A message that is to be delayed: its target, and its checked properties."""

    target: Target
    mandatory: bool
    #: The queue to declare, if it is a lane.
    arguments: dict[str, Any] | None
    properties: BasicProperties | None
    values: dict[str, Any]


#: Publishers of this process, which a child process must not use.
_opened: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(PublisherEvents):
    """Shared by the sync and asyncio publishers.

    Parameters
    ----------
    settings : PublisherOptions
        The publisher's options.

    Notes
    -----
    All public methods are safe from any thread. The I/O thread calls those of `PublisherEvents`.
    """

    def __init__(self, settings: PublisherOptions) -> None:
        self.settings = settings
        self.contents = Contents()
        #: The lanes, by name.
        self.spreads = {lanes.name: Spread(lanes) for lanes in settings.lanes}
        #: Created by `start`: it owns sockets, and a publisher that is never opened should own none.
        self.io_thread: IOThread
        #: The error that made publishing impossible, if any.
        self.error: BaseException | None = None
        #: Called in the I/O thread when callers that wait for room, or for the opening, should check again.
        self.on_change: Callable[[], None] = lambda: None
        #: Whether nothing refers to this publisher any more; set by its owner, called by the I/O thread.
        self.orphaned: Callable[[], bool] = lambda: False
        self.begun = False
        #: Whether messages are accepted, as far as is known.
        self.is_open = False
        #: The window of the I/O thread.
        self.window: PublishWindow
        #: What declares the queues in which delayed messages wait.
        self.ladder = LadderBuilder(lambda: self.io_thread.url, settings.connect_timeout)
        self._started = self._closed = self._forked = False
        #: Re-entrant: a handler of a signal may close the publisher while its thread is inside.
        self._guard = threading.RLock()

    # Start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to connect."""
        self.check_process()
        with self._guard:
            if self._started:
                raise RuntimeError("a publisher can be opened only once; create another")
            self.io_thread = IOThread(
                self.settings.urls,
                self.settings.confirm_window,
                self.settings.confirm_bytes,
                self,
                tuple(self.spreads.values()),
            )
            self.window = self.io_thread.window
            if self._closed or self._started:  # by a handler of a signal, in between
                raise RuntimeError("this publisher was opened or closed meanwhile; create another")
            self._started = self.is_open = True
            _opened.add(self)
            self.io_thread.start()

    def no_connection(self) -> ConnectionFailed:
        """Return the error for a connection timeout."""
        hosts = ", ".join(endpoint(url) for url in self.settings.urls)
        return ConnectionFailed(
            f"no connection to {hosts} within {self.settings.connect_timeout:g} s; "
            f"last error: {self.io_thread.last_error or 'no answer'}"
        )

    def ready(self) -> None:
        """Finish the opening."""
        self.begun = True
        self.on_change()

    def failed(self, error: BaseException) -> None:
        """Make the opening, or later calls of `publish`, raise."""
        if self.error is None:
            self.error = error
        self.is_open = False
        self.window.close(PublishFailed(f"publishing cannot continue: {error}"))
        self.on_change()

    def progressed(self) -> None:
        """Have callers that wait for room check again."""
        if self.window.queueing:
            self.on_change()

    def orphan(self) -> bool:
        """Whether nothing refers to this publisher any more, and all messages are confirmed."""
        return self.orphaned() and self.window.unconfirmed == 0

    def warn_if_open(self) -> None:
        """Warn that a publisher was dropped without a close; its I/O thread ends once all messages are confirmed."""
        if self._started and not (self._closed or self._forked or self.io_thread.ended):
            waiting = self.window.unconfirmed
            text = f"Publisher was dropped with {waiting} unconfirmed messages; use it in a 'with' block, or close it"
            warnings.warn(text, ResourceWarning, stacklevel=3)

    # Child processes ---------------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """Raise RuntimeError in a child of the process that opened this publisher."""
        if self._forked:
            raise RuntimeError(_FORKED)

    def forked(self) -> None:
        """Disable this copy in a child process, which has no I/O thread and shares the parent's sockets."""
        self._forked = True
        self.is_open = False
        # The thread that held the lock does not exist in the child.
        self._guard = threading.RLock()
        if self._started:
            self.window.forked(_FORKED)

    # Messages ----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise if publishing is impossible."""
        self.check_process()
        if self._closed:
            raise RuntimeError("this publisher is closed; create another")
        if not self._started:
            raise RuntimeError("publish inside 'with publisher:', or after open(), which connects")
        if self.error is not None:
            raise PublishFailed(f"publishing cannot continue: {self.error}") from self.error

    def message(
        self,
        body: Buffer,
        routing_key: str,
        exchange: str,
        mandatory: bool | None,
        properties: BasicProperties | None,
        values: dict[str, Any],
    ) -> Outgoing:
        """Convert the arguments of `publish` to those of `PublishWindow.put`."""
        if not self.is_open:
            self.check_open()
        encoded = self.contents.encode(properties, values) if values or properties is not None else self.contents.plain
        if mandatory is None:
            mandatory = self.settings.mandatory
        if not exchange and isinstance(routing_key, str) and routing_key.startswith(DIRECT_REPLY):
            mandatory = False  # RabbitMQ would deliver it *and* return it
        if self.spreads and not exchange and type(routing_key) is str:
            spread = self.spreads.get(routing_key)
            if spread is not None:
                tenant = spread.tenant(properties, values)
                lane = spread.placement.place(tenant, monotonic())
                return exchange, lane, encoded, body, True, (spread, tenant)
        return exchange, routing_key, encoded, body, mandatory, None

    def delayed(
        self,
        routing_key: str,
        exchange: str,
        mandatory: bool | None,
        properties: BasicProperties | None,
        values: dict[str, Any],
        delay: float | str | None,
        at: datetime | None,
    ) -> Delayed | None:
        """Check the arguments of a `publish` with a delay; None: the message is due."""
        if whole_delay(delay, at) == 0:
            return None
        if not self.is_open:
            self.check_open()
        if mandatory is None:
            mandatory = self.settings.mandatory
        target, arguments = Target(exchange, routing_key), None
        target.check()
        values = delayed_values(properties, values)
        spread = None if exchange else self.spreads.get(routing_key)
        if spread is not None:
            self.contents.encode(properties, dict(values))  # checks what the tenant is read from
            bucket = spread.lanes.bucket_of(spread.tenant(properties, values))
            target, arguments = Target("", bucket), dict(spread.lanes.queue(bucket).all_arguments)
            target.check()
        return Delayed(target, mandatory, arguments, properties, values)

    def prepare(self, delayed: Delayed) -> None:
        """Declare what a delayed message needs, which may wait; RuntimeError in a done callback, which must not."""
        self.check_may_wait()
        self.ladder.prepare(delayed.target, delayed.mandatory, delayed.arguments)

    def delayed_message(
        self, body: Buffer, delayed: Delayed, delay: float | str | None, at: datetime | None
    ) -> Outgoing:
        """Convert a delayed message to the arguments of `PublishWindow.put`.

        A message that has become due while the ladder was declared waits for another second.
        """
        exchange, key = delayed_address(max(1, whole_delay(delay, at)), delayed.target)
        return self.message(body, key, exchange, True, delayed.properties, delayed.values)

    def ladder_missing(self) -> None:
        """Have the next delayed message declare the ladder again."""
        self.ladder.forget()

    def waits_for_lane(self, message: Outgoing) -> bool:
        """Whether a message's tenant has become hot, and its own lane is being opened; False in a done callback.

        A flood would fill the bucket of other tenants in the meantime.
        """
        where = message[5]
        if where is None or not where[0].placement.opening or not where[0].placement.is_opening(where[1]):
            return False
        try:
            self.check_may_wait()
        except RuntimeError:
            return False
        return True

    def await_lanes(self, timeout: float | None = None) -> None:
        """Wait until the own lanes of all hot tenants are open or cannot be opened, `LANE_TIMEOUT` at most."""
        opened = Flag()
        self.io_thread.when_lanes_open(opened.set)
        opened.wait(LANE_TIMEOUT if timeout is None else min(timeout, LANE_TIMEOUT))

    def placed_again(self, message: Outgoing) -> Outgoing:
        """Return a message with the lane that its tenant has now; raise as `check_open` does, after a wait for it."""
        if not self.is_open:
            self.check_open()
        exchange, _, encoded, body, mandatory, where = message
        assert where is not None
        (lane,) = where[0].placement.lanes_of((where[1],))
        return exchange, lane, encoded, body, mandatory, where

    def check_may_wait(self) -> None:
        """Raise RuntimeError in a done callback, which the I/O thread calls."""
        if self._started:
            self.window.check_may_wait()

    @staticmethod
    def answer(question: Message, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the routing key of a reply, and its properties."""
        asked = question.properties
        if not asked.reply_to:
            raise ValueError(f"{question!r} has no reply_to, so a reply cannot be routed")
        return asked.reply_to, {"correlation_id": asked.correlation_id, **values}

    def begin_call(self, routing_key: str, timeout: float | None, wake: Callable[[], object]) -> Call:
        """Return a call that is still to be published; raise if it cannot be.

        Raises RuntimeError in the I/O thread, which alone receives replies: in done callbacks, and in finalizers that
        the garbage collector calls there.
        """
        self.check_open()
        self.check_may_wait()
        if self.io_thread.is_current():
            raise RuntimeError("the publisher's I/O thread receives replies, and so cannot wait for one")
        return self.io_thread.calls.create(routing_key, timeout, wake)

    def request(
        self, call: Call, body: Buffer, exchange: str, properties: BasicProperties | None, values: dict[str, Any]
    ) -> Outgoing:
        """Convert the arguments of a call to those of `PublishWindow.put`."""
        return self.message(body, call.routing_key, exchange, True, properties, request_properties(call, values))

    def reply_of(self, call: Call) -> Message:
        """Return the reply of a call that has ended, or whose time is over; raise if there is none."""
        if call.reply is not None:
            return call.reply
        problem, call.problem = call.problem, None
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # its traceback refers to this frame
        address = self.io_thread.address
        if call.confirmed:
            raise call.late(f"{address} has accepted the request, and no consumer has replied")
        raise call.late(f"{address} has not confirmed the request{self.reason()}")

    def no_room(self, waited: float) -> PublishFailed:
        """Return the error for a wait for room that timed out."""
        return PublishFailed(f"the message was not published: {self.silence(waited)}")

    def silence(self, waited: float) -> str:
        """Return the text that the broker has confirmed nothing, with the reason if it is known."""
        return (
            f"{self.io_thread.address} confirmed nothing for {waited:.3g} s; {self.window.unconfirmed} messages are "
            f"unconfirmed{self.reason()}"
        )

    def reason(self) -> str:
        """Return why the broker confirms nothing, as the end of a sentence; empty if it is not known."""
        thread = self.io_thread
        if thread.blocked is not None:
            return f"; it blocked the connection: {thread.blocked}"
        if not thread.connected:
            return f"; there is no connection, last error: {thread.last_error or 'none'}"
        return ""

    def check_failures(self) -> None:
        """Raise PublishFailed if there are failures that were not read."""
        count, problem = self.window.take_failures()
        if count == 1 and problem is not None:
            raise problem
        if count:
            raise PublishFailed(f"{count} messages were not published; one of them: {problem}") from problem

    def patience(self, timeout: float | None = None) -> Patience:
        """Start the timeouts of a wait for confirms."""
        return Patience(self, timeout)

    # Close -------------------------------------------------------------------------------------------------------

    def leave_timeout(self) -> float:
        """Return the maximum wait for unconfirmed messages when an exception ends the `with` block, in seconds."""
        return min(_LEAVE_TIMEOUT, self.settings.confirm_timeout)

    def end(self) -> int:
        """End the I/O thread; return the number of unconfirmed messages, which fail."""
        with self._guard:
            done = self._closed or self._forked or not self._started
            self._closed = True
            self.is_open = False
        if done:
            return 0
        try:
            self.io_thread.close(_CLOSE_TIMEOUT)
        finally:
            # The I/O thread has done so, unless it does not answer.
            self.io_thread.calls.lost("the publisher was closed")
            reason = "the publisher was closed before the broker confirmed the message; it may or may not have arrived"
            count: int = self.window.close(PublishFailed(reason))
            self.on_change()
            _log.info(
                "the publisher is closed: %d messages published, %d confirmed, %d failed",
                self.window.published, self.window.confirmed, self.window.failed,
            )  # fmt: skip
        return count

    def check_end(self) -> None:
        """Raise PublishFailed for failures until the end that were not read."""
        if self._started and not self._forked:
            self.check_failures()

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        if not self._started:
            return dict.fromkeys((*_COUNTERS, "reconnects"), 0)
        window = self.window
        return {**{name: getattr(window, name) for name in _COUNTERS}, "reconnects": self.io_thread.reconnects}


#: Counters of the window.
_COUNTERS = ("published", "confirmed", "failed", "unconfirmed", "republished")


class Patience:
    """Timeouts of a wait for confirms: each confirm restarts `confirm_timeout`; `timeout` limits the whole wait.

    Notes
    -----
    For one thread.
    """

    def __init__(self, client: Client, timeout: float | None) -> None:
        self._client = client
        self._timeout = checked_timeout(timeout)
        self._most = client.settings.confirm_timeout
        self._since = time.monotonic()
        self._deadline = self._since + self._timeout
        self._before = self._answers()

    def _answers(self) -> int:
        window = self._client.window
        answers: int = window.confirmed + window.failed
        return answers

    def left(self) -> float:
        """Return the remaining seconds; 0 after a timeout."""
        now = time.monotonic()
        answers = self._answers()
        if answers != self._before:
            self._before, self._since = answers, now
        return max(0.0, min(self._since + self._most, self._deadline) - now)

    def over(self) -> PublishFailed:
        """Return the error for the timeout."""
        if time.monotonic() < self._deadline:
            return PublishFailed(self._client.silence(self._most))
        count = message_count(self._client.window.unconfirmed)
        return PublishFailed(f"the broker has not confirmed {count} within {self._timeout:g} s")


def message_count(count: int) -> str:
    """Return a number of messages as text."""
    return "1 message" if count == 1 else f"{count} messages"


def confirmations(found: list[Any]) -> list[Any]:
    """Return confirmations in the order to wait for them: the last one first, since most others are done by then."""
    return [*found[-1:], *found[:-1]]


def _in_child() -> None:
    for client in list(_opened):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
