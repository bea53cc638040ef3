"""Clocks that tests move by hand."""

from __future__ import annotations

from typing import Any

#: A tick of the clock: whole nanoseconds, and a sum of powers of two in seconds, so that nothing is rounded.
TICK = 1 / 8
TICK_NS = 125_000_000


class ManualClock:
    """Seconds that the test moves, and how often they were read."""

    def __init__(self, now: Any = 0.0) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> Any:
        self.reads += 1
        return self.now


class TickingClock:
    """A clock that the test moves by whole ticks, which an oracle can count in nanoseconds."""

    def __init__(self) -> None:
        self.ticks = 0

    def __call__(self) -> float:
        return self.ticks * TICK
