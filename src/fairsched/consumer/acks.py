"""When acknowledgements leave: the one place where that is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel

#: Settlements leave when they are this part of all windows together: early enough that the broker refills before the
#: rest is handled, late enough that many share a frame and a write.
PART = 4
#: Where the queue of the last one has half of its own window settled and may soon get nothing more, they leave when
#: they are this part of what the broker has given out and not heard of: little, where few of the queues have any.
SMALL_PART = 16
#: A settlement waits at most this long for others, in seconds.
PERIOD = 0.005
#: While messages are out but nothing is settled, it is looked this seldom.
SLOWEST_PERIOD = 0.08
#: A handler that ran longer than this, in nanoseconds, has its settlement sent at once.
LONG = 2_000_000


class AckPolicy:
    """Decides when settlements leave, by the windows of the whole connection and by time.

    Not by any one queue's window, which may be a single message where there are hundreds of queues.

    Parameters
    ----------
    window : int
        Of all queues together.

    Notes
    -----
    Settlements leave as soon as one of these is true:

    * They are a quarter of all windows together.
    * They are a sixteenth of what is here, and half of one queue's window is settled: others may still keep the workers
      busy, but the broker soon gives no more of that one.
    * A worker is about to wait for a message (`Client.get`, `aio.Consumer`).
    * A handler took longer than `LONG`, or nothing was settled for a while before.
    * `PERIOD` is over.

    `settled` is safe from any thread. Its count is not exact where several settle at once; that moves one sending by a
    message or two, and `PERIOD` holds all the same. The rest is for the I/O thread. O(1).
    """

    __slots__ = ("_here", "_limit", "_pending", "_small_limit", "period")

    def __init__(self, window: int) -> None:
        #: How often it is looked whether something is settled and not sent, in seconds.
        self.period = PERIOD
        self._pending = 0
        self.count(0, window)

    @property
    def resting(self) -> bool:
        """Whether it is looked more seldom than a settlement may wait."""
        return self.period > PERIOD

    def settled(self, pending: int, window: int) -> bool:
        """Note a settlement, of a queue with so many that are not sent and such a window; say if it is time to send."""
        self._pending += 1
        limit = self._small_limit if 2 * pending >= window else self._limit
        return self._pending >= limit or self.period > PERIOD

    def arrived(self, count: int) -> None:
        """Note deliveries."""
        self._set_here(self._here + count)

    def sending(self) -> None:
        """Note that all that was settled is about to be sent."""
        pending, self._pending = self._pending, 0
        self._set_here(self._here - pending)

    def count(self, here: int, window: int) -> None:
        """Set what the broker has given out and not heard of, as it was counted, and what it may give out in all."""
        self._set_here(here)
        self._limit = max(1, window // PART)

    def _set_here(self, here: int) -> None:
        self._here, self._small_limit = here, max(1, here // SMALL_PART)

    def looked(self, found: bool) -> None:
        """Note whether anything was settled since the last look: if not, look half as often."""
        self.period = PERIOD if found else min(SLOWEST_PERIOD, 2 * self.period)

    def wake(self) -> None:
        """Look often again."""
        self.period = PERIOD


class FlushTimer:
    """Sends what is settled in time. The timer runs only while messages are out, so an idle consumer sleeps.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers they are.
    policy : AckPolicy
        Says how often to look.
    channels : callable
        Iterates over the current channels.
    flush : callable
        Sends what is settled, and says whether anything was.

    Notes
    -----
    For the I/O thread alone.
    """

    def __init__(
        self,
        loop: IOLoop,
        policy: AckPolicy,
        channels: Callable[[], Iterator[ConsumerChannel]],
        flush: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._policy = policy
        self._channels = channels
        self._flush = flush
        self._timer: object = None

    def defer(self, function: Callable[[], None]) -> None:
        """Call `function` at the end of this turn of the loop, because deliveries came."""
        self._loop.call_later(0, function)
        self.wake()

    def wake(self) -> None:
        """Look in time, because deliveries came or something was settled."""
        if self._timer is not None and self._policy.resting:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self._policy.wake()
        if self._timer is None:
            self._timer = self._loop.call_later(self._policy.period, self._tick)

    def _tick(self) -> None:
        # While long handlers run nothing is settled, and looking two hundred times a second would be for nothing.
        self._policy.looked(self._flush())
        alive = [one for one in self._channels() if one.alive]
        here = sum(one.unsettled for one in alive)
        self._policy.count(here, sum(one.window for one in alive))
        self._timer = self._loop.call_later(self._policy.period, self._tick) if here else None
