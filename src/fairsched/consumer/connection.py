"""The I/O thread: the connection, a channel per queue, deliveries in and settlements out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pika.adapters.select_connection import IOLoop

from fairsched.consumer.backoff import Backoff
from fairsched.consumer.census import Census
from fairsched.consumer.gathering import Gathering
from fairsched.consumer.gauge import Gauge
from fairsched.consumer.holds import Holds
from fairsched.consumer.intake import Intake
from fairsched.consumer.link import Link, describe
from fairsched.consumer.pace import Pace
from fairsched.consumer.regulator import Regulator
from fairsched.consumer.subscription import Subscription, is_missing
from fairsched.consumer.urls import mask_url
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound

if TYPE_CHECKING:
    from fairsched.consumer.counters import Counters
    from fairsched.consumer.lanes import Lanes
    from fairsched.consumer.listener import Listener
    from fairsched.consumer.message import Message
    from fairsched.consumer.settings import Settings
    from fairsched.consumer.transport import Sink, Transport

_log = logging.getLogger(__name__)

#: Longest time that a worker gives way to the I/O thread, in seconds.
_COURTESY = 0.001


class Pump:
    """Pump(settings, lanes, counters, listener, on_error)
    --

    Runs pika in a thread of its own and moves messages between the broker and the lanes.

    Parameters
    ----------
    settings : Settings
        URLs, windows, key and cost.
    lanes : Lanes
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
    `stop_intake`, `close`, `round_trip` and `last_error` are safe from any thread; everything else belongs to the
    I/O thread. None of them waits for the network except `close`.
    """

    def __init__(
        self,
        settings: Settings,
        lanes: Lanes,
        counters: Counters,
        listener: Listener,
        on_error: Callable[[Message, BaseException], None],
    ) -> None:
        self.counters = counters
        self.on_error = on_error
        #: Where deliveries go, per channel of the present connection.
        self.sinks: dict[int, Sink] = {}
        #: Subscriptions with settlements not yet sent; any thread adds, the I/O thread takes out.
        self.unsent: set[Subscription] = set()
        self.flush_requested = False
        self.gauge = Gauge()
        self._settings = settings
        self._listener = listener
        self._loop = IOLoop()
        self._link = Link(self._loop, settings.urls, self)
        self._pace = Pace(self._loop, self._subscriptions, self._flush)
        self._holds = Holds(self._loop, settings, self.gauge, lanes, self._subscriptions)
        self._regulator = Regulator(self._loop, settings, self.gauge, self._subscriptions)
        self.intake = Intake(lanes, counters, key=settings.key, cost=settings.cost, defer=self._pace.defer)
        self.note_fill = self._holds.note_fill
        self.census = Census(self._loop, settings.asked, lambda name: self._current[name].ladder.consumers)
        self._flushed = threading.Event()
        self._current: dict[str, Subscription] = {}
        self._backoffs = {name: Backoff() for name in settings.windows}
        self._cancelling: set[Subscription] = set()
        self._gathering = Gathering(self._loop, self._subscriptions, self._begin)
        self._stopping = self._intake_closed = False
        self._launched, self._ended = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="fairsched-io", daemon=True)

    # From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects at once."""
        # An interrupt in the midst of this leaves a thread of which `threading` does not yet say that it is alive.
        self._launched = True
        self._thread.start()

    @property
    def last_error(self) -> str | None:
        """Why there was no connection, the last time there was none."""
        return self._link.last_error

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
            self._flushed.wait(_COURTESY)

    def stop_intake(self) -> None:
        """Cancel every consumer; the listener hears when deliveries have ended."""
        self._loop.add_callback_threadsafe(self._stop_intake)

    def close(self, timeout: float) -> None:
        """Send what is settled, close the connection and end the thread, waiting `timeout` seconds at most."""
        if not self._launched:
            return
        self._loop.add_callback_threadsafe(self._close)
        if not self._ended.wait(timeout):
            _log.warning("the broker did not answer the close within %g s; leaving without its answer", timeout)
            self._loop.add_callback_threadsafe(self._loop.stop)
        if self._ended.wait(1.0):
            self._thread.join(1.0)

    def round_trip(self) -> float | None:
        """Return the round trip from a settlement to its refill, in seconds, as far as it is known."""
        return self.gauge.round_trip()

    def window(self) -> int:
        """Return the unsettled messages that all present consumers may have."""
        return sum(found.window for found in list(self._current.values()))

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._link.connect()
            self._loop.start()
        except Exception as error:
            _log.critical("the I/O thread failed", exc_info=True)
            self._listener.failed(error)
        finally:
            try:
                self.link_down()
                self._end_intake()
                self._loop.close()
            finally:
                self._ended.set()

    def _subscriptions(self) -> Iterator[Subscription]:
        return iter(self._current.values())

    def _flush(self) -> None:
        self.flush_requested = False
        connection = self._link.connection
        if connection is None:
            self.unsent.clear()
        else:
            with connection:
                while self.unsent:
                    self.unsent.pop().flush()
        self._flushed.set()

    # The connection ----------------------------------------------------------------------------------------------

    def link_up(self, connection: Transport, again: bool) -> None:
        """Open a channel for every queue."""
        if again:
            self.counters.add("reconnects")
        limit, queues = connection.params.channel_max, len(self._settings.windows)
        if limit and (wanted := queues + bool(self._settings.asked)) > limit:
            error = (
                f"{queues} queues need {wanted} channels, but {self._link.address} allows {limit} on one "
                "connection (channel_max); consume fewer queues per consumer or raise the limit"
            )
            self._fail(ConfigurationError(error))
            return
        self.sinks = connection.sinks
        for name in self._settings.windows:
            self._open_channel(connection, name)
        self.census.link_up(connection)

    def link_down(self) -> None:
        """Forget what was delivered: the broker delivers it again."""
        for found in self._current.values():
            found.abandon()
        self.census.link_down()
        if self._stopping:
            self._end_intake()

    def link_refused(self, error: ConnectionFailed) -> None:
        """Give up."""
        self._fail(error)

    def link_closed(self) -> None:
        """End the thread."""
        self._loop.stop()

    # Subscriptions -----------------------------------------------------------------------------------------------

    def _open_channel(self, connection: Transport, name: str) -> None:
        found = self._current[name] = Subscription(self, name, self._regulator.window(name))
        connection.channel(on_open_callback=found.opened)

    def subscribed(self, found: Subscription) -> None:
        """Note that the broker confirmed a consumer."""
        self._backoffs[found.queue].succeeded()
        if self._stopping:
            self._cancel(found)
        else:
            self._gathering.subscribed()

    def _begin(self) -> None:
        self._regulator.start()
        self._listener.ready()

    def cancelled(self, found: Subscription) -> None:
        """Consume again, on the same channel, a queue whose consumer the broker cancelled."""
        if self._stopping:
            self._cancel_done(found)
        else:
            self._loop.call_later(self._backoffs[found.queue].failed(), found.consume)

    def channel_lost(self, found: Subscription, reason: BaseException) -> None:
        """Open another channel for a queue whose channel the broker closed."""
        if self._link.connection is None:
            return
        if self._stopping:
            self._cancel_done(found)
        elif not self._gathering.done:
            kind = QueueNotFound if is_missing(reason) else ConnectionFailed
            what = "does not exist" if is_missing(reason) else "cannot be consumed"
            self._fail(kind(f"queue {found.queue!r} {what} on {self._link.address}: {mask_url(describe(reason))}"))
        else:
            delay = self._backoffs[found.queue].failed()
            _log.warning("channel of queue %r lost, another in %.2f s: %s", found.queue, delay, describe(reason))
            self._loop.call_later(delay, lambda: self._reopen(found))

    def _reopen(self, lost: Subscription) -> None:
        connection = self._link.connection
        # A new connection meanwhile has opened every channel itself.
        if connection is not None and not self._stopping and self._current[lost.queue] is lost:
            self._open_channel(connection, lost.queue)

    # The end -----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        self._listener.failed(error)
        self._close()

    def _stop_intake(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._link.give_up()
        for found in list(self._current.values()):
            self._cancel(found)
        if not self._cancelling:
            self._end_intake()

    def _cancel(self, found: Subscription) -> None:
        if found.cancel(lambda: self._cancel_done(found)):
            self._cancelling.add(found)

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
        self._stop_intake()
        self._flush()
        # What still comes is dropped by pika, whole: the broker takes it back with the channel.
        self.sinks.clear()
        self._link.close()
