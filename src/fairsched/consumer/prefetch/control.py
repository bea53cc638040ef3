"""From measurements to windows while a consumer runs: ``prefetch="auto"``, ``max_buffer_bytes``, lost connections."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from fairsched.consumer.prefetch.arithmetic import measured_windows
from fairsched.consumer.prefetch.auto import AutoWindow, byte_window
from fairsched.prefetch import LARGEST_PREFETCH

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel
    from fairsched.consumer.prefetch.measure import Measurements
    from fairsched.consumer.settings import ConsumerSettings

_log = logging.getLogger(__name__)

#: How often windows are looked at, in seconds: while messages are here, and while there are none.
PERIOD, IDLE_PERIOD = 0.05, 0.5
#: How often the round trip is measured by an exchange of methods, in seconds.
PING_PERIOD = 0.5
#: A queue that took in more bytes than its part of the bound takes in nothing until it is down to this part of that.
RESUME = 0.5
#: How slowly the size of large messages is forgotten, per look.
DECAY = 0.99
#: A connection that lasts for so many seconds may fill the windows.
TRIAL = 5.0
#: How often it is looked whether handlers became faster, so that narrow default windows starve them; in seconds.
REVIEW = 2.0
#: After one that did not, and brought no settlement to the broker, windows are no larger than this part of before.
NARROWING = 8


class WindowControl:
    """Looks at every queue now and then, and changes its window.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timer it uses.
    settings : ConsumerSettings
        Windows, weights, bounds.
    measurements : Measurements
        What was measured.
    channels : callable
        Iterates over the current channels.
    service : callable
        Returns the seconds that one message occupies the workers, or None if that is not known.
    clock : callable
        Seconds, never going backwards.

    Notes
    -----
    For the I/O thread alone. O(queues) a look.
    """

    def __init__(
        self,
        loop: IOLoop,
        settings: ConsumerSettings,
        measurements: Measurements,
        channels: Callable[[], Iterator[ConsumerChannel]],
        service: Callable[[], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._measurements = measurements
        self._channels = channels
        self._clock = clock
        self._service = service
        self._settings = settings
        self._windows = dict(settings.windows)
        self._find_fixed()
        self._auto: AutoWindow | None = None
        if settings.target_delay is not None:
            self._auto = AutoWindow(settings.units, settings.workers, settings.target_delay)
        #: Bytes that each queue may have here; empty: as many as come.
        self._budgets = byte_limits(settings)
        #: Bytes of a message, per queue, as far as any came: the mean of what is here, falling slowly.
        self._sizes: dict[str, float] = {}
        self._usage: dict[str, _Usage] = {}
        self._closed: set[str] = set()
        #: Queues that take in nothing until they are resumed.
        self._paused: frozenset[str] = frozenset()
        #: Whether windows are on their way to what other weights want.
        self._dividing = False
        self._pinged_at = 0.0
        self._turn = 0
        #: What no window exceeds while connections do not last.
        self._limit: int | None = None
        #: When each connection that is open was opened.
        self._up_since: dict[Hashable, float] = {}
        #: Whether the timer runs that widens default windows, and by what these were chosen at the last look.
        self._reviewing = False
        self._reviewed: tuple[float | None, ConsumerSettings] | None = None

    @property
    def is_careful(self) -> bool:
        """True if connections do not last, so that windows are narrow."""
        return self._limit is not None

    def reweigh(self, settings: ConsumerSettings) -> None:
        """Take other weights: windows and bounds are divided anew; those that are measured go on from what they are."""
        narrowed = settings.default_prefetch and self._windows != self._settings.windows
        self._settings, self._budgets = settings, byte_limits(settings)
        if self._auto is not None:
            self._auto.reweigh(settings.units)
            return
        self._windows = self._measured() if narrowed else dict(settings.windows)
        if not (self._budgets or self._dividing):  # with bounds of bytes it keeps measuring
            self._divide()

    def take(self, settings: ConsumerSettings) -> None:
        """Take other queues: those that stay keep their windows, unless they are measured."""
        before, self._settings, self._budgets = self._windows, settings, byte_limits(settings)
        self._find_fixed()
        if self._auto is not None:
            self._auto.reweigh(settings.units)
            found = self._auto.windows
        else:
            found = self._measured() if settings.default_prefetch else settings.windows
        self._windows = {name: before.get(name, found[name]) for name in settings.windows}

    def _find_fixed(self) -> None:
        """Find the queues whose windows were given, and those whose windows nothing may change."""
        queues = self._settings.queues.items()
        self._given = {name for name, queue in queues if queue.own_window is not None}
        self._fixed = {name for name, queue in queues if queue.has_fixed_window}

    def forget(self, queue: str) -> None:
        """Forget a queue that is removed: one of this name that is added later has nothing of it."""
        self._windows.pop(queue, None)
        self._sizes.pop(queue, None)
        self._usage.pop(queue, None)
        self._closed.discard(queue)
        if self._auto is not None:
            self._auto.forget(queue)

    def pause(self, queues: frozenset[str]) -> None:
        """Have these queues, and no others, take in nothing, on later connections too."""
        self._paused = queues
        if self._move() and not self._dividing:
            self._dividing = True
            self._loop.call_later(PERIOD, self._divide)

    def opened(self, one: ConsumerChannel) -> None:
        """Pause or resume a queue of which that was asked while its channel was being opened."""
        if (one.window == 0) != (self.window(one.queue) == 0):
            self.pause(self._paused)

    def _divide(self) -> None:
        """Move every window to where it is wanted, as soon as that can be."""
        self._dividing = self._move()
        if self._dividing:
            self._loop.call_later(PERIOD, self._divide)

    def _move(self) -> bool:
        """Move windows; True if some are on their way: what a cancelled consumer holds may have to be settled first."""
        moving = False
        for one in self._channels():
            if one.subscribed:
                one.resize(self._bounded(one))
                moving |= one.prefetch.window != one.window
        return moving

    def connected(self, connection: Hashable, queues: Iterable[str]) -> None:
        """Note a new connection for some queues; if it lasts, the windows get as large as they are wanted."""
        began = self._up_since[connection] = self._clock()
        self._reviewed = None
        self.renew(*queues)
        if self._settings.default_prefetch and not self._reviewing:
            self._reviewing = True
            self._loop.call_later(REVIEW, self._review)
        if self._limit is not None:
            self._loop.call_later(TRIAL, lambda: self._widen(connection, began))

    def renew(self, *queues: str) -> None:
        """Choose the default windows anew of queues whose channels are about to be opened."""
        if self._settings.default_prefetch:
            found = self._measured()
            self._windows.update({queue: found[queue] for queue in queues})

    def _measured(self) -> dict[str, int]:
        service, settings = self._service(), self._settings
        if not service:
            return dict(settings.windows)
        round_trip, workers, worker_queues = self._measurements.round_trip(), settings.workers, settings.worker_queues
        found = measured_windows(settings.windows, settings.units, round_trip, service, workers, worker_queues)
        return {**found, **{name: settings.windows[name] for name in self._given}}

    def _review(self) -> None:
        """Widen narrow default windows where handlers became faster; nothing narrows them before the next connection.

        So what is usual, one consumer for each queue, stays so: several are opened only for handlers that changed.
        """
        if not self._up_since:
            self._reviewing = False
            return
        chosen_by = (self._service(), self._settings)
        if chosen_by != self._reviewed:  # else nothing was handled since, and the queues of an idle consumer are many
            self._reviewed = chosen_by
            self._widen_defaults()
        self._loop.call_later(REVIEW, self._review)

    def _widen_defaults(self) -> None:
        wanted = self._measured()
        for one in self._channels():
            if one.alive and wanted[one.queue] >= 2 * self._windows[one.queue]:
                self._windows[one.queue] = wanted[one.queue]
                one.resize(self._bounded(one))

    def _widen(self, connection: Hashable, began: float) -> None:
        if self._up_since.get(connection) == began:
            self._limit = None
            for one in self._channels():
                if one.alive:
                    one.resize(self._bounded(one))

    def disconnected(self, connection: Hashable, answered: bool) -> None:
        """Note that a connection ended, and whether any settlement reached the broker.

        A connection that is cut before a whole window has come would bring the same one again and again, if nothing of
        it can be settled before the cut. So the windows narrow until something can.
        """
        began = self._up_since.pop(connection, None)
        if began is not None and not answered and self._clock() - began < TRIAL:
            widest = max(self._windows.values(), default=1)
            self._limit = max(1, min(self._limit or LARGEST_PREFETCH, widest) // NARROWING)

    def window(self, queue: str) -> int:
        """Return the window of a queue as it was decided last; 0: it is paused."""
        if queue in self._paused:
            return 0
        if queue in self._fixed:
            return self._settings.windows[queue]
        window, budget = min(self._windows[queue], self._limit or LARGEST_PREFETCH), self._budgets.get(queue)
        if budget is None:
            return window
        # Nothing is known about what comes first, and the broker cannot be told to mind bytes.
        return min(window, byte_window(budget, self._sizes[queue])) if queue in self._sizes else 1

    def start(self) -> None:
        """Begin to look, if there is anything to regulate."""
        if self._auto is not None or self._settings.options.max_buffer_bytes is not None:
            self._look()

    def _look(self) -> None:
        now = self._clock()
        found = [one for one in self._channels() if one.alive]
        round_trip = self._measurements.round_trip()
        if self._auto is not None:
            self._ping(found, now)
            going = [one for one in found if one.queue not in self._paused]
            limited = [one.queue for one in going if self._is_limited(one, now, round_trip or 0.0)]
            wanted = self._auto.update(now, round_trip, self._measurements.service(), limited)
            if wanted != self._windows:
                _log.debug("windows: %s, at a round trip of %s s", wanted, round_trip)
                self._windows = wanted
        for one in found:
            one.resize(self._bounded(one))
        busy = any(one.busy for one in found)
        self._loop.call_later(PERIOD if busy else IDLE_PERIOD, self._look)

    def _ping(self, found: list[ConsumerChannel], now: float) -> None:
        if found and now - self._pinged_at >= PING_PERIOD:
            self._pinged_at = now
            self._turn += 1
            found[self._turn % len(found)].ping()

    def _is_limited(self, one: ConsumerChannel, now: float, round_trip: float) -> bool:
        usage = self._usage.get(one.queue)
        if usage is None or usage.channel is not one:
            usage = self._usage[one.queue] = _Usage(one)
        return usage.is_limited(now, 1.5 * round_trip + PERIOD)

    def _bounded(self, one: ConsumerChannel) -> int:
        """Return a queue's window, narrowed so that its bytes stay within its part of the bound."""
        budget, queue = self._budgets.get(one.queue), one.queue
        if budget is not None:
            here, count = one.ledger.size, one.ledger.outstanding
            if count:
                self._sizes[queue] = max(here / count, DECAY * self._sizes.get(queue, 0.0))
            if here > budget and count > 1:
                self._closed.add(queue)
            elif here <= budget * RESUME:
                self._closed.discard(queue)
        return 0 if queue in self._closed else self.window(queue)


def byte_limits(settings: ConsumerSettings) -> dict[str, float]:
    """Divide the bound of bytes over the queues, if there is one.

    Parameters
    ----------
    settings : ConsumerSettings
        Its bound and its weights.

    Returns
    -------
    dict
        Bytes that each queue may have here; empty: as many as come.
    """
    limit, whole = settings.options.max_buffer_bytes, sum(settings.units.values())
    return {} if limit is None else {name: limit * unit / whole for name, unit in settings.units.items()}


class _Usage:
    """Measurement of whether a channel's deliveries use up its window.

    The broker may send the window beyond what it knows to be settled. If everything that was allowed a round trip ago
    has come, the window, and not the publishers, is what limits the flow.
    """

    def __init__(self, channel: ConsumerChannel) -> None:
        self.channel = channel
        self._allowed: deque[tuple[float, int]] = deque()
        self._before = 0

    def is_limited(self, now: float, delay: float) -> bool:
        """Look, with the time that a settlement needs to bring a delivery; to be called time after time."""
        one = self.channel
        self._allowed.append((now, one.allowed()))
        while self._allowed and self._allowed[0][0] <= now - delay:
            self._before = self._allowed.popleft()[1]
        return 0 < self._before <= one.ledger.delivered
