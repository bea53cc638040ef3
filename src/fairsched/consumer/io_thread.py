"""The I/O thread: the connections, a channel per queue, deliveries in and settlements out."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from fairsched.amqp.connection_thread import ConnectionEvents, ConnectionThread
from fairsched.amqp.errors import refusing_stream
from fairsched.amqp.flag import Flag
from fairsched.amqp.polling import lending
from fairsched.amqp.polling.pacing import Pace
from fairsched.consumer.changing.queue_changes import ChangeEvents, QueueChanges
from fairsched.consumer.channel import ChannelCallbacks, ConsumerChannel
from fairsched.consumer.channels import ConsumerChannels, Parts
from fairsched.consumer.connections import Connections, QueueConnection
from fairsched.consumer.consumer_counts import ConsumerCounts
from fairsched.consumer.declarations import Declaration, LayoutDeclaration, QueueLocked, lock, wanted_queues
from fairsched.consumer.flush_timer import FlushTimer
from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.handling.retries import first_declarations
from fairsched.consumer.prefetch.control import WindowControl
from fairsched.consumer.prefetch.hold import BackloggedSlots
from fairsched.consumer.prefetch.measure import Measurements
from fairsched.consumer.startup import Startup
from fairsched.consumer.whole import WholeLeaving
from fairsched.delivery._ackpolicy import AckPolicy
from fairsched.delivery._delivery import HeaderKey, Intake, LentConnection, MessagePriority, Settlements
from fairsched.errors import ConfigurationError, FairschedError

if TYPE_CHECKING:
    from fairsched.amqp.connection import Connection
    from fairsched.amqp.transport import Transport
    from fairsched.consumer.changing.queue_changes import Done
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.worker_queues import WorkerQueues
    from fairsched.delivery._counters import Counters
    from fairsched.delivery._delivery import Message
    from fairsched.publisher import Publisher

_log = logging.getLogger(__name__)

#: Error message in a child process.
FORKED = (
    "this consumer was started before a fork and belongs to the parent process, which runs its I/O thread. Create "
    "another consumer in the child process"
)

#: For this part of the time of a close, the broker's answers to settlements are awaited.
_AWAITING_PART = 0.6
#: Seconds until a connection without the right to consume asks for it again.
_LOCK_PERIOD = 1.0
#: Longest time that a worker gives way to the I/O thread, in seconds.
_COURTESY = 0.001


class ConsumerEvents(ConnectionEvents, ChangeEvents):
    """Events of a consumer's connection; the I/O thread calls every method."""

    def intake_closed(self) -> None:
        """No more deliveries will come."""

    def settled(self) -> None:
        """No more deliveries will come, and all that came on a living channel are settled."""

    def look(self) -> None:
        """Do what is to be done about once a second."""

    def service(self) -> float | None:
        """Return the seconds for which a message occupies the workers, as far as that is known."""
        return None


class IOThread(ConnectionThread):
    """Moves messages between the broker and the worker queues.

    Parameters
    ----------
    settings : ConsumerSettings
        URLs, windows, key and cost.
    worker_queues : WorkerQueues
        Receives what is delivered.
    counters : Counters
        Shared with the owner.
    owner : ConsumerEvents
        Told how it begins and ends.
    on_error : callable
        Settles a message whose handler raised.
    publisher : callable or None
        Returns what answers messages.

    Notes
    -----
    Handlers never run in this thread, so they cannot delay heartbeats. `request_flush`, `give_way`, `reweigh`,
    `add`, `remove`, `pause`, `stop_intake`, `round_trip` and `turned` are safe from any thread, besides what
    `ConnectionThread` and `ConsumerChannels` name; everything else belongs to the I/O thread. None of them waits for
    the network except `close`.

    While it waits, it lends the first connection to the threads that consume (`LentConnection`). What is settled on
    others, it sends itself.
    """

    _owner: ConsumerEvents

    def __init__(
        self,
        settings: ConsumerSettings,
        worker_queues: WorkerQueues,
        counters: Counters,
        owner: ConsumerEvents,
        on_error: Callable[[Message, Exception], None],
        publisher: Callable[[], Publisher] | None,
    ) -> None:
        super().__init__(
            settings.urls, owner, "fairsched-io", fast=settings.fast, connection_name=settings.options.connection_name
        )
        self._settings = settings
        #: What was brought last, by any thread, and is taken with the first callback that was asked for since.
        self._newest = settings
        self.counters = counters
        self.acks = AckPolicy(sum(settings.windows.values()))
        self.measurements = Measurements()
        self.connections = Connections(self._loop, self._connection, settings.asks, self._another_connection)
        self.channels = channels = ConsumerChannels(settings)
        self._backlogged = BackloggedSlots(
            self._loop, settings, self.measurements, worker_queues, channels.by_queue.get
        )
        self._window_control = WindowControl(self._loop, settings, self.measurements, channels.__iter__, owner.service)
        self._intake = Intake(
            worker_queues, counters, self.acks, key=settings.key, subkey=settings.subkey, cost=settings.cost,
            defer=self._on_first_delivery, band=settings.band,
        )  # fmt: skip
        # A key or a price is Python code of the user, as the choice of a worker queue may be: they run in this thread.
        plain = all(key is None or isinstance(key, HeaderKey) for key in (settings.key, settings.subkey))
        plain = plain and (settings.band is None or isinstance(settings.band, MessagePriority))
        plain = plain and not settings.cost.varies and len(worker_queues.queues) == 1
        self._lent = LentConnection(self._intake, worker_queues.queues[0] if plain else None, self._wake)
        #: What any thread settled and this one is yet to send.
        self.settlements = Settlements(counters, self.acks, self._lent, self.request_flush)
        #: How often this thread looks at the socket while many messages are here.
        self.pace = Pace(self._progress)
        self._flush_timer = FlushTimer(self._loop, self.acks, self.settlements, self._send, self.pace)
        lending.lend(self._loop, self._lent, self._may_borrow, self.pace)
        self.consumer_counts = ConsumerCounts(self._loop, settings.asked, channels.consumers)
        #: For what is declared beside the queues that are consumed.
        self.declarations = self.connections.first.declarations
        self._flushed = Flag()
        self._startup = Startup(self._loop, channels.__iter__, lambda: channels.is_expecting, self._begin)
        self._stopping = self._intake_closed = self._closing = self._settling = False
        #: Channels whose settlements are sent, and whose broker has not answered since.
        self._awaiting: set[ConsumerChannel] = set()
        #: When the loop was seen to turn last, on the clock of `time.monotonic`.
        self.turned = time.monotonic()
        self._whole = WholeLeaving(self._loop, self._put_back)
        self._changes = QueueChanges(
            self._loop, self.connections, channels, self._startup, settings, owner, self._end_queue, self._flush_only
        )
        channels.work_with(self._parts(on_error, publisher))
        self.connections.place(settings.windows)

    def _parts(
        self, on_error: Callable[[Message, Exception], None], publisher: Callable[[], Publisher] | None
    ) -> Parts:
        callbacks = ChannelCallbacks(
            filled=self._backlogged.note_fill,
            changed=self.channels.changed,
            failed=on_error,
            leave=self._whole.begin,
            publisher=publisher,
            decode=self._settings.decode,
        )
        return Parts(
            loop=self._loop,
            connections=self.connections,
            window_control=self._window_control,
            startup=self._startup,
            settlements=self.settlements,
            measurements=self.measurements,
            callbacks=callbacks,
            failed=self._fail,
            cancelled=self._end_intake,
            lost=self._on_channel_lost,
            whole=self._whole,
            changes=self._changes,
        )

    # From any thread ---------------------------------------------------------------------------------------------

    @property
    def last_error(self) -> str | None:
        """The last reason why there was no connection, or why one was of no use."""
        return self.connections.last_error

    @property
    def is_connected(self) -> bool:
        """Whether every connection is open."""
        return self.connections.is_open

    @property
    def since(self) -> float | None:
        """The time since when all connections are open, or one is not (`time.time`); None: not all have been open."""
        return self.connections.since

    def start(self) -> None:
        """Start the thread; it connects at once."""
        self.turned = time.monotonic()
        super().start()

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
        """Cancel every consumer; the owner hears when deliveries have ended, after `timeout` seconds at most."""

        def stop() -> None:
            self._stop_intake()
            if not self._intake_closed:
                self._loop.call_later(timeout, lambda: self._end_unconfirmed(timeout))

        self._lent.withdraw()
        self._loop.add_callback_threadsafe(stop)

    def leave(self) -> None:
        """Send what is settled and close the connection, without cancelling the consumers first.

        A cancelled consumer lets the next exclusive one have messages that are newer than those still unsettled here.
        If the connection ends instead, the broker first takes these back.
        """

        def leave() -> None:
            if not self._closing:
                self._closing = True
                self._await_settlements()

        self._lent.withdraw()
        self._loop.add_callback_threadsafe(leave)

    def reweigh(self, settings: ConsumerSettings) -> None:
        """Give queues the windows that go with other weights."""
        self._newest = settings
        self._loop.add_callback_threadsafe(self._reweigh)

    def add(self, settings: ConsumerSettings, wanted: Mapping[str, Done]) -> None:
        """Consume more queues, which these settings have; each is told when it is consumed, or why it cannot be."""

        def add() -> None:
            self._take()
            self._changes.add(wanted)

        self._newest = settings
        self._loop.add_callback_threadsafe(add)

    def remove(self, queue: str, done: Done, at_once: bool = False) -> None:
        """Stop consuming a queue; `done` is called when nothing of it is here any more."""
        self._loop.add_callback_threadsafe(lambda: self._changes.remove(queue, done, at_once))

    def pause(self, queues: frozenset[str]) -> None:
        """Take in nothing of these queues, and again what the others bring."""
        self._loop.add_callback_threadsafe(lambda: self._pause(queues))

    def forked(self) -> None:
        """Let no message of this copy in a child process be settled: the sockets belong to the parent."""
        self.settlements.forked(FORKED)
        self.channels.forked()

    def round_trip(self) -> float | None:
        """Return the round trip from a settlement to its refill, in seconds, as far as it is known."""
        return self.measurements.round_trip()

    # The thread --------------------------------------------------------------------------------------------------

    def _finish(self, failure: BaseException | None) -> None:
        self._stopping = self._intake_closed = True
        self._changes.stop()
        if failure is not None:
            _log.critical("the I/O thread ended by %s", described(failure), exc_info=shown(failure))
            self._owner.failed(failure)
        for one in self.connections:
            self._forget(one)
        self._owner.intake_closed()
        self._owner.settled()

    def _after_end(self) -> None:
        self._owner.changes_ended()

    def _on_late(self, waited: float) -> None:
        _log.warning(
            "the broker did not confirm the close within %.3g s; leaving without its answer. "
            "What was settled last may come again", waited,
        )  # fmt: skip

    def take(self, settings: ConsumerSettings) -> None:
        """Take settings from which queues were removed, at once: what happens next must not consume these again.

        The settings may also have queues that `add` is about to add.
        """
        self._newest = settings
        self._take()

    def _reweigh(self) -> None:
        if not self._stopping:
            self._take()
            self._window_control.reweigh(self._settings)

    def _take(self) -> None:
        settings = self._newest
        if settings is self._settings:
            return
        self._settings = settings
        self._changes.take(settings)
        self.channels.reweigh(settings)
        self._backlogged.reweigh(settings)
        self._window_control.take(settings)
        self.consumer_counts.take(settings.asked)

    def _end_queue(self, queue: str) -> None:
        """Queue what came of a queue of which no more will come, and hold it no longer."""
        self._intake.drain()
        self._backlogged.forget(queue)

    def _put_back(self, queues: Collection[str]) -> None:
        """Leave to the broker what waits of queues that have a single active consumer."""
        for queue in queues:
            self._end_queue(queue)
        self._owner.return_messages(queues)

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

    def _progress(self) -> tuple[int, int]:
        return self.counters.snapshot()["received"], self.channels.unsettled()

    def _look(self) -> None:
        self.turned = time.monotonic()
        self._owner.look()

    def _flush(self) -> None:
        """Send what is settled, because that was asked for."""
        if self._send() and self.acks.resting:
            self._flush_timer.wake()

    def _flush_only(self) -> None:
        """Send what is settled, without a look at all the queues that are being left."""
        if self._send_only() and self.acks.resting:
            self._flush_timer.wake()

    def _send(self) -> bool:
        """Send what is settled; say whether there was anything."""
        found = self._send_only()
        self._look_if_settled()
        return found

    def _send_only(self) -> bool:
        self.settlements.flush_requested = False
        self.acks.sending()
        found = self.settlements.take_unsent()
        with self.connections.holding():
            for channel in found:
                channel.flush()
        self._flushed.set()
        return bool(found)

    def _look_if_settled(self) -> None:
        self._whole.look()
        if self._changes.any_leaving:
            self._changes.look()
        if self._intake_closed and self.channels.unsettled() == 0:
            self._owner.settled()

    # The connections ---------------------------------------------------------------------------------------------

    def _another_connection(self, one: QueueConnection) -> Connection:
        """Return one more connection, which is not open yet."""
        return self._new_connection(
            connected=functools.partial(self._on_opened, one),
            disconnected=functools.partial(self._on_lost, one),
            refused=functools.partial(self._on_refused, one),
            closed=functools.partial(self._on_one_closed, one),
        )

    def _on_connected(self, transport: Transport, again: bool) -> None:
        self._on_opened(self.connections.first, transport, again)

    def _on_disconnected(self, error: BaseException) -> None:
        self._on_lost(self.connections.first, error)

    def _on_closed(self) -> None:
        self._on_one_closed(self.connections.first)

    def _drop(self) -> None:
        self.connections.drop()

    def _on_opened(self, one: QueueConnection, transport: Transport, again: bool) -> None:
        """Consume the queues of a connection that was opened, and those for which it has no channel on others."""
        if again:
            self.counters.add("reconnects")
        try:
            moved = self.connections.divide(one, transport.params.channel_max)
        except ConfigurationError as error:
            self._fail(error)
            return
        transport.after_read = self._queue_what_was_read
        self._window_control.connected(one, one.queues)
        one.declarations.connected(transport)
        if one is self.connections.first:
            lending.connect(self._loop, self._lent, transport)
            self.consumer_counts.connected(transport)
        self._consume(one, list(one.queues))
        for other, queues in moved.items():
            self._consume(other, queues)

    def _consume(self, one: QueueConnection, queues: Collection[str]) -> None:
        """Declare what is to be declared of queues, then open a channel for each, if their connection is open."""
        transport = one.transport
        if transport is None:
            return
        names = [name for name in queues if not self._changes.is_changing(name)]
        wanted = set(names)
        retries = {name: self._settings.retries[name] for name in names if name in self._settings.retries}
        delayed = self._owner.delayed_retries(names, transport.server_properties)
        declared: list[Declaration | LayoutDeclaration] = [
            *([] if self._settings.lock is None else [lock(self._settings.lock)]),
            *(LayoutDeclaration(lanes) for lanes in self._settings.lanes if not wanted.isdisjoint(lanes.bucket_names)),
            *wanted_queues({name: self._settings.queues[name] for name in names}),
            *first_declarations(retries, delayed),
        ]
        if declared:
            one.declarations.declare_all(declared, lambda error: self._on_declared(one, transport, names, error))
        else:
            self.channels.open_all(transport, names)
        self._changes.connected(queues)

    def _on_declared(
        self, one: QueueConnection, transport: Transport, names: Collection[str], error: BaseException | None
    ) -> None:
        """Consume, when what was to be declared is; the first time, a refusal is an error."""
        if one.transport is not transport:
            return
        if isinstance(error, QueueLocked):
            self._on_locked(one, transport, names, error)
            return
        if error is not None and not self._startup.done:
            self._fail(ConfigurationError(f"{error} ({one.connection.address})"))
            return
        if error is not None:
            _log.error("%s; consuming anyway", error)
        self.channels.open_all(transport, names)

    def _on_locked(
        self, one: QueueConnection, transport: Transport, names: Collection[str], error: QueueLocked
    ) -> None:
        """Consume when the other connection has ended; the first time, this is for the owner to decide."""
        if not self._startup.done:
            self._fail(error)
            return

        def again() -> None:
            if one.transport is transport and not self._stopping:
                self._consume(one, names)

        _log.debug("%s; trying again in %g s", error, _LOCK_PERIOD)
        self._loop.call_later(_LOCK_PERIOD, again)

    def _on_refused(self, one: QueueConnection, error: FairschedError) -> None:
        """Refuse the queues for which one more connection was to be opened; end, if some were consumed before."""
        queues = list(one.queues)
        self.connections.discard(one)
        if not self._changes.refused_all(queues, error):
            self._fail(error)

    def _on_one_closed(self, one: QueueConnection) -> None:
        if self.connections.closed(one):
            self._loop.stop()

    def _on_lost(self, one: QueueConnection, error: BaseException) -> None:
        """Learn from the error what there is to learn."""
        stream = refusing_stream(error)
        if stream is not None and self.channels.note_stream(stream):
            _log.error(
                "queue %r is a stream, whose messages can only be acknowledged; from now on they are, also if their "
                "handler fails. Declare it as Queue(%r, prefetch=N, offset=...) to begin so", stream, stream,
            )  # fmt: skip
        self._forget(one)
        if self._closing:
            one.connection.close()
            if self._settling and not self._awaiting:
                self._close_connections()

    def _forget(self, one: QueueConnection) -> None:
        """Forget what was delivered on a connection: the broker delivers it again."""
        gone = self.channels.abandon_all(one)
        answered = any(found.answered for found in gone)
        if answered:
            one.connection.useful()
        self._awaiting.difference_update(gone)
        self._window_control.disconnected(one, answered)
        if one is self.connections.first:
            self.consumer_counts.disconnected()
        one.declarations.disconnected()
        self._changes.disconnected(one)
        self._startup.hurry()
        if self._stopping:
            if not self.channels.are_cancelling:
                self._end_intake()
            self._look_if_settled()

    def _on_first_delivery(self) -> None:
        """Queue what comes now when all of it is here."""
        if not any(transport.reading for transport in self.connections.transports):  # it takes pika's way
            self._loop.call_later(0, self._intake.drain)
        self._flush_timer.wake()

    def _queue_what_was_read(self) -> None:
        """Queue what a read brought. pika would take a failure for one of the socket, and connect again."""
        try:
            self._intake.drain()
        except Exception as error:
            self._loop.call_later(0, functools.partial(_raise, error))

    def _begin(self) -> None:
        self._window_control.start()
        self._owner.ready()

    # The end -----------------------------------------------------------------------------------------------------

    def _stop_intake(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._changes.stop()
            self.connections.give_up()
            self.channels.cancel_all()

    def _on_channel_lost(self, found: ConsumerChannel) -> None:
        self._look_if_settled()
        self._on_settlements_taken(found)

    def _end_intake(self) -> None:
        if not self._intake_closed:
            self._intake_closed = True
            self._intake.drain()
            _log.info("deliveries have ended; %d messages are here and unsettled", self.channels.unsettled())
            self._owner.intake_closed()
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
        self._loop.call_later(_AWAITING_PART * longest, self._close_connections)
        if self._intake_closed:
            self._await_settlements()
        else:
            self._stop_intake()
            self._flush()

    def _await_settlements(self) -> None:
        self._flush()
        for found in self.channels:
            self._await_settlements_of(found, found.settling_time())
        self._settling = True
        if not self._awaiting:
            self._close_connections()

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
        """Close the connections if the broker has taken the settlements of all channels, or closed these."""
        if found in self._awaiting:
            self._awaiting.discard(found)
            if not self._awaiting:
                self._close_connections()

    def _close_connections(self) -> None:
        self._flush()
        # What still comes is dropped by pika, whole: the broker takes it back with the channel.
        for transport in self.connections.transports:
            transport.sinks.clear()
        for found in self.channels:
            found.spare_consumers()
        self.connections.close()


def _nothing() -> None:
    pass


def _raise(error: Exception) -> None:
    raise error
