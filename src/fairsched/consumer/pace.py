"""Timers of the I/O thread: batches at the end of a turn, and settlements in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.subscription import Subscription

#: A settlement waits at most this long for others, in seconds.
FLUSH_PERIOD = 0.005
#: The flush timer slows down to this while messages are out but nothing is settled.
SLOWEST_PERIOD = 0.08


class Pace:
    """Pace(loop, subscriptions, flush)
    --

    The timers of one pump. They run only while messages are out, so an idle consumer sleeps.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers they are.
    subscriptions : callable
        Iterates over the current subscriptions.
    flush : callable
        Sends what is settled.

    Notes
    -----
    For the I/O thread alone.
    """

    def __init__(
        self,
        loop: IOLoop,
        subscriptions: Callable[[], Iterator[Subscription]],
        flush: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._subscriptions = subscriptions
        self._flush = flush
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
