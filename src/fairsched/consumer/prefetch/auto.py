"""Arithmetic behind ``prefetch="auto"``: the smallest windows that keep the workers busy.

With a round trip R and w workers that need s seconds a message, ceil((R + s) w / s) messages in all keep every worker
busy (fairsched.prefetch.recommend). Fewer starve them; more only wait, each message (P - that) s / w seconds longer. A
little more than the least absorbs what varies, as far as the wait that was allowed covers it.

The total is divided, in proportion to the weights, over the queues that use up their windows: a queue that does not is
not backlogged, and room given to it would be idle. Those keep the part they would have if all were busy, to start with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fairsched.config.weights import split
from fairsched.consumer.prefetch.arithmetic import HEADROOM
from fairsched.prefetch import LARGEST_PREFETCH, recommend

#: The windows that a consumer starts with add up to this for each worker.
START = 16
#: Changes of less than these proportions are not made; a window that shrinks also waits until that was so for a while.
GROW, SHRINK = 0.1, 0.25
#: Seconds for which a window has to be too wide before it is narrowed.
PATIENCE = 1.5
#: A window changes once in this many seconds at most, and once in two round trips.
PAUSE = 0.5
#: A queue counts as backlogged for so many seconds after it last used up its window.
MEMORY = 2.0


def total_window(round_trip: float, service: float, workers: int, target_delay: float) -> tuple[int, int]:
    """Return how many unsettled messages to have in all, and how many at most.

    Parameters
    ----------
    round_trip : float
        Seconds from a settlement to its refill.
    service : float
        Seconds that one message keeps a worker busy.
    workers : int
        How many work side by side.
    target_delay : float
        Seconds that a message may wait here, beyond what cannot be helped.

    Returns
    -------
    tuple of int
        The least number that keeps the workers busy, and up to a quarter more as far as `target_delay` allows; and the
        largest at which nothing waits longer than that, or the first where that is larger.

    Notes
    -----
    O(1). Pure.
    """
    pace = service / workers
    # A message is replaced when it is done, service + round trip after it was begun; workers begin one every `pace`.
    trip = round_trip + service - pace
    least = recommend(trip, pace)
    allowed = math.floor((target_delay + trip + pace) / pace)
    wanted = max(least, min(recommend(trip, pace, headroom=HEADROOM), allowed))
    return wanted, max(wanted, allowed)


@dataclass
class _Window:
    """One queue's window, and what its changes wait for."""

    size: int
    limited_at: float = -math.inf
    changed_at: float = -math.inf
    too_wide_since: float | None = None


class AutoWindow:
    """Decides on the windows, time after time.

    Parameters
    ----------
    weights : mapping
        Weight per queue.
    workers : int
        How many messages are handled side by side.
    target_delay : float
        Seconds that a message may wait here, beyond what cannot be helped.

    Notes
    -----
    For one thread. No I/O and no clock of its own: the caller brings measurements and time. O(queues) a decision.
    """

    def __init__(self, weights: Mapping[str, float], workers: int, target_delay: float) -> None:
        self._weights = dict(weights)
        self._workers = workers
        self._target_delay = target_delay
        self._windows = {name: _Window(size) for name, size in start_windows(weights, workers).items()}

    @property
    def windows(self) -> dict[str, int]:
        """Window per queue, as it was decided last."""
        return {name: window.size for name, window in self._windows.items()}

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Divide what is wanted by other weights, from the next decision on; queues may be new, or missing now."""
        new = weights.keys() - self._windows.keys()
        starts = start_windows(weights, self._workers) if new else {}
        self._weights = dict(weights)
        self._windows = {name: self._windows.get(name) or _Window(starts[name]) for name in weights}

    def forget(self, queue: str) -> None:
        """Forget a queue that is removed."""
        self._weights.pop(queue, None)
        self._windows.pop(queue, None)

    def update(
        self, now: float, round_trip: float | None, service: float | None, limited: Collection[str]
    ) -> dict[str, int]:
        """Decide again.

        Parameters
        ----------
        now : float
            Seconds of a clock that does not go backwards.
        round_trip, service : float or None
            As measured; None: not known yet.
        limited : collection of str
            Queues that have used up their windows: they are backlogged, or their windows are too small.

        Returns
        -------
        dict
            Window per queue.
        """
        for name in limited:
            if name in self._windows:
                self._windows[name].limited_at = now
        if round_trip is not None and service is not None:
            wanted, most = total_window(round_trip, service, self._workers, self._target_delay)
            pause, memory = max(PAUSE, 2 * round_trip), max(MEMORY, 3 * round_trip)
            busy = [name for name, window in self._windows.items() if now - window.limited_at <= memory]
            limits = self._shares(most, busy)
            for name, share in self._shares(wanted, busy).items():
                _approach(self._windows[name], share, limits[name], now, pause)
        return self.windows

    def _shares(self, total: int, busy: list[str]) -> dict[str, int]:
        """Divide a total over the busy queues; the others get what they would if all were."""
        shares = _proportional(total, self._weights)
        if busy:
            shares.update(_proportional(total, {name: self._weights[name] for name in busy}))
        return shares


def start_windows(weights: Mapping[str, float], workers: int) -> dict[str, int]:
    """Return the windows to begin with, before anything was measured.

    Parameters
    ----------
    weights : mapping
        Weight per queue.
    workers : int
        How many messages are handled side by side.

    Returns
    -------
    dict
        Window per queue: small, since too small a window costs a round trip, and too large a one fills at once with
        what takes any time to get rid of.

    Notes
    -----
    O(queues). Pure.
    """
    return _proportional(START * workers, weights)


def byte_window(budget: float, size: float) -> int:
    """Return how many messages fit in a budget of bytes.

    Parameters
    ----------
    budget : float
        Bytes.
    size : float
        Of a message.

    Returns
    -------
    int
        At least 1, so that there is progress.

    Notes
    -----
    O(1). Pure.
    """
    return max(1, min(LARGEST_PREFETCH, int(budget // max(1.0, size))))


def _proportional(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide a total by weights that need not be whole numbers, at least 1 each."""
    scale = 1_000_000 / max(weights.values(), default=1.0)
    return split(total, {name: max(1, round(weight * scale)) for name, weight in weights.items()})


def _approach(window: _Window, wanted: int, limit: int, now: float, pause: float) -> None:
    """Change a window if that is worth it, or if it is beyond its limit, and not too soon after the last time."""
    if wanted >= window.size or (wanted >= window.size * (1 - SHRINK) and window.size <= limit):
        window.too_wide_since = None
    elif window.too_wide_since is None:
        window.too_wide_since = now
    wider = wanted > window.size * (1 + GROW)
    narrower = window.too_wide_since is not None and now - window.too_wide_since >= PATIENCE
    if (wider or narrower) and now - window.changed_at >= pause:
        window.size, window.changed_at, window.too_wide_since = wanted, now, None
