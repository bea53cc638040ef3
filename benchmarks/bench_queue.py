"""The queue whose consumers pull: put and pull without the GIL, from Python, beside queue.Queue, and in memory."""

from __future__ import annotations

import queue
import subprocess
import sys
from typing import Any

from interleave import medians, record

from fairsched import _probe_nodes, _probe_queue
from fairsched.pullqueue import PullQueue

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


def woken_by(count: int, consumers: int, filtered: bool) -> float:
    """Wake-ups per message, when as many come as half of the sleeping consumers, and each takes one and is busy."""
    jobs = PullQueue()
    workers = [jobs.subscribe(filter=(lambda item: True) if filtered else None) for _ in range(consumers)]
    for item in range(count):
        jobs.put(item)
    told = {worker.name for worker in workers if worker.notified_count}
    assert sum(worker.pull() is not None for worker in workers if worker.name in told) == count
    return sum(worker.notified_count for worker in workers) / count


def test_wake_ups(benchmark: Any) -> None:
    """One for each message, although nobody who took one comes back."""
    record(
        benchmark,
        {
            f"wake-ups : messages, {name}": (woken_by(100, 200, filtered), "<=", 1)
            for name, filtered in (("without filters", False), ("with filters", True))
        },
    )
    benchmark.pedantic(lambda: woken_by(100, 200, False), rounds=5)


def turnover(jobs: Any, worker: Any, count: int) -> None:
    """One message at a time is put, pulled and acknowledged."""
    for item in range(count):
        jobs.put(item, key=item % 100, priority=item % 10)
        worker.pull().ack()


def test_a_resting_browser(benchmark: Any) -> None:
    """What a message costs after 100 000 others beside a browser that has looked once, and after none."""
    count, past = 2_000, 100_000
    queues: dict[str, Any] = {}
    for kind in ("priority", "sorted"):
        for name, browsers, before in (("alone", 0, 0), ("fresh", 1, 0), ("rested", 1, past)):
            jobs = PullQueue(kind)
            worker = jobs.subscribe("worker")
            for _ in range(browsers):
                jobs.put(0, key="~", priority=0)
                browser = jobs.subscribe("browser", acquires=False)
                assert (browser.pull() is not None, browser.pull()) == (True, None)
                worker.pull().ack()
            turnover(jobs, worker, before)
            queues[f"{kind}_{name}"] = (jobs, worker)
    took = medians(ROUNDS, **{name: lambda pair=pair: turnover(*pair, count) for name, pair in queues.items()})
    record(
        benchmark,
        {
            f"put+pull+ack, {kind}, a browser that rested for {past} messages : one that came just now": (
                took[f"{kind}_rested"] / took[f"{kind}_fresh"],
                "<=",
                1.2,
            )
            for kind in ("priority", "sorted")
        },
        **{f"{name}_ns": seconds / count * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: turnover(*queues["priority_rested"], count), rounds=5)


def visit(jobs: Any) -> None:
    """A consumer comes, finds nothing for it, and goes."""
    passing = jobs.subscribe(filter=lambda item: False)
    passing.pull()
    passing.cancel()


def test_short_lived_filters(benchmark: Any) -> None:
    """A consumer that refuses all of 1000 messages of a fair queue, after 200 others, and after none."""
    queues = {}
    for name, before in (("first", 0), ("last", 200)):
        jobs = PullQueue("fair", quanta={"a": 1})
        for item in range(1000):
            jobs.put(item, slot="a")
        for _ in range(before):
            visit(jobs)
        queues[name] = jobs
    took = medians(5, **{name: lambda jobs=jobs: visit(jobs) for name, jobs in queues.items()})
    record(
        benchmark,
        {"a filtered consumer's stay, after 200 : after none": (took["last"] / took["first"], "<=", 1.2)},
        **{f"{name}_ms": seconds * 1e3 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: visit(queues["last"]), rounds=5)


def refused_by(count: int) -> Any:
    """A queue of one message at most, and consumers that refuse everything."""
    jobs = PullQueue(overflow="ring", max_depth=1)
    for _ in range(count):
        jobs.subscribe(filter=lambda item: False)
    return jobs


def holding(kind: str, count: int) -> Any:
    """A queue with messages that nobody takes."""
    jobs = PullQueue(kind, quanta={"a": 1} if kind == "fair" else None)
    for item in range(count):
        jobs.put(item, slot="a" if kind == "fair" else None)
    return jobs


def refused_before(behind: int) -> Any:
    """A message in each of 300 slots, and so many of another slot behind them."""
    jobs = PullQueue("fair", quanta=dict.fromkeys([*range(300), "backlog"], 1))
    for number in range(300):
        jobs.put(False, slot=number)
    for _ in range(behind):
        jobs.put(True, slot="backlog")
    return jobs


def past_refusals(jobs: Any) -> None:
    """Have a consumer come that refuses a message of each slot but one."""
    picky = jobs.subscribe(filter=bool)
    picky.pull().release()
    picky.cancel()


def test_filters_that_refuse(benchmark: Any) -> None:
    """A put beside consumers that refuse it, and a look past messages refused: in proportion to how many they are."""
    few, many = refused_by(100), refused_by(1000)
    queues = {f"{kind}_{count}": holding(kind, count) for kind in ("standard", "fair") for count in (1000, 10_000)}
    shallow, deep = refused_before(100), refused_before(20_000)
    took = medians(
        5,
        shallow=lambda: past_refusals(shallow),
        deep=lambda: past_refusals(deep),
        put_100=lambda: few.put(0),
        put_1000=lambda: many.put(0),
        **{name: lambda jobs=jobs: visit(jobs) for name, jobs in queues.items()},
    )
    record(
        benchmark,
        {
            "a put that 1000 filters refuse : 100": (took["put_1000"] / took["put_100"], "<=", 15),
            "a look past 10 000 messages refused : 1000": (took["standard_10000"] / took["standard_1000"], "<=", 15),
            "the same, fair": (took["fair_10000"] / took["fair_1000"], "<=", 15),
            "a look past 300 slots refused, 20 000 of another behind : 100": (took["deep"] / took["shallow"], "<=", 3),
        },
        **{f"{name}_ms": seconds * 1e3 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: many.put(0), rounds=5)


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
