"""The I/O thread: one pika connection at a time, kept alive, lost and found again."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pika.exceptions
from pika.adapters.select_connection import IOLoop

from fairsched.consumer.backoff import Backoff
from fairsched.consumer.intake import Intake
from fairsched.consumer.pace import Pace
from fairsched.consumer.subscription import Subscription, is_missing
from fairsched.consumer.transport import Transport
from fairsched.consumer.urls import endpoint, mask_url, parameters
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound

if TYPE_CHECKING:
    from fairsched._fairqueue import FairQueue
    from fairsched.consumer.counters import Counters
    from fairsched.consumer.message import Message
    from fairsched.consumer.settings import Settings

_log = logging.getLogger(__name__)

#: Answers that no retry will change.
_REFUSALS = (
    pika.exceptions.AuthenticationError,
    pika.exceptions.ProbableAuthenticationError,
    pika.exceptions.ProbableAccessDeniedError,
    pika.exceptions.IncompatibleProtocolError,
    ssl.SSLCertVerificationError,
)


class Listener:
    """What the pump tells its owner; every method is called in the I/O thread."""

    def ready(self) -> None:
        """Every queue is being consumed, for the first time."""

    def failed(self, error: BaseException) -> None:
        """Consuming cannot begin, or cannot go on."""

    def intake_closed(self) -> None:
        """No more deliveries will come."""


class Pump:
    """Pump(settings, queue, counters, listener, on_error)
    --

    Runs pika in a thread of its own and moves messages between the broker and the fair queue.

    Parameters
    ----------
    settings : Settings
        URLs, windows, key and cost.
    queue : FairQueue
        Receives what is delivered.
    counters : Counters
        Shared with the owner.
    listener : Listener
        Told about the pump's life.
    on_error : callable
        Settles a message whose handler raised.

    Notes
    -----
    Handlers never run in this thread, so they cannot delay heartbeats. `start`, `request_flush`, `give_way`,
    `stop_intake` and `close` are safe from any thread; everything else belongs to the I/O thread. None of them
    waits for the network except `close`.
    """

    def __init__(
        self,
        settings: Settings,
        queue: FairQueue,
        counters: Counters,
        listener: Listener,
        on_error: Callable[[Message, BaseException], None],
    ) -> None:
        self.counters = counters
        self.on_error = on_error
        self.last_error: str | None = None
        self._settings = settings
        self._listener = listener
        self._loop = IOLoop()
        self._pace = Pace(self._loop, queue, self._subscriptions, self._flush, holds=settings.key is None)
        self.intake = Intake(queue, counters, key=settings.key, cost=settings.cost, defer=self._pace.defer)
        self.note_fill = self._pace.hold
        #: Subscriptions with settlements not yet sent; any thread adds, the I/O thread takes out.
        self.unsent: set[Subscription] = set()
        self.flush_requested = False
        self._flushed = threading.Event()
        self._current: dict[str, Subscription] = {}
        self._backoffs = {name: Backoff() for name in settings.windows}
        self._connection: Transport | None = None
        self._backoff = Backoff()
        self._attempts = 0
        self._ready = self._was_open = self._stopping = self._closing = self._intake_closed = False
        self._cancelling: set[Subscription] = set()
        self._thread = threading.Thread(target=self._run, name="fairsched-io", daemon=True)

    # From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects at once."""
        self._thread.start()

    def request_flush(self) -> None:
        """Have settlements sent as soon as the I/O thread can; one request at a time."""
        if self.unsent and not self.flush_requested:
            self._flushed.clear()
            self.flush_requested = True
            self._loop.add_callback_threadsafe(self._flush)

    def give_way(self) -> None:
        """Let the I/O thread send what was asked for, waiting a millisecond at most.

        A handler that computes in Python keeps the GIL for a whole switch interval, five milliseconds, while the
        I/O thread needs it several times per exchange with the broker. Without this, local buffers run dry.
        """
        if self.flush_requested:
            self._flushed.wait(0.001)

    def stop_intake(self) -> None:
        """Cancel every consumer; the listener hears when deliveries have ended."""
        self._loop.add_callback_threadsafe(self._stop_intake)

    def close(self, timeout: float) -> None:
        """Send what is settled, close the connection and end the thread, waiting `timeout` seconds at most."""
        if not self._thread.is_alive():
            return
        self._loop.add_callback_threadsafe(self._close)
        self._thread.join(timeout)
        if self._thread.is_alive():
            _log.warning("the broker did not answer the close within %g s; leaving without its answer", timeout)
            self._loop.add_callback_threadsafe(self._loop.stop)
            self._thread.join(1.0)

    def round_trip(self) -> float | None:
        """Return the longest measured round trip of a current channel, in seconds."""
        known = [found.round_trip for found in list(self._current.values()) if found.round_trip is not None]
        return max(known, default=None)

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._connect()
            self._loop.start()
        except Exception as error:
            _log.critical("the I/O thread failed", exc_info=True)
            self._listener.failed(error)
        finally:
            for found in self._current.values():
                found.abandon()
            self._end_intake()
            self._loop.close()

    def _subscriptions(self) -> Iterator[Subscription]:
        return iter(self._current.values())

    def _flush(self) -> None:
        self.flush_requested = False
        connection = self._connection
        if connection is not None and connection.is_open:
            with connection:
                while self.unsent:
                    self.unsent.pop().flush()
        else:
            self.unsent.clear()
        self._flushed.set()

    # Connecting --------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._closing or self._stopping:
            return
        url = self._settings.urls[self._attempts % len(self._settings.urls)]
        self._attempts += 1
        self._address = endpoint(url)
        _log.debug("connecting to %s", mask_url(url))
        try:
            self._connection = Transport(
                parameters(url),
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_open_error,
                on_close_callback=self._on_close,
                custom_ioloop=self._loop,
            )
        except Exception as error:
            self._on_open_error(None, error)

    def _on_open(self, connection: Any) -> None:
        if self._closing or self._stopping:
            connection.close()
            return
        limit = connection.params.channel_max
        wanted = len(self._settings.windows)
        if limit and wanted > limit:
            self._fail(
                ConfigurationError(
                    f"{wanted} queues need {wanted} channels, but {self._address} allows {limit} on one connection "
                    "(channel_max); consume fewer queues per consumer or raise the broker's limit"
                )
            )
            return
        connection.widen()
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._backoff.succeeded()
        if self._was_open:
            self.counters.add("reconnects")
        self._was_open = True
        _log.info("connected to %s", self._address)
        for name in self._settings.windows:
            self._open_channel(name)

    def _on_open_error(self, _connection: Any, error: BaseException) -> None:
        self._connection = None
        self.last_error = f"{self._address}: {mask_url(describe(error))}"
        if self._closing:
            self._loop.stop()
        elif not self._was_open and _refused(error):
            self._fail(ConnectionFailed(f"the broker refused the connection: {self.last_error}"))
        else:
            self._retry()

    def _on_close(self, _connection: Any, error: BaseException) -> None:
        self._connection = None
        for found in self._current.values():
            found.abandon()
        if self._closing:
            self._loop.stop()
            return
        self.last_error = f"{self._address}: {mask_url(describe(error))}"
        if self._stopping:
            self._end_intake()
        else:
            self._retry()

    def _retry(self) -> None:
        # The other URLs are tried at once; only a whole round of failures makes us wait.
        another = self._attempts % len(self._settings.urls) != 0
        delay = 0.0 if another else self._backoff.failed()
        _log.warning("no connection, trying again in %.2f s: %s", delay, self.last_error)
        self._loop.call_later(delay, self._connect)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        _log.warning("%s blocked the connection: %s; consuming goes on", self._address, frame.method.reason)

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        _log.info("%s unblocked the connection", self._address)

    # Subscriptions -----------------------------------------------------------------------------------------------

    def _open_channel(self, name: str) -> None:
        found = Subscription(self, name, self._settings.windows[name])
        self._current[name] = found
        if self._connection is not None:
            self._connection.channel(on_open_callback=found.opened)

    def subscribed(self, found: Subscription) -> None:
        """Note that the broker confirmed a consumer."""
        self._backoffs[found.queue].succeeded()
        if self._stopping:
            self._cancel(found)
        elif not self._ready and all(one.consuming for one in self._current.values()):
            self._ready = True
            self._listener.ready()

    def cancelled(self, found: Subscription) -> None:
        """Consume again, on the same channel, a queue whose consumer the broker cancelled."""
        if self._stopping:
            self._cancel_done(found)
        else:
            self._loop.call_later(self._backoffs[found.queue].failed(), found.consume)

    def channel_lost(self, found: Subscription, reason: BaseException) -> None:
        """Open another channel for a queue whose channel the broker closed."""
        if self._connection is None or not self._connection.is_open or self._closing:
            return
        if self._stopping:
            self._cancel_done(found)
        elif not self._ready:
            kind = QueueNotFound if is_missing(reason) else ConnectionFailed
            what = "does not exist" if is_missing(reason) else "cannot be consumed"
            self._fail(kind(f"queue {found.queue!r} {what} on {self._address}: {mask_url(describe(reason))}"))
        else:
            delay = self._backoffs[found.queue].failed()
            _log.warning("channel of queue %r lost, another in %.2f s: %s", found.queue, delay, describe(reason))
            self._loop.call_later(delay, lambda: self._reopen(found))

    def _reopen(self, lost: Subscription) -> None:
        usable = self._connection is not None and self._connection.is_open and not self._stopping
        # A new connection meanwhile has opened every channel itself.
        if usable and self._current[lost.queue] is lost:
            self._open_channel(lost.queue)

    # The end -----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        self._listener.failed(error)
        self._stop_intake()
        self._close()

    def _stop_intake(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        for found in list(self._current.values()):
            self._cancel(found)
        if not self._cancelling:
            self._end_intake()

    def _cancel(self, found: Subscription) -> None:
        self._cancelling.add(found)
        if not found.cancel(lambda: self._cancel_done(found)):
            self._cancelling.discard(found)

    def _cancel_done(self, found: Subscription) -> None:
        self._cancelling.discard(found)
        if not self._cancelling:
            self._end_intake()

    def _end_intake(self) -> None:
        if not self._intake_closed:
            self._intake_closed = True
            self.intake.drain()
            self._listener.intake_closed()

    def _close(self) -> None:
        if self._closing:
            return
        self._stopping = self._closing = True
        self._flush()
        connection = self._connection
        if connection is None or connection.is_closed:
            self._loop.stop()
        elif not connection.is_closing:
            connection.close()


def describe(error: BaseException) -> str:
    """Return what went wrong in words; pika's exceptions often carry theirs only in their repr."""
    causes = [one for one in _causes(error) if str(one)]
    return f"{type(causes[-1]).__name__}: {causes[-1]}" if causes else repr(error)


def _refused(error: BaseException) -> bool:
    return any(isinstance(one, _REFUSALS) for one in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those it wraps: pika nests them in `exceptions`, `exception` and `args`."""
    yield error
    nested = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    for one in nested:
        if isinstance(one, BaseException):
            yield from _causes(one)
