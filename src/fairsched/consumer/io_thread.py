"""The I/O thread: the connection, a channel per queue, deliveries in and settlements out."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from fairsched.amqp import lending
from fairsched.amqp.backoff import Backoff
from fairsched.amqp.connection import Connection
from fairsched.amqp.errors import describe, is_missing, refusing_stream
from fairsched.amqp.ioloop import Loop
from fairsched.amqp.urls import mask_url
from fairsched.consumer.channel import ChannelCallbacks, ConsumerChannel
from fairsched.consumer.consumer_counts import ConsumerCounts
from fairsched.consumer.declarations import Declarations, wanted_queues
from fairsched.consumer.flush_timer import FlushTimer
from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.handling.retries import first_declarations
from fairsched.consumer.prefetch.control import WindowControl
from fairsched.consumer.prefetch.hold import BackloggedSlots
from fairsched.consumer.prefetch.measure import Measurements
from fairsched.consumer.startup import Startup
from fairsched.delivery._delivery import AckPolicy, HeaderKey, Intake, LentConnection, Settlements
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound

if TYPE_CHECKING:
    from fairsched.amqp.transport import Transport
    from fairsched.consumer.lanes import Lanes
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.delivery._delivery import Counters, Message
    from fairsched.publisher import Publisher

_log = logging.getLogger(__name__)

#: Error message in a child process.
FORKED = (
    "this consumer was started before a fork and belongs to the parent process, which runs its I/O thread. Create "
    "another consumer in the child process"
)

#: How often it is asked whether the consumer can still be used, in seconds, and how long its end may take if not.
_WATCH_PERIOD, _LONGEST_END = 1.0, 5.0
#: For this part of the time of a close, the broker's answers to settlements are awaited.
_AWAITING_PART = 0.6
#: Seconds between two queues that are consumed after connections that did not last, and for all of them at most.
_STAGGER, _LONGEST_STAGGER = 0.01, 2.0
#: Longest time that a worker gives way to the I/O thread, in seconds.
_COURTESY = 0.001


class Unsettled(NamedTuple):
    """The filling of a queue's window: messages that are here and can be settled, of so many at most, and bytes."""

    window: int
    messages: int
    size: int


class Listener:
    """The client, as the I/O thread sees it; every method is called in the I/O thread."""

    def ready(self) -> None:
        """Every queue is being consumed, for the first time."""

    def failed(self, error: BaseException) -> None:
        """Consuming cannot begin, or cannot go on."""

    def intake_closed(self) -> None:
        """No more deliveries will come."""

    def settled(self) -> None:
        """No more deliveries will come, and all that came on a living channel are settled."""

    def orphan(self) -> bool:
        """Whether the consumer cannot be used any more; asked now and then."""
        return False

    def service(self) -> float | None:
        """Return the seconds for which a message occupies the workers, as far as that is known."""
        return None


class IOThread:
    """Runs pika in a thread of its own and moves messages between the broker and the lanes.

    Parameters
    ----------
    settings : ConsumerSettings
        URLs, windows, key and cost.
    lanes : Lanes
        Receives what is delivered.
    counters : Counters
        Shared with the owner.
    listener : Listener
        Told how it begins and ends.
    on_error : callable
        Settles a message whose handler raised.
    publisher : callable or None
        Returns what answers messages.

    Notes
    -----
    Handlers never run in this thread, so they cannot delay heartbeats. `start`, `request_flush`, `give_way`,
    `after`, `reweigh`, `pause`, `stop_intake`, `close`, `round_trip`, `window`, `occupied`, `unsettled`, `is_full`,
    `is_connected`, `since`, `subscribed`, `turned`, `ended` and `last_error` are safe from any thread; everything else
    belongs to the I/O thread. None of them waits for the network except `close`.

    While it waits, it lends the connection to the threads that consume (`LentConnection`).

    However the thread ends, by an error too, it closes its socket, so that the broker has back what is unsettled. It
    refers to its owner weakly (`Listener.orphan`): a consumer that was dropped, or whose event loop was closed, ends.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        lanes: Lanes,
        counters: Counters,
        listener: Listener,
        on_error: Callable[[Message, Exception], None],
        publisher: Callable[[], Publisher] | None,
    ) -> None:
        self.counters = counters
        self.acks = AckPolicy(sum(settings.windows.values()))
        #: What any thread settled and this one is yet to send.
        self.settlements = Settlements(counters, self.acks, self.request_flush)
        self.measurements = Measurements()
        self._settings = settings
        self._listener = listener
        self._loop = Loop()
        self._connection = Connection(
            self._loop,
            settings.urls,
            settings.fast,
            connected=self._on_connected,
            disconnected=self._on_disconnected,
            refused=self._fail,
            closed=self._loop.stop,
            name=settings.options.connection_name,
        )
        self._flush_timer = FlushTimer(self._loop, self.acks, self._channels, self._send)
        self._backlogged = BackloggedSlots(self._loop, settings, self.measurements, lanes, self._channels)
        self._window_control = WindowControl(self._loop, settings, self.measurements, self._channels, listener.service)
        self._intake = Intake(
            lanes, counters, self.acks, key=settings.key, subkey=settings.subkey, cost=settings.cost,
            defer=self._on_first_delivery,
        )  # fmt: skip
        # A key or a price is Python code of the user, as the choice of a lane may be: they run in this thread.
        plain = all(key is None or isinstance(key, HeaderKey) for key in (settings.key, settings.subkey))
        plain = plain and not settings.cost.varies and len(lanes.queues) == 1
        self._lent = LentConnection(self._intake, lanes.queues[0] if plain else None, self._wake)
        self.settlements.lent = self._lent
        lending.lend(self._loop, self._lent, self._may_borrow)
        self._callbacks = ChannelCallbacks(
            filled=self._backlogged.note_fill,
            changed=self._on_channel_change,
            failed=on_error,
            publisher=publisher,
            decode=settings.decode,
        )
        self.consumer_counts = ConsumerCounts(
            self._loop, settings.asked, lambda name: self._current[name].prefetch.consumers
        )
        self.declarations = Declarations(self._loop)
        self._flushed = threading.Event()
        self._current: dict[str, ConsumerChannel] = {}
        #: Queues of which the broker has said that they are streams.
        self._streams: set[str] = set()
        self._backoffs = {name: Backoff() for name in settings.windows}
        #: Queues that were never consumed: that one of them is missing is a mistake, later it is something to wait for.
        self._unconfirmed = set(settings.windows)
        self._cancelling: set[ConsumerChannel] = set()
        #: What is declared on each connection before anything is consumed.
        self._declared = [*wanted_queues(settings.queues), *first_declarations(settings.retries)]
        self._startup = Startup(self._loop, self._channels, self._begin)
        self._stopping = self._intake_closed = self._closing = False
        #: Channels whose settlements are sent, and whose broker has not answered since.
        self._awaiting: set[ConsumerChannel] = set()
        self._launched, self._ended = False, threading.Event()
        #: When the loop was seen to turn last, on the clock of `time.monotonic`.
        self.turned = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="fairsched-io", daemon=True)

    # From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects at once."""
        # An interrupt in the midst of this leaves a thread of which `threading` does not yet say that it is alive.
        self._launched = True
        self.turned = time.monotonic()
        self._thread.start()

    @property
    def last_error(self) -> str | None:
        """Why there was no connection, or a queue was not consumed, the last time."""
        return self._connection.last_error

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection.is_open

    @property
    def since(self) -> float | None:
        """The time when the connection was opened, or else lost, on the clock of `time.time`; None: not yet."""
        return self._connection.since

    def subscribed(self) -> dict[str, bool]:
        """Return for every queue whether it is consumed."""
        current = self._current
        return {name: name in current and current[name].subscribed for name in self._settings.windows}

    def request_flush(self) -> None:
        """Have settlements sent as soon as the I/O thread can; one request at a time."""
        if self.settlements.waiting and not self.settlements.flush_requested:
            self._flushed.clear()
            self.settlements.flush_requested = True
            self._loop.add_callback_threadsafe(self._flush)

    def give_way(self) -> None:
        """Let the I/O thread send what was asked for, waiting a millisecond at most.

        A handler that computes in Python keeps the GIL for a whole switch interval, five milliseconds, while the
        I/O thread needs it several times per exchange with the broker. Without this, local buffers run dry.
        """
        if self.settlements.flush_requested:
            self._flushed.wait(_COURTESY)

    def stop_intake(self, timeout: float) -> None:
        """Cancel every consumer; the listener hears when deliveries have ended, after `timeout` seconds at most."""

        def stop() -> None:
            self._stop_intake()
            if not self._intake_closed:
                self._loop.call_later(timeout, lambda: self._end_unconfirmed(timeout))

        self._lent.withdraw()
        self._loop.add_callback_threadsafe(stop)

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in this thread, after so many seconds."""
        self._loop.add_callback_threadsafe(lambda: self._loop.call_later(seconds, function))

    def reweigh(self, settings: ConsumerSettings) -> None:
        """Give queues the windows that go with other weights."""
        self._loop.add_callback_threadsafe(lambda: self._reweigh(settings))

    def pause(self, queues: frozenset[str]) -> None:
        """Take in nothing of these queues, and again what the others bring."""
        self._loop.add_callback_threadsafe(lambda: self._pause(queues))

    def forked(self) -> None:
        """Let no message of this copy in a child process be settled: the sockets belong to the parent."""
        self.settlements.forked(FORKED)
        for found in list(self._current.values()):
            found.alive = False

    def close(self, timeout: float) -> None:
        """Send what is settled, close the connection and end the thread, waiting `timeout` seconds at most."""
        if not self._launched:
            return
        self._loop.add_callback_threadsafe(lambda: self._close(_AWAITING_PART * timeout))
        if not self._ended.wait(timeout):
            _log.warning(
                "the broker did not confirm the close within %.3g s; leaving without its answer. "
                "What was settled last may come again", timeout,
            )  # fmt: skip
            self._loop.add_callback_threadsafe(self._loop.stop)
        if self._ended.wait(1.0):
            self._thread.join(1.0)

    def round_trip(self) -> float | None:
        """Return the round trip from a settlement to its refill, in seconds, as far as it is known."""
        return self.measurements.round_trip()

    def windows(self) -> dict[str, int]:
        """Return for every queue that is consumed the unsettled messages that its consumer may have."""
        return {name: found.window for name, found in list(self._current.items())}

    def occupied(self) -> dict[str, Unsettled]:
        """Return for every queue that is consumed what of it is here and can still be settled."""
        return {
            name: Unsettled(found.window, found.ledger.outstanding, found.ledger.size)
            if found.alive
            else Unsettled(found.window, 0, 0)
            for name, found in list(self._current.items())
        }

    def window(self) -> int:
        """Return the unsettled messages that all present consumers may have."""
        return sum(self.windows().values())

    def unsettled(self) -> int:
        """Return the number of messages that are here and can still be settled."""
        return sum(found.ledger.outstanding for found in list(self._current.values()) if found.alive)

    def is_full(self) -> bool:
        """Whether the broker sends nothing before more is settled: every window is full, and every channel stands."""
        return all(found.alive and found.ledger.outstanding >= found.window for found in list(self._current.values()))

    @property
    def ended(self) -> bool:
        """Whether the thread is done."""
        return self._ended.is_set()

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._watch()
            self._connection.connect()
            self._loop.start()
        except BaseException as error:  # SystemExit of a key function too, which would end a thread without a word
            failure = error
        try:
            self._finish(failure)
        finally:
            self._loop.close()
            self._ended.set()

    def _finish(self, failure: BaseException | None) -> None:
        self._connection.drop()
        self._stopping = self._intake_closed = True
        if failure is not None:
            _log.critical("the I/O thread ended by %s", described(failure), exc_info=shown(failure))
            self._listener.failed(failure)
        self._forget()
        self._listener.intake_closed()
        self._listener.settled()

    def _reweigh(self, settings: ConsumerSettings) -> None:
        if not self._stopping:
            self._settings = settings
            self._backlogged.reweigh(settings)
            self._window_control.reweigh(settings)

    def _pause(self, queues: frozenset[str]) -> None:
        if not self._stopping:
            self._window_control.pause(queues)

    def _wake(self) -> None:
        self._loop.add_callback_threadsafe(_nothing)

    def _may_borrow(self) -> tuple[bool, bool]:
        """Whether others may send settlements while this thread waits, and whether they may read."""
        transport = self._connection.transport
        if self._stopping or transport is None or not transport.flowing:
            return False, False
        return True, transport.whole and self._flush_timer.quick

    def _watch(self) -> None:
        """End if the consumer cannot be used any more."""
        self.turned = time.monotonic()
        if self._listener.orphan():
            self._close(_AWAITING_PART * _LONGEST_END)
            self._loop.call_later(_LONGEST_END, self._loop.stop)
        else:
            self._loop.call_later(_WATCH_PERIOD, self._watch)

    def _channels(self) -> Iterator[ConsumerChannel]:
        return iter(self._current.values())

    def _flush(self) -> None:
        """Send what is settled, because that was asked for."""
        if self._send() and self.acks.resting:
            self._flush_timer.wake()

    def _send(self) -> bool:
        """Send what is settled; say whether there was anything."""
        self.settlements.flush_requested = False
        self.acks.sending()
        found = self.settlements.take_unsent()
        transport = self._connection.transport
        if transport is not None:
            with transport:
                for channel in found:
                    channel.flush()
        self._flushed.set()
        self._look_if_settled()
        return bool(found)

    def _look_if_settled(self) -> None:
        if self._intake_closed and self.unsettled() == 0:
            self._listener.settled()

    # The connection ----------------------------------------------------------------------------------------------

    def _on_connected(self, transport: Transport, again: bool) -> None:
        """Open a channel for every queue."""
        if again:
            self.counters.add("reconnects")
        limit, queues = transport.params.channel_max, len(self._settings.windows)
        if limit and (wanted := queues + bool(self._settings.asked) + bool(self._declared)) > limit:
            error = (
                f"{queues} queues need {wanted} channels, but {self._connection.address} allows {limit} on one "
                "connection (channel_max); consume fewer queues per consumer or raise the limit"
            )
            self._fail(ConfigurationError(error))
            return
        transport.after_read = self._queue_what_was_read
        lending.connect(self._loop, self._lent, transport)
        self._window_control.connected()
        self.declarations.connected(transport)
        if self._declared:
            self.declarations.declare_all(self._declared, lambda error: self._on_declared(transport, error))
        else:
            self._open_channels(transport)
        self.consumer_counts.connected(transport)

    def _on_declared(self, transport: Transport, error: BaseException | None) -> None:
        """Consume, when what was to be declared is; the first time, a refusal is an error."""
        if self._connection.transport is not transport:
            return
        if error is not None and not self._startup.done:
            self._fail(ConfigurationError(f"{error} ({self._connection.address})"))
            return
        if error is not None:
            _log.error("%s; it is consumed all the same", error)
        self._open_channels(transport)

    def _open_channels(self, transport: Transport) -> None:
        names = list(self._settings.windows)
        if self._window_control.is_careful:
            # One after the other, or the first messages of all would fill a slow line; not always the same first.
            random.shuffle(names)
            pause = min(_STAGGER, _LONGEST_STAGGER / len(names))
        else:
            pause = 0.0
        for number, name in enumerate(names):
            self._open_channel(transport, name, number * pause)

    def _on_disconnected(self, error: BaseException) -> None:
        """Learn from the error what there is to learn."""
        stream = refusing_stream(error)
        if stream in self._settings.queues:
            _log.error(
                "queue %r is a stream, whose messages can only be acknowledged; from now on they are, also if their "
                "handler fails. Declare it as Queue(%r, prefetch=N, offset=...) to begin so", stream, stream,
            )  # fmt: skip
            self._streams.add(stream)
        self._forget()
        if self._closing:
            self._close_connection()

    def _forget(self) -> None:
        """Forget what was delivered: the broker delivers it again."""
        answered = any(found.answered for found in self._current.values())
        if answered:
            self._connection.useful()
        self._window_control.disconnected(answered)
        for found in self._current.values():
            found.abandon()
        self.consumer_counts.disconnected()
        self.declarations.disconnected()
        self._startup.hurry()
        if self._stopping:
            self._end_intake()
            self._look_if_settled()

    def _on_first_delivery(self) -> None:
        """Queue what comes now when all of it is here."""
        transport = self._connection.transport
        if transport is None or not transport.reading:  # it takes pika's way
            self._loop.call_later(0, self._intake.drain)
        self._flush_timer.wake()

    def _queue_what_was_read(self) -> None:
        """Queue what a read brought. pika would take a failure for one of the socket, and connect again."""
        try:
            self._intake.drain()
        except Exception as error:
            self._loop.call_later(0, functools.partial(_raise, error))

    # Channels ----------------------------------------------------------------------------------------------------

    def _open_channel(self, transport: Transport, name: str, delay: float = 0.0) -> None:
        found = self._current[name] = ConsumerChannel(
            name,
            self._window_control.window(name),
            self.settlements,
            self._intake,
            self._callbacks,
            self.measurements,
            self._settings.queues[name],
            name in self._streams,
        )

        def open_it() -> None:
            if found.alive and transport.is_open and not (delay and self._stopping):
                transport.channel(on_open_callback=found.opened)

        if delay:
            self._loop.call_later(delay, open_it)
        else:
            open_it()

    def _on_channel_change(self, found: ConsumerChannel, reason: BaseException | None) -> None:
        if reason is not None:
            self._on_channel_lost(found, reason)
        elif found.consuming:
            self._on_consuming(found)
        elif found.subscribed:
            # Paused. If it turns out to be missing when it is resumed, that is something to wait for.
            self._unconfirmed.discard(found.queue)
            self._startup.subscribed()
        else:
            self._on_cancelled(found)

    def _on_consuming(self, found: ConsumerChannel) -> None:
        """Note that the broker confirmed a consumer."""
        self._backoffs[found.queue].succeeded()
        self._unconfirmed.discard(found.queue)
        if self._stopping:
            self._cancel(found)
        else:
            _log.info("consuming queue %r, prefetch %d", found.queue, self._settings.windows[found.queue])
            self._startup.subscribed()

    def _begin(self) -> None:
        self._window_control.start()
        self._listener.ready()

    def _on_cancelled(self, found: ConsumerChannel) -> None:
        """Consume again a queue whose consumer the broker cancelled."""
        if self._stopping:
            self._cancel_done(found)
        else:
            self._connection.last_error = f"queue {found.queue!r}: the broker cancelled the consumer"
            self._loop.call_later(self._backoffs[found.queue].failed(), found.consume)

    def _on_channel_lost(self, found: ConsumerChannel, reason: BaseException) -> None:
        """Open another channel for a queue whose channel the broker closed."""
        if self._connection.transport is None:
            return
        if self._stopping:
            self._cancel_done(found)
            self._look_if_settled()
            self._on_settlements_taken(found)
        elif found.queue in self._unconfirmed:
            kind = QueueNotFound if is_missing(reason) else ConnectionFailed
            what = "does not exist" if is_missing(reason) else "cannot be consumed"
            self._fail(
                kind(f"queue {found.queue!r} {what} on {self._connection.address}: {mask_url(describe(reason))}")
            )
        else:
            delay = self._backoffs[found.queue].failed()
            self._connection.last_error = f"queue {found.queue!r}: {mask_url(describe(reason))}"
            _log.warning("channel of queue %r lost, another in %.2f s: %s", found.queue, delay, describe(reason))
            self._loop.call_later(delay, lambda: self._reopen(found))

    def _reopen(self, lost: ConsumerChannel) -> None:
        transport = self._connection.transport
        # A new connection meanwhile has opened every channel itself.
        if transport is not None and not self._stopping and self._current[lost.queue] is lost:
            self._window_control.renew(lost.queue)
            wanted = wanted_queues({lost.queue: self._settings.queues[lost.queue]})
            if wanted:  # it may have been deleted
                self.declarations.declare_all(wanted, lambda error: self._on_declared_again(transport, lost, error))
            else:
                self._open_channel(transport, lost.queue)

    def _on_declared_again(self, transport: Transport, lost: ConsumerChannel, error: BaseException | None) -> None:
        if error is not None:
            _log.error("%s; it is consumed all the same", error)
        if self._connection.transport is transport and not self._stopping and self._current[lost.queue] is lost:
            self._open_channel(transport, lost.queue)

    # The end -----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        self._listener.failed(error)
        self._close(_AWAITING_PART * _LONGEST_END)

    def _stop_intake(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._connection.give_up()
        for found in list(self._current.values()):
            self._cancel(found)
        if not self._cancelling:
            self._end_intake()

    def _cancel(self, found: ConsumerChannel) -> None:
        if found.cancel(lambda: self._cancel_done(found)):
            self._cancelling.add(found)

    def _cancel_done(self, found: ConsumerChannel) -> None:
        self._cancelling.discard(found)
        if not self._cancelling:
            self._end_intake()

    def _end_intake(self) -> None:
        if not self._intake_closed:
            self._intake_closed = True
            self._intake.drain()
            _log.info("deliveries have ended; %d messages are here and unsettled", self.unsettled())
            self._listener.intake_closed()
            self._look_if_settled()
            if self._closing:
                self._await_settlements()

    def _end_unconfirmed(self, waited: float) -> None:
        if not self._intake_closed:
            _log.warning(
                "the broker did not confirm within %.3g s that deliveries ended; what still comes returns to its queue",
                waited,
            )
            self._end_intake()

    def _close(self, longest: float) -> None:
        """End deliveries, send what is settled, and close when the broker has taken it, or after `longest` seconds."""
        if self._closing:
            return
        self._closing = True
        self._loop.call_later(longest, self._close_connection)
        if self._intake_closed:
            self._await_settlements()
        else:
            self._stop_intake()
            self._flush()

    def _await_settlements(self) -> None:
        self._flush()
        for found in list(self._current.values()):
            self._await_settlements_of(found, found.settling_time())
        if not self._awaiting:
            self._close_connection()

    def _await_settlements_of(self, found: ConsumerChannel, seconds: float) -> None:
        """Await an answer to the settlements of a channel, and unless `seconds` is 0 another after that time."""

        def answered() -> None:
            if seconds:
                self._loop.call_later(seconds, lambda: self._await_settlements_of(found, 0.0))
            else:
                self._on_settlements_taken(found)

        if found.await_settlements(answered):
            self._awaiting.add(found)
        else:
            self._on_settlements_taken(found)

    def _on_settlements_taken(self, found: ConsumerChannel) -> None:
        """Close the connection if the broker has taken the settlements of all channels, or closed these."""
        if found in self._awaiting:
            self._awaiting.discard(found)
            if not self._awaiting:
                self._close_connection()

    def _close_connection(self) -> None:
        self._flush()
        # What still comes is dropped by pika, whole: the broker takes it back with the channel.
        if (transport := self._connection.transport) is not None:
            transport.sinks.clear()
        self._connection.close()


def _nothing() -> None:
    pass


def _raise(error: Exception) -> None:
    raise error
