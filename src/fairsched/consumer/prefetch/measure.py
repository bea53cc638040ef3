"""Measurements of a working consumer: the round trip to the broker, and the time of its handlers."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairsched.scheduling._codel import Estimator

#: Seconds of the past that count. A round trip that became longer is believed after so long, a shorter one at once.
WINDOW = 2.0
#: How much longer than a ping the time from a settlement to its refill may be, to be believed: a queue that is not
#: backlogged refills when a message is published.
FACTOR, SLACK = 2.0, 0.02
#: Handlers are not taken to be faster than this, in seconds: a message costs more than its handler.
LEAST_SERVICE = 20e-6


class Measurements:
    """Round trips and handler times of the last seconds.

    Parameters
    ----------
    clock : callable
        Seconds, never going backwards.

    Notes
    -----
    Two kinds of round trip. A ping is an exchange of methods on a channel. A refill is the time from a settlement to
    the delivery that it makes room for, which is what a window has to cover; but it says that only while the queue is
    backlogged. So a refill is believed where it is not much longer than a ping. Of both the least counts: the others
    waited for something.

    Safe from any thread. O(1), but the questions O(size of a histogram).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pings = Estimator(WINDOW)
        self._refills = Estimator(WINDOW)
        self._services = Estimator(2 * WINDOW)
        self._last_ping: float | None = None
        self._last_service: float | None = None

    def pinged(self, seconds: float) -> None:
        """Note how long an exchange of methods took."""
        self._pings.add(seconds, self._clock())

    def refilled(self, seconds: float) -> None:
        """Note how long after a settlement the delivery came that it made room for."""
        self._refills.add(seconds, self._clock())

    def served(self, nanoseconds: int) -> None:
        """Note how long a handler took."""
        self._services.add(nanoseconds * 1e-9, self._clock())

    def round_trip(self) -> float | None:
        """Return the seconds from a settlement to its refill, as far as they are known."""
        now = self._clock()
        ping, refill = self._pings.minimum(now), self._refills.minimum(now)
        ping = self._last_ping = self._last_ping if ping is None else ping
        if ping is None or refill is None:
            return ping
        return max(ping, min(refill, FACTOR * ping + SLACK))

    def refill(self) -> float | None:
        """Return the seconds that a refill mostly takes, waiting at a busy broker included, as far as known."""
        return self._refills.quantile(0.5, self._clock())

    def service(self) -> float | None:
        """Return the seconds that one message keeps a worker busy, as far as they are known.

        The lesser of median and mean: a few long ones do not make the others slower, and while they run the window
        does not empty; but if most are short, it is those that empty it.
        """
        now = self._clock()
        mean, median = self._services.mean(now), self._services.quantile(0.5, now)
        if mean is not None and median is not None:
            self._last_service = max(LEAST_SERVICE, min(mean, median))
        return self._last_service
