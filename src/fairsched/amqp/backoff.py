"""Delays before the next attempt: exponential, with full jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: The first delay is at most this long, in seconds.
FIRST = 0.1
#: No delay is longer than this, in seconds.
LONGEST = 30.0


class Backoff:
    """Delays between attempts: uniform in [0, min(longest, first * 2**n)] for the n-th failure in a row.

    Parameters
    ----------
    first, longest : float
        The ceiling of the first delay and of every later one, in seconds.
    clock : callable
        Seconds, never going backwards.
    uniform : callable
        Source of the jitter: ``uniform(low, high)``.

    Notes
    -----
    Every operation is O(1). Not thread-safe: each instance belongs to the I/O thread.

    A short success does not restart the series, since a connection that the broker closes as soon as it opens would be
    retried without a pause: the connection must last longer than the previous ceiling.

    Full jitter: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    __slots__ = ("_clock", "_failures", "_first", "_longest", "_since", "_uniform")

    def __init__(
        self,
        first: float = FIRST,
        longest: float = LONGEST,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._longest = longest
        self._clock = clock
        self._uniform = uniform
        self._failures = 0
        self._since: float | None = None

    @property
    def ceiling(self) -> float:
        """The longest delay that the next failure may bring, in seconds."""
        # 2**64 * first is far beyond any ceiling, and keeps the power a float that cannot overflow.
        return min(self._longest, self._first * 2.0 ** min(self._failures, 64))

    def succeeded(self) -> None:
        """Note that the attempt worked, from now on."""
        self._since = self._clock()

    def useful(self) -> None:
        """Note that the attempt was useful, however short it lasted: the series starts again."""
        self._failures = 0

    def failed(self) -> float:
        """Note a failure and return the delay before the next attempt, in seconds.

        Returns
        -------
        float
            The delay.
        """
        if self._since is not None and self._clock() - self._since > max(1.0, self.ceiling):
            self._failures = 0
        self._since = None
        delay = self._uniform(0.0, self.ceiling)
        self._failures += 1
        return delay
