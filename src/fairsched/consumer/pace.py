"""Timers of the I/O thread: batches at the end of a turn, settlements in time, and slots held while in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.lanes import Lanes
    from fairsched.consumer.subscription import Subscription

#: A settlement waits at most this long for others, in seconds.
FLUSH_PERIOD = 0.005
#: The flush timer slows down to this while messages are out but nothing is settled.
SLOWEST_PERIOD = 0.08
#: How often a held slot has to show that its queue still fills the window, in seconds.
HOLD_PERIOD = 0.05


class Pace:
    """Pace(loop, lanes, subscriptions, flush, *, holds)
    --

    The timers of one pump. They run only while messages are out, so an idle consumer sleeps.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers they are.
    lanes : Lanes
        Whose slots are held.
    subscriptions : callable
        Iterates over the current subscriptions.
    flush : callable
        Sends what is settled.
    holds : bool
        Whether slots are queues, so that a full window says something about a slot.

    Notes
    -----
    For the I/O thread alone.
    """

    def __init__(
        self,
        loop: IOLoop,
        lanes: Lanes,
        subscriptions: Callable[[], Iterator[Subscription]],
        flush: Callable[[], None],
        *,
        holds: bool,
    ) -> None:
        self._loop = loop
        self._lanes = lanes
        self._subscriptions = subscriptions
        self._flush = flush
        self._holds = holds
        self._held: set[str] = set()
        self._ticking = False
        self._period = FLUSH_PERIOD

    def defer(self, function: Callable[[], None]) -> None:
        """Call `function` at the end of this turn of the loop, because deliveries came."""
        self._loop.call_later(0, function)
        self._period = FLUSH_PERIOD
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(self._period, self._tick)

    def _tick(self) -> None:
        # While long handlers run nothing is settled, and looking two hundred times a second would be for nothing.
        before = sum(one.ledger.pending for one in self._subscriptions())
        self._period = FLUSH_PERIOD if before else min(SLOWEST_PERIOD, 2 * self._period)
        if before:
            self._flush()
        self._ticking = any(one.alive and one.busy for one in self._subscriptions())
        if self._ticking:
            self._loop.call_later(self._period, self._tick)

    def hold(self, found: Subscription) -> None:
        """Keep the deficit of a queue that filled its window while its messages here run out: more are on the way."""
        if not self._holds or found.queue in self._held:
            return
        if not self._held:
            self._loop.call_later(HOLD_PERIOD, self._review)
        self._held.add(found.queue)
        self._lanes.hold(found.queue, True)

    def _review(self) -> None:
        for found in self._subscriptions():
            if found.queue not in self._held:
                continue
            keep = found.alive and (found.filled or found.arrived or found.full)
            found.filled = found.arrived = False
            if not keep:
                self._held.discard(found.queue)
                self._lanes.hold(found.queue, False)
        if self._held:
            self._loop.call_later(HOLD_PERIOD, self._review)
