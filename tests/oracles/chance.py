"""Chance in plain Python: the streams, the service times and the arrivals of the reference simulator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NEVER = 2**62
MASK = 2**64 - 1


class Random:
    """xoshiro256++, after its authors."""

    def __init__(self, words: tuple[int, int, int, int]) -> None:
        self.s = list(words)

    def next(self) -> int:
        s = self.s
        x = (s[0] + s[3]) & MASK
        result = (((x << 23) | (x >> 41)) + s[0]) & MASK
        shifted = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= shifted
        s[3] = ((s[3] << 45) | (s[3] >> 19)) & MASK
        return result

    def uniform(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def exponential(self) -> float:
        return -math.log(1.0 - self.uniform())

    def normal(self) -> float:
        radius = math.sqrt(2.0 * self.exponential())
        return radius * math.cos(2 * math.pi * self.uniform())


def whole(value: float) -> int:
    return NEVER if value >= NEVER else int(value + 0.5) if value > 0.0 else 0


def draw(service: Any, random: Random) -> int:
    if service.kind == "exponential":
        return whole(service.a * random.exponential())
    if service.kind == "uniform":
        return whole(service.a + (service.b - service.a) * random.uniform())
    if service.kind == "lognormal":
        return whole(math.exp(service.a + service.b * random.normal()))
    return whole(service.a)


def arrivals(plan: Any, base: int, random: Random) -> Any:
    """Generate the moments of a process that comes into force at `base`."""
    count, last = 0, base
    if plan.kind in ("bursts", "random-bursts"):
        chance = plan.kind == "random-bursts"
        start = base
        while True:
            end = start + whole(plan.on * (random.exponential() if chance else 1.0))
            count = 0
            while True:
                count += 1
                last = last + whole(plan.gap * random.exponential()) if chance else start + whole(count * plan.gap)
                if last > end:
                    break
                yield last
            start = last = end + whole(plan.off * (random.exponential() if chance else 1.0))
    elif plan.kind == "constant":
        while True:
            count += 1
            yield base + whole(count * plan.gap)
    elif plan.kind == "poisson":
        while True:
            last += whole(plan.gap * random.exponential())
            yield last
    elif plan.kind == "trace":
        yield from (base + moment for moment in np.frombuffer(plan.times, dtype=np.int64).tolist())
