"""CoDel: a decision without the GIL, what it adds to a batched pull, and arrays against Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from interleave import medians, record

from fairsched import CoDel, _probe_codel

COUNT = 1_000_000
MS = 1_000_000


class PyCoDel:
    """RFC 8289 in plain Python, one message at a time, with the guards and the figures of the compiled one."""

    def __init__(self, target: int = 5 * MS, interval: int = 100 * MS, min_backlog: int = 1) -> None:
        self.target, self.interval, self.min_backlog = target, interval, min_backlog
        self.asked = self.returned = self.episodes = self.sojourn = 0
        self.last_now: int | None = None
        self.forget()

    def forget(self) -> None:
        self.first_above: int | None = None
        self.drop_next = self.count = self.lastcount = 0
        self.dropping = self.began = self.again = False

    def should_return(self, queued: int, now: int, backlog: int) -> bool:
        self.asked += 1
        self.sojourn = now - queued
        if self.last_now is not None and now < self.last_now:
            self.forget()
        self.last_now = now
        if self.decide(now, self.ripe(queued, now, backlog)):
            self.returned += 1
            return True
        return False

    def ripe(self, queued: int, now: int, backlog: int) -> bool:
        if now - queued < self.target or backlog <= self.min_backlog:
            self.first_above = None
            return False
        if self.first_above is None:
            self.first_above = now + self.interval
            return False
        return now >= self.first_above

    def decide(self, now: int, ripe: bool) -> bool:
        began, again = self.began, self.again
        self.began = self.again = False
        if began:
            return False
        if not self.dropping:
            if ripe:
                self.enter(now)
            return ripe
        if not ripe:
            self.dropping = False
            return False
        if again:
            self.drop_next += round(self.interval / math.sqrt(self.count))
        if now < self.drop_next:
            return False
        self.count += 1
        self.again = True
        return True

    def enter(self, now: int) -> None:
        delta = self.count - self.lastcount
        self.count = delta if delta > 1 and now - self.drop_next < 16 * self.interval else 1
        self.lastcount = self.count
        self.drop_next = now + round(self.interval / math.sqrt(self.count))
        self.dropping = self.began = True
        self.episodes += 1


def probe(law: str = "rfc") -> Any:
    return _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 1, 0)


def sojourns(low: int, high: int) -> Any:
    return np.random.default_rng(7).integers(low, high, 4096, dtype=np.int64)


def test_decision(benchmark: Any) -> None:
    """Nanoseconds for a decision: young messages, young and old ones by chance, and old ones only."""
    young, mixed, old = sojourns(0, 5 * MS), sojourns(0, 20 * MS), sojourns(5 * MS, 20 * MS)
    below, either, above = probe(), probe(), probe()
    took = medians(
        below=lambda: below.decide(COUNT, young, 1000)[0],
        mixed=lambda: either.decide(COUNT, mixed, 1000)[0],
        above=lambda: above.decide(COUNT, old, 100_000)[0],
    )
    ns = {name: seconds / COUNT * 1e9 for name, seconds in took.items()}
    record(
        benchmark,
        {
            "CoDel decision below target, ns": (ns["below"], "<=", 3),
            "CoDel decision, ages by chance, ns": (ns["mixed"], "<=", 10),
            "CoDel decision above target, ns": (ns["above"], "<=", 10),
        },
        **{f"{name}_ns": value for name, value in ns.items()},
    )
    benchmark.pedantic(lambda: below.decide(COUNT, young, 1000), rounds=10)


def test_batched_pull(benchmark: Any) -> None:
    """What asking for each message adds to pulls of 64 from ten slots, the clock read once for each."""
    batches = 5_000
    took = medians(
        with_codel=lambda: _probe_codel.batched_pull(batches, True)[0],
        without=lambda: _probe_codel.batched_pull(batches, False)[0],
    )
    added = (took["with_codel"] - took["without"]) / (64 * batches) * 1e9
    record(
        benchmark,
        {"CoDel adds to a batched pull, ns for each message": (added, "<=", 5)},
        **{f"{name}_ns": seconds / (64 * batches) * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: _probe_codel.batched_pull(batches, True), rounds=10)


def test_arrays(benchmark: Any) -> None:
    """should_return_many against loops in Python: of the law in Python, and of calls of should_return."""
    size, repeats = 16_384, 30
    now = np.arange(size, dtype=np.int64) * 100_000
    queued = now - sojourns(0, 20 * MS)[np.arange(size) % 4096]
    moments, ages = now.tolist(), queued.tolist()
    many, plain, scalar = CoDel(), PyCoDel(), CoDel()
    assert many.should_return_many(queued, now, 50).tolist() == [
        plain.should_return(a, b, 50) for a, b in zip(ages, moments, strict=True)
    ]

    def arrays() -> None:  # as long as the loops take for one: the first call finds cold caches
        for _ in range(repeats):
            many.reset()
            many.should_return_many(queued, now, 50)

    def loop() -> None:
        judge = PyCoDel().should_return
        _ = [judge(a, b, 50) for a, b in zip(ages, moments, strict=True)]

    def calls() -> None:
        scalar.reset()
        judge = scalar.should_return
        _ = [judge(a * 1e-9, b * 1e-9, 50) for a, b in zip(ages, moments, strict=True)]

    took = medians(arrays=arrays, loop=loop, calls=calls)
    took["arrays"] /= repeats
    record(
        benchmark,
        {"the law in a Python loop : should_return_many": (took["loop"] / took["arrays"], ">=", 50)},
        **{f"{name}_ns": seconds / size * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(arrays, rounds=20)
