"""Workers of Celery and dramatiq with fair shares, beside the same workers as they come, under a flood.

One queue, a worker of two processes or threads, jobs of 10 ms. One tenant has sent a flood; while the worker is at it,
99 others send a job each. What is compared is how long those wait (from sending to beginning, 99th percentile), and the
jobs a second in all.

With lanes, the flood is longer than any window and its tasks do nothing. A relay has moved it before the worker starts,
and moves the tasks of the others when they come: their waits include that. Tasks a second are compared in shorter
floods, which alternate.
"""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from interleave import record
from support.frameworks import Jobs
from support.rabbitmq import Node
from support.relaying import running
from support.waiting import eventually

from fairsched import Consumer, Lanes, Publisher
from fairsched.lanes.relay import Relay

FLOOD, QUIET, BUSY, WINDOW, ROUNDS = 1500, 99, 0.01, 4000, 3
LONG_FLOOD, LONG_ROUNDS = 100_000, 1
PACE_FLOOD, PACE_ROUNDS = 15_000, 5
WAYS: dict[str, dict[str, Any] | None] = {"stock": None, "fair": {"key": "option:tenant"}}
_numbers = itertools.count()


class Run(NamedTuple):
    """What one worker did."""

    wait: float
    rate: float


class Pace(NamedTuple):
    """Tasks a second, and processor time of the worker and its processes for each."""

    rate: float
    seconds: float


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as found:
        yield found


def flooded(framework: str, node: Node, done: Path, shares: dict[str, Any] | None) -> Run:
    """Run a worker through the flood."""
    queue = f"flood-{next(_numbers)}"
    jobs = Jobs(framework, node.url, [queue], done, shares, WINDOW)
    jobs.send(f"for _ in range({FLOOD}): send({queue!r}, 'flood', {BUSY}, 'flood')")
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) >= 50, 120)
        # Each is named after when it was sent.
        jobs.send(
            f"import time\nfor tenant in range({QUIET}):\n"
            f"    send({queue!r}, str(time.time()), {BUSY}, str(tenant)); time.sleep(0.02)"
        )
        eventually(lambda: len(jobs.begun()) == FLOOD + QUIET, 300)
    begun = jobs.begun()
    waits = sorted(began - float(name) for name, began in begun if name != "flood")
    return Run(waits[int(0.99 * len(waits))], len(begun) / (begun[-1][1] - begun[0][1]))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("framework", ["celery", "dramatiq"])
def test_quiet_tenants_under_a_flood(benchmark: Any, node: Node, tmp_path: Path, framework: str) -> None:
    """Waits of 99 quiet tenants, and all jobs a second, with fair shares and without."""
    runs: dict[str, list[Run]] = {name: [] for name in WAYS}
    for number in range(ROUNDS):
        for name, shares in WAYS.items():
            runs[name].append(flooded(framework, node, tmp_path / f"{name}-{number}", shares))
    wait = {name: statistics.median(run.wait for run in found) for name, found in runs.items()}
    rate = {name: statistics.median(run.rate for run in found) for name, found in runs.items()}
    record(
        benchmark,
        {
            f"{framework}: wait of quiet tenants, 99th percentile, stock : fair": (
                wait["stock"] / wait["fair"],
                ">=",
                20,
            ),
            f"{framework}: jobs a second, fair : stock": (rate["fair"] / rate["stock"], ">=", 0.95),
        },
        stock_wait_s=wait["stock"],
        fair_wait_s=wait["fair"],
        stock_jobs_s=rate["stock"],
        fair_jobs_s=rate["fair"],
    )
    benchmark.pedantic(flooded, args=(framework, node, tmp_path / "timed", WAYS["fair"]), rounds=1)


def flood(url: str, jobs: Jobs, queue: str, length: int) -> None:
    """Fill a queue with copies of one task, each with an id of its own: faster than Celery sends them."""
    jobs.send(f"send({queue!r}, 'flood', 0, 'flood')")
    with Consumer(url, [queue]) as consumer:
        template = consumer.get(20)
        template.ack()
    properties = template.properties
    with Publisher(url) as publisher:
        for _ in range(length):
            one = str(uuid.uuid4())
            publisher.publish(
                template.body, queue, headers={**properties.headers, "id": one, "root_id": one}, correlation_id=one,
                content_type=properties.content_type, content_encoding=properties.content_encoding, delivery_mode=2,
            )  # fmt: skip


@contextmanager
def behind_flood(node: Node, done: Path, way: str, length: int) -> Iterator[tuple[Jobs, str, psutil.Process]]:
    """Send a flood, move it to lanes if these are wanted, and run a worker of Celery's: its jobs, queue and process."""
    lanes = Lanes(f"long-flood-{next(_numbers)}", key="header:tenant")
    shares = {"lanes": {"name": lanes.name, "key": lanes.key}} if way == "lanes" else None
    jobs = Jobs("celery", node.url, [lanes.name], done, shares, 8)
    flood(node.url, jobs, lanes.name, length)
    with ExitStack() as stack:
        if shares:
            relay = Relay(node.url, lanes)
            stack.enter_context(running(relay))
            eventually(lambda: relay.stats()["moved"] == length, 300)
        yield jobs, lanes.name, psutil.Process(stack.enter_context(jobs.worker()).pid)


def flooded_for_long(node: Node, done: Path, way: str) -> float:
    """Return how long quiet tenants wait behind the long flood, 99th percentile."""
    with behind_flood(node, done, way, LONG_FLOOD) as (jobs, queue, _):
        eventually(lambda: ended(done) >= 50, 120, every=0.1)
        jobs.send(
            f"import time\nfor tenant in range({QUIET}):\n"
            f"    send({queue!r}, str(time.time()), 0, str(tenant)); time.sleep(0.02)"
        )
        eventually(lambda: ended(done) == LONG_FLOOD + QUIET, 900, every=1)
    waits = sorted(began - float(name) for name, began in jobs.begun() if name != "flood")
    return waits[int(0.99 * len(waits))]


def paced(node: Node, done: Path, way: str) -> Pace:
    """Return the pace of a worker in the middle of a flood."""
    with behind_flood(node, done, way, PACE_FLOOD) as (_, _, worker):
        eventually(lambda: ended(done) >= PACE_FLOOD // 10, 120, every=0.05)
        first, seconds, since = ended(done), busy(worker), time.perf_counter()
        eventually(lambda: ended(done) >= 9 * PACE_FLOOD // 10, 300, every=0.05)
        count, elapsed = ended(done) - first, time.perf_counter() - since
        return Pace(count / elapsed, (busy(worker) - seconds) / count)


def ended(done: Path) -> int:
    """Return how many jobs have ended."""
    return done.read_bytes().count(b"\n")


def busy(worker: psutil.Process) -> float:
    """Return the processor time of a worker and its processes, in seconds."""
    times = [process.cpu_times() for process in (worker, *worker.children())]
    return sum(each.user + each.system for each in times)


@pytest.mark.timeout(3600)
def test_quiet_tenants_under_a_long_flood(benchmark: Any, node: Node, tmp_path: Path) -> None:
    """Waits of 99 quiet tenants, with lanes and without."""
    waits: dict[str, list[float]] = {"stock": [], "lanes": []}
    for number in range(LONG_ROUNDS):
        for way, found in waits.items():
            found.append(flooded_for_long(node, tmp_path / f"{way}-{number}", way))
    wait = {way: statistics.median(found) for way, found in waits.items()}
    what = "celery: wait of quiet tenants after 100 000 tasks, 99th percentile, stock : lanes"
    record(
        benchmark,
        {what: (wait["stock"] / wait["lanes"], ">=", 100)},
        stock_wait_s=wait["stock"],
        lanes_wait_s=wait["lanes"],
    )
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.timeout(3600)
def test_pace_under_a_long_flood(benchmark: Any, node: Node, tmp_path: Path) -> None:
    """All tasks a second, and processor time for each, with lanes and without."""
    paces: dict[str, list[Pace]] = {"stock": [], "lanes": []}
    for number in range(PACE_ROUNDS):
        for way, found in paces.items():
            found.append(paced(node, tmp_path / f"pace-{way}-{number}", way))
    rate = {way: statistics.median(pace.rate for pace in found) for way, found in paces.items()}
    seconds = {way: statistics.median(pace.seconds for pace in found) for way, found in paces.items()}
    record(
        benchmark,
        {
            "celery: tasks a second, lanes : stock": (rate["lanes"] / rate["stock"], ">=", 0.95),
            "celery: processor time a task, lanes : stock": (seconds["lanes"] / seconds["stock"], "<=", 1.1),
        },
        stock_tasks_s=rate["stock"],
        lanes_tasks_s=rate["lanes"],
        stock_processor_s=seconds["stock"],
        lanes_processor_s=seconds["lanes"],
    )
    benchmark.pedantic(lambda: None, rounds=1)
