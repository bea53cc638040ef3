"""When acknowledgements leave: the one place where that is decided."""

from __future__ import annotations

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
    """AckPolicy(window)
    --

    Decides when settlements leave, by the windows of the whole connection and by time; not by any one queue's window,
    which may be a single message where there are hundreds of queues.

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

    def settled(self, half: bool) -> bool:
        """Note a settlement, and whether half of its queue's window is settled; say whether it is time to send."""
        self._pending += 1
        return self._pending >= (self._small_limit if half else self._limit) or self.period > PERIOD

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
