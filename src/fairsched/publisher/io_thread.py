"""The I/O thread of a publisher: the connection, its channel, messages out and confirms in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pika.exceptions

from fairsched.amqp._publishing import PublishWindow, encode_message
from fairsched.amqp.backoff import Backoff
from fairsched.amqp.connection_thread import ConnectionEvents, ConnectionThread
from fairsched.amqp.errors import broker_text, describe, is_missing
from fairsched.amqp.polling.pacing import Pace, PacedPoll, use_poll
from fairsched.amqp.urls import mask_url
from fairsched.errors import ConnectionFailed, MessageReturned, PublishFailed
from fairsched.publisher.calls import Calls
from fairsched.publisher.ladder import is_of_ladder
from fairsched.publisher.lane_upkeep import LaneUpkeep
from fairsched.publisher.reply_consumer import ReplyConsumer
from fairsched.publisher.transport import PublisherTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairsched.publisher.spread import Spread

_log = logging.getLogger(__name__)

#: The one channel of the connection.
_CHANNEL = 1
#: Code with which a broker that is stopped, or an operator, closes a connection.
_FORCED = 320
#: Bytes that are given to the connection at once.
_TOGETHER = 1 << 18


class PublisherEvents(ConnectionEvents):
    """Events of a publisher's connection; the I/O thread calls every method."""

    def progressed(self) -> None:
        """Messages were settled, or the connection is unblocked: there may be room."""

    def ladder_missing(self) -> None:
        """Note that the ladder of delayed messages is incomplete, or the connection to it lost."""


class IOThread(ConnectionThread):
    """Keeps a window's messages on their way.

    Parameters
    ----------
    urls : sequence of str
        Tried in turn.
    messages, size : int
        Of the window.
    owner : PublisherEvents
        Told how it begins, goes on and ends.
    spreads : sequence of Spread
        The lanes to which messages go.

    Notes
    -----
    `wake`, `connected`, `address`, `blocked`, `reconnects` and `calls` are safe from any thread, besides what
    `ConnectionThread` names; everything else belongs to the I/O thread.

    The broker closes a channel because of a message it cannot accept, such as one for an exchange that does not exist,
    and does not say which. What was under way is then sent again one message at a time: the one with which the channel
    is closed again fails, and the others arrive. The same holds if it closes the connection, by an error of its own,
    twice without a confirm in between; a connection that is merely cut, or closed by an operator, accuses no message.
    """

    _owner: PublisherEvents

    def __init__(
        self, urls: Sequence[str], messages: int, size: int, owner: PublisherEvents, spreads: Sequence[Spread] = ()
    ) -> None:
        super().__init__(urls, owner, "fairsched-publisher", kind=PublisherTransport)
        #: Number of times that a lost connection was replaced.
        self.reconnects = 0
        #: Reason of the broker for not accepting messages at the moment; None: it accepts them.
        self.blocked: str | None = None
        self.window = PublishWindow(messages, size, self.wake)
        #: How often this thread looks at the socket while many messages are unconfirmed.
        self.pace = Pace(self._progress)
        use_poll(self._loop, lambda: PacedPoll(self.pace))
        #: Bytes of the longest payload of a frame.
        self._longest = 0
        self._backoff = Backoff()
        #: The transport of a channel in confirm mode.
        self._transport: PublisherTransport | None = None
        self._begun = self._closing = False
        #: Connections in a row that the broker closed by an error before it confirmed anything.
        self._fruitless = 0
        #: Whether the window is being sent on the current connection.
        self._sending = False
        self._lanes = LaneUpkeep(self._loop, self.window, spreads, self._on_lanes_change)
        #: The calls that wait for their replies.
        self.calls = Calls()
        self._replies = ReplyConsumer(self.calls)

    # From any thread ---------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether messages can be sent, as far as is known."""
        return self._transport is not None

    @property
    def address(self) -> str:
        """Host and port of the last connection."""
        return self._connection.address

    @property
    def url(self) -> str:
        """URL of the last connection."""
        return self._connection.url

    def wake(self) -> None:
        """Make the I/O thread send the messages in the window."""
        if not self._ended.is_set():
            self._loop.add_callback_threadsafe(self._send)

    def when_lanes_open(self, done: Callable[[], object]) -> None:
        """Have a function called in the I/O thread once the lanes of all hot tenants are open, or could not be."""
        self._loop.add_callback_threadsafe(lambda: self._lanes.when_open(done))

    # The thread --------------------------------------------------------------------------------------------------

    def _progress(self) -> tuple[int, int]:
        return self.window.confirmed, self.window.unconfirmed

    def _look(self) -> None:
        """Send what an interrupted `publish` left behind, and announce lanes in use."""
        self._may_go_on()
        self._send()
        self._lanes.look()

    def _close(self, longest: float) -> None:
        self._closing = True
        super()._close(longest)

    def _finish(self, failure: BaseException | None) -> None:
        self._transport = None
        self._lanes.release_waiting()
        self._replies.closed(
            "the publisher was closed" if failure is None else f"the I/O thread ended by {type(failure).__name__}"
        )
        if failure is not None:
            _log.critical("the I/O thread ended by %s", type(failure).__name__, exc_info=failure)
            self._owner.failed(failure)

    def _on_late(self, waited: float) -> None:
        _log.warning("the broker did not confirm the close within %.3g s; leaving without its answer", waited)

    def _after_end(self) -> None:
        self._owner.progressed()

    # The connection ----------------------------------------------------------------------------------------------

    def _on_connected(self, transport: Any, again: bool) -> None:
        self.reconnects += again
        self._open_channel(transport)

    def _on_disconnected(self, error: BaseException) -> None:
        self._transport = None
        self._owner.ladder_missing()
        self._lanes.disconnected()
        why = "the publisher was closed" if self._closing else f"the connection was lost: {mask_url(describe(error))}"
        self._replies.disconnected(why)
        sending, self._sending = self._sending, False
        if sending and isinstance(error, pika.exceptions.ConnectionClosedByBroker) and error.reply_code != _FORCED:
            self._fruitless += 1
            if self._fruitless > 1:
                self.window.suspect(
                    PublishFailed(
                        f"the broker closed the connection: {error.reply_code} {broker_text(error.reply_text)}"
                    )
                )
        self._on_blocked(None)

    def _on_blocked(self, reason: str | None) -> None:
        self.blocked = reason
        self.window.blocked = reason is not None
        if reason is None:
            self._send()
            self._owner.progressed()

    def _open_channel(self, transport: PublisherTransport) -> None:
        if transport.is_open and not self._closing:
            transport.channel(_CHANNEL, on_open_callback=lambda channel: self._on_channel_open(transport, channel))

    def _on_channel_open(self, transport: PublisherTransport, channel: Any) -> None:
        channel.add_on_close_callback(lambda _channel, reason: self._on_channel_closed(transport, reason))
        channel.add_on_return_callback(self._on_return)
        try:
            channel.confirm_delivery(self._on_confirm, lambda _frame: self._on_confirm_mode(transport, channel))
        except pika.exceptions.MethodNotImplemented:
            self._fail(ConnectionFailed(f"{self._connection.address} has no publisher confirms, which are needed"))

    def _on_confirm_mode(self, transport: PublisherTransport, channel: Any) -> None:
        self._longest = transport.longest
        self._replies.opened(transport, channel)
        self._lanes.connected(transport)
        if self._begun:
            self._lanes.compare_layouts(self._say_anyway)
            self._begin_sending(transport)
        else:
            self._lanes.compare_layouts(lambda error: self._fail(error) if error else self._declare(transport))

    def _declare(self, transport: PublisherTransport) -> None:
        """Declare ordered lanes, and begin."""

        def declared(error: Exception | None) -> None:
            self._say_anyway(error)
            self._begin_sending(transport)

        self._lanes.declare_ordered(declared)

    def _say_anyway(self, error: BaseException | None) -> None:
        """Say that lanes are refused, or have another layout by now; messages must go somewhere."""
        if error is not None:
            _log.error("%s; publishing anyway", error)

    def _begin_sending(self, transport: PublisherTransport) -> None:
        self.window.again(self._longest)
        transport.window = self.window
        transport.confirmed = self._on_progress
        transport.believed = self._may_go_on
        self._transport = transport
        self._sending = True
        if not self._begun:
            self._begun = True
            self._owner.ready()
        self._send()

    def _on_channel_closed(self, transport: PublisherTransport, reason: BaseException) -> None:
        """Find the message for which the broker closed the channel, and open another channel."""
        self._transport = transport.window = None
        if not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            return
        what = f"the broker closed the channel: {reason.reply_code} {broker_text(reason.reply_text)}"
        if not self._begun:
            self._fail(ConnectionFailed(f"{self._connection.address}: {what}"))
            return
        _log.warning("%s; opening another", what)
        if is_missing(reason):
            self._owner.ladder_missing()
        before = self.window.failed
        if not self._replies.closed(what, reason):
            self.window.suspect(PublishFailed(what))
        # A failed message is progress, and so is finding one; otherwise wait for the next attempt.
        delay = 0.0 if self.window.failed > before or self.window.singly else self._backoff.failed()
        self._loop.call_later(delay, lambda: self._open_channel(transport))
        self._owner.progressed()

    def _may_go_on(self) -> bool:
        """Whether the connection may be used; otherwise end it, since own lanes may have been deleted meanwhile."""
        transport = self._transport
        if transport is None or self._lanes.may_go_on():
            return True
        self._transport = None
        transport.abandon(ConnectionFailed("messages in lanes of single tenants have waited too long for a confirm"))
        return False

    # Messages ----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Pass the messages in the window to the connection."""
        transport = self._transport
        if transport is None or self.blocked is not None or not self._may_go_on():
            return
        while data := self.window.output(_TOGETHER):
            # A call says that it has begun before its request is in the window.
            if self.calls.begun:
                self._replies.consume()
            transport.emit(data)
        self._lanes.open_fresh()

    def _on_lanes_change(self) -> None:
        """Continue after lanes were opened, or could not be."""
        self._send()
        self._owner.progressed()

    def _on_progress(self) -> None:
        """Continue after confirms."""
        self._connection.useful()
        self._fruitless = 0
        if self.window.held:
            self._lanes.resume()
        if self.window.singly:
            self._send()
        self._owner.progressed()

    def _on_confirm(self, frame: Any) -> None:
        """Process a confirm that came through pika."""
        if not self._may_go_on():
            return
        method = frame.method
        self.window.confirm(method.delivery_tag, method.multiple, method.NAME == "Basic.Nack")
        self._on_progress()

    def _on_return(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        problem: PublishFailed
        if is_of_ladder(method.exchange):
            self._owner.ladder_missing()
            problem = PublishFailed(
                f"the message was not delayed: queue {method.exchange!r} is missing; another publish declares it again"
            )
        else:
            problem = MessageReturned(
                method.reply_code,
                broker_text(method.reply_text),
                method.exchange,
                method.routing_key,
                properties.message_id,
            )
        # A returned request differs from the one that was sent: the broker has replaced its reply address, and RabbitMQ
        # 4.3 sorts headers. Its correlation id identifies it.
        is_request = self.calls.is_own(properties.correlation_id)
        call = self.calls.find(properties.correlation_id)
        if call is not None and self.window.returned_with(call, problem):
            return
        encoded = encode_message(
            method.exchange, method.routing_key, b"".join(properties.encode()), body, True, _CHANNEL, self._longest
        )
        in_lane = not method.exchange and self._lanes.returned(encoded, method.routing_key)
        known = self.window.returned(encoded, problem, in_lane or is_request)
        if not (known or in_lane or is_request):
            _log.error("the broker returned a message that is not known here: %s", problem)
