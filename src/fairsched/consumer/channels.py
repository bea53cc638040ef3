"""The channels of a consumer, one for each queue: opened, consumed, lost, opened again, cancelled."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairsched.amqp.backoff import Backoff
from fairsched.amqp.errors import describe, is_missing
from fairsched.amqp.urls import mask_url
from fairsched.consumer.channel import ConsumerChannel
from fairsched.consumer.declarations import wanted_queues
from fairsched.errors import ConnectionFailed, FairschedError, QueueNotFound
from fairsched.lanes.own_lanes import Activity

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.amqp.transport import Transport
    from fairsched.consumer.channel import ChannelCallbacks
    from fairsched.consumer.connections import Connections, QueueConnection
    from fairsched.consumer.prefetch.control import WindowControl
    from fairsched.consumer.prefetch.measure import Measurements
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.startup import Startup
    from fairsched.consumer.whole import WholeLeaving
    from fairsched.delivery._delivery import Settlements

_log = logging.getLogger(__name__)

#: Seconds between two queues that are consumed after connections that did not last, and for all of them at most.
_STAGGER, _LONGEST_STAGGER = 0.01, 2.0
#: Channels that are opened before the loop looks again for what else is to be done.
_AT_A_TIME = 64


class Unsettled(NamedTuple):
    """The filling of a queue's window: messages that are here and can be settled, of so many at most, and bytes."""

    window: int
    messages: int
    size: int


class Changes(Protocol):
    """The queues that are being added and removed, as channels need them; `QueueChanges` documents the methods."""

    def is_changing(self, queue: str) -> bool:
        """Return whether a queue is being added or removed."""

    def is_leaving(self, queue: str) -> bool:
        """Return whether a queue is being removed."""

    def confirmed(self, name: str) -> None:
        """Note that a queue is consumed."""

    def refused(self, name: str, error: BaseException) -> bool:
        """Note that a queue cannot be consumed."""

    def left(self, name: str) -> bool:
        """Note that the channel of a queue is closed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a consumer that each of its channels works with, or that say how it is opened.

    Attributes
    ----------
    loop, connections, window_control, startup, settlements, measurements
        Of the I/O thread.
    callbacks : ChannelCallbacks
        Of every channel.
    failed : callable
        ``failed(error)``: a queue cannot be consumed, which ends the consumer.
    cancelled : callable
        Called, after `ConsumerChannels.cancel_all`, when no queue is consumed any more.
    lost : callable
        ``lost(channel)``: after `cancel_all`, the broker closed a channel.
    whole : WholeLeaving
        Leaves queues that have a single active consumer.
    changes : Changes
        Knows which queues are being added and removed, and learns what happens to their channels.
    """

    loop: IOLoop
    connections: Connections
    window_control: WindowControl
    startup: Startup
    settlements: Settlements
    measurements: Measurements
    callbacks: ChannelCallbacks
    failed: Callable[[Exception], None]
    cancelled: Callable[[], None]
    lost: Callable[[ConsumerChannel], None]
    whole: WholeLeaving
    changes: Changes


class ConsumerChannels:
    """Keeps a channel for each queue, and consumes again what the broker cancels or closes.

    Parameters
    ----------
    settings : ConsumerSettings
        The queues.

    Notes
    -----
    `windows`, `window`, `occupied`, `unsettled`, `is_full` and `subscribed` are safe from any thread; everything else
    belongs to the I/O thread.
    """

    #: Set once, by `work_with`, before anything is opened.
    _parts: Parts

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        #: Changed by the I/O thread alone; other threads copy it before they iterate over it.
        self.by_queue: dict[str, ConsumerChannel] = {}
        #: Queues of which the broker has said that they are streams.
        self._streams: set[str] = set()
        self._backoffs = {name: Backoff() for name in settings.windows}
        #: Queues that were never consumed: that one of them is missing is a mistake, later it is something to wait for.
        self._unconfirmed = set(settings.windows)
        self._cancelling: set[ConsumerChannel] = set()
        self._stopping = False

    def work_with(self, parts: Parts) -> None:
        """Take what the channels need; some of it needs the channels, and so is made later than these."""
        self._parts = parts

    def reweigh(self, settings: ConsumerSettings) -> None:
        """Take other queues, and the windows that go with other weights."""
        for name in settings.windows.keys() - self._backoffs.keys():
            self._backoffs[name] = Backoff()
        self._settings = settings

    @property
    def count(self) -> int:
        """Number of channels."""
        return len(self.by_queue)

    def forget(self, name: str) -> None:
        """Forget a queue and its channel, which no message can be settled on any more."""
        found = self.by_queue.get(name)
        if found is not None:
            found.close()
            found.abandon()
            del self.by_queue[name]
        self._parts.connections.release(name)
        self._parts.window_control.forget(name)
        self._backoffs.pop(name, None)
        self._streams.discard(name)
        self._unconfirmed.discard(name)

    def __iter__(self) -> Iterator[ConsumerChannel]:
        return iter(self.by_queue.copy().values())

    # From any thread ---------------------------------------------------------------------------------------------

    def subscribed(self) -> dict[str, bool]:
        """Return for every queue whether it is consumed."""
        current = self.by_queue.copy()
        return {name: name in current and current[name].subscribed for name in self._settings.windows}

    def windows(self) -> dict[str, int]:
        """Return for every queue that is consumed the unsettled messages that its consumer may have."""
        return {name: found.window for name, found in self.by_queue.copy().items()}

    def window(self) -> int:
        """Return the unsettled messages that all present consumers may have."""
        return sum(self.windows().values())

    def occupied(self) -> dict[str, Unsettled]:
        """Return for every queue that is consumed what of it is here and can still be settled."""
        return {
            name: Unsettled(found.window, found.ledger.outstanding, found.ledger.size)
            if found.alive
            else Unsettled(found.window, 0, 0)
            for name, found in self.by_queue.copy().items()
        }

    def activity(self, queues: Iterable[str]) -> dict[str, Activity]:
        """Return how those of the queues stand that have a channel, with what it had delivered and is unsettled."""
        current = self.by_queue
        found = ((name, current.get(name)) for name in queues)
        return {
            name: Activity(one.subscribed, one.ledger.delivered, one.ledger.outstanding if one.alive else 0)
            for name, one in found
            if one is not None
        }

    def unsettled(self) -> int:
        """Return the number of messages that are here and can still be settled."""
        return sum(found.ledger.outstanding for found in self if found.alive)

    def consumers(self, queue: str) -> int:
        """Return the number of consumers that a queue has on this connection."""
        found = self.by_queue.get(queue)
        return 0 if found is None else found.prefetch.consumers

    def is_full(self) -> bool:
        """Whether the broker sends nothing before more is settled: every window is full, and every channel stands."""
        return all(found.alive and found.ledger.outstanding >= found.window for found in self)

    def forked(self) -> None:
        """Let no message of this copy in a child process be settled."""
        for found in self:
            found.alive = False

    # Opening -----------------------------------------------------------------------------------------------------

    def open_all(self, transport: Transport, queues: Iterable[str]) -> None:
        """Open a channel on a connection for each of its queues, except those that are being added or removed."""
        names = [name for name in queues if self._is_to_open(name)]
        if not names:
            self._parts.startup.subscribed()
            return
        if self._parts.window_control.is_careful:
            # One after the other, or the first messages of all would fill a slow line; not always the same first.
            random.shuffle(names)
            self._open_in_turn(transport, deque(names), 1, min(_STAGGER, _LONGEST_STAGGER / len(names)))
        else:
            self._open_in_turn(transport, deque(names), _AT_A_TIME, 0.0)

    def _open_in_turn(self, transport: Transport, names: deque[str], count: int, pause: float) -> None:
        """Open the channels of queues, so many at a time; the loop runs in between."""
        if self._stopping or not transport.is_open:
            return
        with transport:
            for _ in range(min(count, len(names))):
                name = names.popleft()
                if self._is_to_open(name):
                    self.open(transport, name)
        if names:
            self._parts.loop.call_later(pause, lambda: self._open_in_turn(transport, names, count, pause))

    def _is_to_open(self, name: str) -> bool:
        return name in self._settings.queues and not (self._parts.changes.is_changing(name) or self.is_open(name))

    @property
    def is_expecting(self) -> bool:
        """Whether there are queues that were never consumed yet."""
        return bool(self._unconfirmed)

    def is_open(self, name: str) -> bool:
        """Whether a queue has a channel, be it one that is being opened."""
        return name in self.by_queue and self.by_queue[name].alive

    def open(self, transport: Transport, name: str) -> None:
        """Open a channel for a queue on its connection, and consume it."""
        parts = self._parts
        found = ConsumerChannel(
            name,
            parts.window_control.window(name),
            parts.settlements,
            parts.callbacks,
            parts.measurements,
            self._settings.queues[name],
            name in self._streams,
            lendable=transport is parts.connections.first.transport,
        )
        self.by_queue[name] = found
        if transport.is_open:
            transport.channel(on_open_callback=found.opened)

    def note_stream(self, queue: str) -> bool:
        """Consume a queue as a stream from now on; False if it is none of the queues here."""
        if queue in self._settings.queues:
            self._streams.add(queue)
            return True
        return False

    # What happens to a channel -----------------------------------------------------------------------------------

    def changed(self, found: ConsumerChannel, reason: BaseException | None) -> None:
        """Take note of what `ChannelCallbacks.changed` tells."""
        if self.by_queue.get(found.queue) is not found:  # the queue was removed
            return
        if reason is not None:
            self._on_lost(found, reason)
        elif found.consuming:
            self._on_consuming(found)
        elif found.subscribed:
            # Paused. If it turns out to be missing when it is resumed, that is something to wait for.
            self._unconfirmed.discard(found.queue)
            self._on_subscribed(found)
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
            self._on_subscribed(found)

    def _on_subscribed(self, found: ConsumerChannel) -> None:
        """Note that a queue is consumed, or paused, as was asked for."""
        self._parts.changes.confirmed(found.queue)
        self._parts.startup.subscribed()
        self._parts.window_control.opened(found)

    def _on_cancelled(self, found: ConsumerChannel) -> None:
        """Consume again a queue whose consumer the broker cancelled."""
        if self._stopping:
            self._cancel_done(found)
        elif self._parts.changes.is_leaving(found.queue):
            found.ended()
        elif found.single_active:
            self._parts.whole.begin(found)  # another consumer has begun
        else:
            connection = self._parts.connections.of(found.queue).connection
            connection.last_error = f"queue {found.queue!r}: the broker cancelled the consumer"
            self._parts.loop.call_later(self._backoffs[found.queue].failed(), found.consume)

    def _on_lost(self, found: ConsumerChannel, reason: BaseException) -> None:
        """Open another channel for a queue whose channel the broker closed."""
        parts, name = self._parts, found.queue
        one = parts.connections.of(name)
        if one.transport is None:
            return
        left = parts.changes.left(name)
        if self._stopping:
            self._cancel_done(found)
            parts.lost(found)
        elif left or parts.changes.refused(name, self._refusal(name, reason)):
            return
        elif name in self._unconfirmed:
            parts.failed(self._refusal(name, reason))
        elif found.leaving:
            self._reopen(found)
        else:
            delay = self._backoffs[name].failed()
            one.connection.last_error = f"queue {name!r}: {mask_url(describe(reason))}"
            _log.warning("channel of queue %r lost, another in %.2f s: %s", name, delay, describe(reason))
            parts.loop.call_later(delay, lambda: self._reopen(found))

    def _refusal(self, name: str, reason: BaseException) -> FairschedError:
        """Return the error of a queue that cannot be consumed."""
        kind = QueueNotFound if is_missing(reason) else ConnectionFailed
        what = "does not exist" if is_missing(reason) else "cannot be consumed"
        address = self._parts.connections.of(name).connection.address
        return kind(f"queue {name!r} {what} on {address}: {mask_url(describe(reason))}")

    def _reopen(self, lost: ConsumerChannel) -> None:
        parts, one = self._parts, self._parts.connections.of(lost.queue)
        transport = one.transport
        if transport is None or not self._is_wanted(lost):
            return
        parts.window_control.renew(lost.queue)
        wanted = wanted_queues({lost.queue: self._settings.queues[lost.queue]})
        if wanted:  # it may have been deleted
            one.declarations.declare_all(wanted, lambda error: self._on_declared_again(transport, lost, error))
        else:
            self.open(transport, lost.queue)

    def _on_declared_again(self, transport: Transport, lost: ConsumerChannel, error: BaseException | None) -> None:
        if error is not None:
            _log.error("%s; consuming anyway", error)
        if self._parts.connections.of(lost.queue).transport is transport and self._is_wanted(lost):
            self.open(transport, lost.queue)

    def _is_wanted(self, lost: ConsumerChannel) -> bool:
        """Whether a lost channel's queue has no other meanwhile: a new connection opens every channel itself."""
        return not self._stopping and self.by_queue.get(lost.queue) is lost

    def abandon_all(self, one: QueueConnection) -> list[ConsumerChannel]:
        """Forget every channel of a connection, which is gone; return these."""
        gone = [found for name in one.queues if (found := self.by_queue.get(name)) is not None]
        for found in gone:
            found.abandon()
        self._cancelling.difference_update(gone)
        return gone

    # The end -----------------------------------------------------------------------------------------------------

    @property
    def are_cancelling(self) -> bool:
        """Whether the broker has yet to confirm that consumers are cancelled."""
        return bool(self._cancelling)

    def cancel_all(self) -> None:
        """Consume nothing any more, and open no channel."""
        self._stopping = True
        single = [found for found in self if found.single_active]
        self._parts.whole.begin_all(single)
        with self._parts.connections.holding():
            for found in self:
                if not found.single_active:
                    self._cancel(found)
        if not self._cancelling:
            self._parts.cancelled()

    def _cancel(self, found: ConsumerChannel) -> None:
        if found.single_active:
            self._parts.whole.begin(found)
        elif found.cancel(lambda: self._cancel_done(found)):
            self._cancelling.add(found)

    def _cancel_done(self, found: ConsumerChannel) -> None:
        self._cancelling.discard(found)
        if not self._cancelling:
            self._parts.cancelled()
