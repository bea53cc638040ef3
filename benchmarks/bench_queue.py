"""The queue whose consumers pull: put and pull without the GIL, from Python, beside queue.Queue, and in memory."""

from __future__ import annotations

import queue
import subprocess
import sys
from typing import Any

from interleave import medians, record

from fairsched import PullQueue, _probe_nodes, _probe_queue

COUNT = 500_000
ROUNDS = 15
KINDS = ["standard", "priority", "sorted", "last-value", "fair"]


def idle(kind: int, consumers: int = 1) -> Any:
    """A queue with consumers, of which the first takes everything."""
    probe = _probe_queue.ProbeQueue(kind, 0, 10)
    probe.idle(consumers)
    return probe


def test_put_and_pull(benchmark: Any) -> None:
    """One message put, pulled and acknowledged, on one thread. What is pulled has to go, or memory is measured."""
    probes = {name.replace("-", "_"): idle(kind) for kind, name in enumerate(KINDS)}
    crowd = idle(0, 10_000)
    took = medians(
        ROUNDS,
        mutex=lambda: _probe_nodes.mutex_lock_unlock(COUNT),
        exchange=lambda: _probe_nodes.exchanges(COUNT),
        crowd=lambda: crowd.cycle(COUNT),
        **{name: lambda probe=probe: probe.cycle(COUNT) for name, probe in probes.items()},
    )
    record(
        benchmark,
        {
            # 40 ns on a machine whose exchange takes 2.5.
            "put+pull+ack : an atomic exchange": (took["standard"] / took["exchange"], "<=", 16),
            "put+pull+ack : an uncontended lock+unlock": (took["standard"] / took["mutex"], "<=", 8),
            "put+pull+ack, priority : standard": (took["priority"] / took["standard"], "<=", 1.5),
            "put+pull+ack, fair : standard": (took["fair"] / took["standard"], "<=", 2),
            "put+pull+ack, 10 000 consumers : one": (took["crowd"] / took["standard"], "<=", 1.5),
        },
        **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: probes["standard"].cycle(COUNT), rounds=10)


def pulled(jobs: Any, worker: Any, count: int, batch: int) -> None:
    """Put, then pull one by one, or in batches, and acknowledge."""
    for item in range(count):
        jobs.put(item)
    if batch == 1:
        while (entry := worker.pull()) is not None:
            entry.ack()
    while entries := worker.pull_many(batch):
        for entry in entries:
            entry.ack()


def got(jobs: Any, count: int) -> None:
    """The same with queue.Queue."""
    for item in range(count):
        jobs.put(item)
    for _ in range(count):
        jobs.get()
        jobs.task_done()


def test_from_python(benchmark: Any) -> None:
    """A put, a pull and an ack from Python, beside queue.Queue's put and get; and pulling in batches."""
    count = 20_000
    ours, theirs = PullQueue(), queue.Queue[int]()
    worker = ours.subscribe("worker")
    took = medians(
        ROUNDS,
        pulled=lambda: pulled(ours, worker, count, 1),
        batched=lambda: pulled(ours, worker, count, 100),
        peer=lambda: got(theirs, count),
    )
    record(
        benchmark,
        {
            "queue.Queue, put+get+task_done : put+pull+ack": (took["peer"] / took["pulled"], ">=", 3),
            "put+pull+ack : pulling 100 at a time": (took["pulled"] / took["batched"], ">=", 0.9),
        },
        **{f"{name}_ns": seconds / count * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: pulled(ours, worker, count, 1), rounds=5)


MEMORY = """
import psutil
from fairsched._probe_queue import ProbeQueue
queue, process, count = ProbeQueue(0, 0, 1), psutil.Process(), 100_000
queue.reserve(count)
before = process.memory_info().rss
queue.idle(count)
print((process.memory_info().rss - before) / count)
"""


def test_memory(benchmark: Any) -> None:
    """Resident memory of 100 000 subscriptions in the engine, in a process of their own."""

    def measure() -> float:
        return float(subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True).stdout)

    each = benchmark.pedantic(measure, rounds=1)
    record(benchmark, {"bytes for each of 100 000 subscriptions : 1": (each, "<=", 512)}, bytes_each=each)
