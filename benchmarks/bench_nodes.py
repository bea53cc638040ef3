"""Consumers moving between lists: without the GIL, from Python, from two threads, and with very many of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from typing import Any

from interleave import at_once, medians, record

from fairsched import _probe_nodes

COUNT = 1_000_000  # so that each of 100 000 consumers has ten turns: the first finds it in nobody's cache
ROUNDS = 21


def consumers(count: int, priorities: int = 1) -> Any:
    """A manager with `count` interested consumers in each of `priorities`."""
    manager = _probe_nodes.ProbeInterest()
    for priority in range(priorities):
        first = manager.make(count, priority)
        for number in range(first, first + count):
            manager.add(number)
    return manager


class OrderedConsumers:
    """The same lists as an OrderedDict for each priority and state, in plain Python."""

    def __init__(self, count: int, priorities: int) -> None:
        self.interested = [OrderedDict.fromkeys((p, i) for i in range(count)) for p in reversed(range(priorities))]
        self.notified: list[OrderedDict[Any, None]] = [OrderedDict() for _ in self.interested]

    def notify_first(self) -> Any:
        for interested, notified in zip(self.interested, self.notified, strict=True):
            if interested:
                node, _ = interested.popitem(last=False)
                notified[node] = None
                return node
        return None

    def done(self, node: Any) -> None:
        at = len(self.interested) - 1 - node[0]
        del self.notified[at][node]
        self.interested[at][node] = None


class ListedConsumers:
    """Consumers in a list, each with a flag: finding one that is interested looks at all before it."""

    def __init__(self, count: int) -> None:
        self.interested = [False] * (count - 1) + [True]

    def notify_first(self) -> int:
        for number, interested in enumerate(self.interested):
            if interested:
                self.interested[number] = False
                return number
        return -1

    def done(self, number: int) -> None:
        self.interested[number] = True


def both(first: Any, second: Any) -> int:
    """Nanoseconds for COUNT cycles by each of two threads at once."""
    return at_once(lambda: first.cycle(COUNT), lambda: second.cycle(COUNT))


def test_notify_and_done(benchmark: Any) -> None:
    """One consumer found, notified and done, inside one nogil call: beside a mutex, and however many there are."""
    one, many, ten, lowest = consumers(1), consumers(100_000), consumers(1, 10), consumers(1, 10)
    for number in range(1, 10):
        lowest.set(number, False)
    took = medians(
        ROUNDS,
        mutex=lambda: _probe_nodes.mutex_lock_unlock(COUNT),
        one=lambda: one.cycle(COUNT),
        many=lambda: many.cycle(COUNT),
        ten=lambda: ten.cycle(COUNT),
        lowest=lambda: lowest.cycle(COUNT),
    )
    record(
        benchmark,
        {
            "notify+done : an uncontended lock+unlock": (took["one"] / took["mutex"], "<=", 6),
            "notify+done, 100 000 consumers : one": (took["many"] / took["one"], "<=", 1.5),
            "notify+done, 10 priorities : one": (took["ten"] / took["one"], "<=", 1.5),
            "notify+done, only the lowest of 10 interested : one": (took["lowest"] / took["one"], "<=", 1.5),
        },
        **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: one.cycle(COUNT), rounds=10)


def test_delete_and_append(benchmark: Any) -> None:
    """One list, one thread: a delete, an append, and the sweep that comes due; then two threads, one list and two."""
    nodes, other, first, second = _probe_nodes.ProbeList(), _probe_nodes.ProbeList(), consumers(2), consumers(2)
    took = medians(
        ROUNDS,
        exchange=lambda: _probe_nodes.exchanges(COUNT),
        one=lambda: nodes.cycle(COUNT),
        shared=lambda: both(nodes, nodes),
        apart=lambda: both(nodes, other),
        queue=lambda: first.cycle(COUNT),
        one_queue=lambda: both(first, first),
        two_queues=lambda: both(first, second),
    )
    bars: dict[str, tuple[float, str, float]] = {
        # 20 ns on a machine whose exchange takes 2.5.
        "delete+append+sweep : an atomic exchange": (took["one"] / took["exchange"], "<=", 8),
    }
    if (os.cpu_count() or 1) >= 2:
        bars |= {
            "two threads on one list : one thread, deletes+appends per second": (
                2 * took["one"] / took["shared"],
                ">=",
                0.5,
            ),
            "two threads on two lists : one thread": (2 * took["one"] / took["apart"], ">=", 1.6),
            "two threads on one queue : one thread, notify+done per second": (
                2 * took["queue"] / took["one_queue"],
                ">=",
                0.5,
            ),
            "two threads on two queues : one thread": (2 * took["queue"] / took["two_queues"], ">=", 1.6),
        }
    record(benchmark, bars, **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()})
    benchmark.pedantic(lambda: nodes.cycle(COUNT), rounds=10)


def test_from_python(benchmark: Any) -> None:
    """Two calls from Python, notify and done: beside an OrderedDict for each priority, and a scan of a list."""
    calls = 2_000
    engine, ordered, listed = consumers(1_000, 10), OrderedConsumers(1_000, 10), ListedConsumers(10_000)
    large = consumers(10_000)
    for _ in range(9_999):
        large.notify_first()
    lowest = OrderedConsumers(1_000, 10)
    low_engine = consumers(1_000, 10)
    for _ in range(9_000):
        lowest.notify_first()
        low_engine.notify_first()

    def cycles(peer: Any, count: int) -> None:
        notify_first, done = peer.notify_first, peer.done
        for _ in range(count):
            done(notify_first())

    took = medians(
        ROUNDS,
        engine=lambda: cycles(engine, calls),
        ordered=lambda: cycles(ordered, calls),
        low_engine=lambda: cycles(low_engine, calls),
        lowest=lambda: cycles(lowest, calls),
        large=lambda: cycles(large, calls),
        listed=lambda: cycles(listed, 2),
    )
    record(
        benchmark,
        {
            "OrderedDict per priority, lowest of 10 : notify+done from Python": (
                took["lowest"] / took["low_engine"],
                ">=",
                8,
            ),
            "scan of a list of 10 000 : notify+done from Python": (
                took["listed"] / 2 / (took["large"] / calls),
                ">=",
                500,
            ),
        },
        **{f"{name}_ns": seconds / (2 if name == "listed" else calls) * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: cycles(engine, calls), rounds=10)


MEMORY = """
import psutil
from fairsched._probe_nodes import ProbeInterest
manager, process, count = ProbeInterest(), psutil.Process(), 100_000
before = process.memory_info().rss
manager.make(count)
for number in range(count):
    manager.add(number)
manager.cycle(3 * count)
print((process.memory_info().rss - before) / count)
"""


def test_memory(benchmark: Any) -> None:
    """Resident memory of 100 000 consumers, each notified and done three times, in a process of their own."""

    def measure() -> float:
        return float(subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True).stdout)

    each = benchmark.pedantic(measure, rounds=1)
    record(benchmark, {"bytes for each of 100 000 consumers : 1": (each, "<=", 512)}, bytes_each=each)
