"""The I/O thread of a publisher: the connection, its channel, messages out and confirms in."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pika.exceptions

from fairsched.amqp._publishing import PublishWindow, encode_message
from fairsched.amqp.backoff import Backoff
from fairsched.amqp.connection import Connection
from fairsched.amqp.errors import broker_text
from fairsched.amqp.ioloop import Loop
from fairsched.errors import ConnectionFailed, MessageReturned, PublishFailed
from fairsched.publisher.transport import PublisherTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

#: The one channel of the connection.
_CHANNEL = 1
#: Code with which a broker that is stopped, or an operator, closes a connection.
_FORCED = 320
#: Bytes that are passed to the connection in one write.
_TOGETHER = 1 << 18
#: Seconds between checks that the publisher can still be used, and longest duration of its end if it cannot.
_WATCH_PERIOD, _LONGEST_END = 1.0, 5.0


class PublisherEvents:
    """Events of a publisher's connection; the I/O thread calls every method."""

    def ready(self) -> None:
        """Messages can be published, for the first time."""

    def failed(self, error: BaseException) -> None:
        """Publishing cannot begin, or cannot continue."""

    def progressed(self) -> None:
        """Messages were settled, or the connection is unblocked: there may be room."""

    def orphan(self) -> bool:
        """Whether the publisher cannot be used any more; called periodically."""
        return False


class IOThread:
    """Runs pika in a thread of its own and keeps a window's messages on their way.

    Parameters
    ----------
    urls : sequence of str
        Tried in turn.
    messages, size : int
        Of the window.
    listener : PublisherEvents
        Told how it begins, goes on and ends.

    Notes
    -----
    `start`, `wake`, `close`, `ended`, `last_error` and `reconnects` are safe from any thread; everything else belongs
    to the I/O thread.

    The broker closes a channel because of a message it cannot accept, such as one for an exchange that does not exist,
    and does not say which. What was under way is then sent again one message at a time: the one with which the channel
    is closed again fails, and the others arrive. The same holds if it closes the connection, by an error of its own,
    twice without a confirm in between; a connection that is merely cut, or closed by an operator, accuses no message.
    """

    def __init__(self, urls: Sequence[str], messages: int, size: int, listener: PublisherEvents) -> None:
        #: Number of times that a lost connection was replaced.
        self.reconnects = 0
        #: Reason of the broker for not accepting messages at the moment; None: it accepts them.
        self.blocked: str | None = None
        self._loop = Loop()
        self.window = PublishWindow(messages, size, self.wake)
        self._listener = listener
        #: Bytes of the longest payload of a frame.
        self._longest = 0
        self._connection = Connection(
            self._loop,
            tuple(urls),
            connected=self._on_connected,
            disconnected=self._on_disconnected,
            refused=self._fail,
            closed=self._loop.stop,
            blocked=self._on_blocked,
            kind=PublisherTransport,
        )
        self._backoff = Backoff()
        #: The transport of a channel in confirm mode.
        self._transport: PublisherTransport | None = None
        self._begun = self._closing = False
        #: Connections in a row that the broker closed by an error before it confirmed anything.
        self._fruitless = 0
        #: Whether the window is being sent on the current connection.
        self._sending = False
        self._launched, self._ended = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="fairsched-publisher", daemon=True)

    # From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects at once."""
        # After an interrupt here, the thread runs although `threading` does not yet report it as alive.
        self._launched = True
        self._thread.start()

    @property
    def last_error(self) -> str | None:
        """Reason of the last loss or failure of the connection."""
        return self._connection.last_error

    @property
    def connected(self) -> bool:
        """Whether messages can be sent, as far as is known."""
        return self._transport is not None

    @property
    def address(self) -> str:
        """Host and port of the last connection."""
        return self._connection.address

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return self._ended.is_set()

    def wake(self) -> None:
        """Make the I/O thread send the messages in the window."""
        if not self._ended.is_set():
            self._loop.add_callback_threadsafe(self._send)

    def close(self, timeout: float) -> None:
        """Close the connection and end the thread, waiting `timeout` seconds at most."""
        if not self._launched:
            return
        self._loop.add_callback_threadsafe(self._close)
        if not self._ended.wait(timeout):
            _log.warning("the broker did not confirm the close within %.3g s; leaving without its answer", timeout)
            self._loop.add_callback_threadsafe(self._loop.stop)
        if self._ended.wait(1.0):
            self._thread.join(1.0)

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._watch()
            self._connection.connect()
            self._loop.start()
        except BaseException as error:  # a waiting thread must get any error
            failure = error
        try:
            self._connection.drop()
            self._transport = None
            if failure is not None:
                _log.critical("the I/O thread ended by %s", type(failure).__name__, exc_info=failure)
                self._listener.failed(failure)
        finally:
            self._ended.set()
            self._loop.close()
            self._listener.progressed()

    def _watch(self) -> None:
        """Send messages of an interrupted `publish`, and end if the publisher cannot be used any more."""
        if self._listener.orphan():
            self._close()
            self._loop.call_later(_LONGEST_END, self._loop.stop)
            return
        self._send()
        self._loop.call_later(_WATCH_PERIOD, self._watch)

    def _close(self) -> None:
        self._closing = True
        self._connection.close()

    def _fail(self, error: BaseException) -> None:
        self._listener.failed(error)
        self._close()

    # The connection ----------------------------------------------------------------------------------------------

    def _on_connected(self, transport: Any, again: bool) -> None:
        self.reconnects += again
        self._open_channel(transport)

    def _on_disconnected(self, error: BaseException) -> None:
        self._transport = None
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
            self._listener.progressed()

    def _open_channel(self, transport: PublisherTransport) -> None:
        if transport.is_open and not self._closing:
            transport.channel(_CHANNEL, on_open_callback=lambda channel: self._on_channel_open(transport, channel))

    def _on_channel_open(self, transport: PublisherTransport, channel: Any) -> None:
        channel.add_on_close_callback(lambda _channel, reason: self._on_channel_closed(transport, reason))
        channel.add_on_return_callback(self._on_return)
        try:
            channel.confirm_delivery(self._on_confirm, lambda _frame: self._on_confirm_mode(transport))
        except pika.exceptions.MethodNotImplemented:
            self._fail(ConnectionFailed(f"{self._connection.address} has no publisher confirms, which are needed"))

    def _on_confirm_mode(self, transport: PublisherTransport) -> None:
        self._longest = transport.longest
        self.window.again(self._longest)
        transport.window = self.window
        transport.confirmed = self._on_progress
        self._transport = transport
        self._sending = True
        if not self._begun:
            self._begun = True
            self._listener.ready()
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
        before = self.window.failed
        self.window.suspect(PublishFailed(what))
        # A failed message is progress, and so is finding one; otherwise wait for the next attempt.
        delay = 0.0 if self.window.failed > before or self.window.singly else self._backoff.failed()
        self._loop.call_later(delay, lambda: self._open_channel(transport))
        self._listener.progressed()

    # Messages ----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Pass the messages in the window to the connection."""
        transport = self._transport
        if transport is None or self.blocked is not None:
            return
        while data := self.window.output(_TOGETHER):
            transport.emit(data)

    def _on_progress(self) -> None:
        """Continue after confirms."""
        self._connection.useful()
        self._fruitless = 0
        if self.window.singly:
            self._send()
        self._listener.progressed()

    def _on_confirm(self, frame: Any) -> None:
        """Process a confirm that came through pika."""
        method = frame.method
        self.window.confirm(method.delivery_tag, method.multiple, method.NAME == "Basic.Nack")
        self._on_progress()

    def _on_return(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        problem = MessageReturned(
            method.reply_code,
            broker_text(method.reply_text),
            method.exchange,
            method.routing_key,
            properties.message_id,
        )
        encoded = encode_message(
            method.exchange, method.routing_key, b"".join(properties.encode()), body, True, _CHANNEL, self._longest
        )
        if not self.window.returned(encoded, problem):
            _log.error("the broker returned a message that is not known here: %s", problem)
