"""Workers of Celery and dramatiq with fair shares, beside the same workers as they come, under a flood.

One queue, a worker of two processes or threads, jobs of 10 ms. One tenant has sent a flood; while the worker is at it,
99 others send a job each. What is compared is how long those wait (from sending to beginning, 99th percentile), and the
jobs a second in all.

With lanes, the flood is longer than any window and its tasks do nothing. A relay has moved it before the worker starts,
and moves the tasks of the others when they come: their waits include that.
"""

from __future__ import annotations

import itertools
import statistics
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

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
WAYS: dict[str, dict[str, Any] | None] = {"stock": None, "fair": {"key": "option:tenant"}}
_numbers = itertools.count()


class Run(NamedTuple):
    """What one worker did."""

    wait: float
    rate: float


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


def flood(url: str, jobs: Jobs, queue: str) -> None:
    """Fill a queue with copies of one task, each with an id of its own: faster than Celery sends them."""
    jobs.send(f"send({queue!r}, 'flood', 0, 'flood')")
    with Consumer(url, [queue]) as consumer:
        template = consumer.get(20)
        template.ack()
    properties = template.properties
    with Publisher(url) as publisher:
        for _ in range(LONG_FLOOD):
            one = str(uuid.uuid4())
            publisher.publish(
                template.body, queue, headers={**properties.headers, "id": one, "root_id": one}, correlation_id=one,
                content_type=properties.content_type, content_encoding=properties.content_encoding, delivery_mode=2,
            )  # fmt: skip


def flooded_for_long(node: Node, done: Path, way: str) -> Run:
    """Run a worker of Celery's through the long flood."""
    lanes = Lanes(f"long-flood-{next(_numbers)}", key="header:tenant")
    shares = {"lanes": {"name": lanes.name, "key": lanes.key}} if way == "lanes" else None
    jobs = Jobs("celery", node.url, [lanes.name], done, shares, 8)
    flood(node.url, jobs, lanes.name)
    with ExitStack() as stack:
        if shares:
            relay = Relay(node.url, lanes)
            stack.enter_context(running(relay))
            eventually(lambda: relay.stats()["moved"] == LONG_FLOOD, 300)
        stack.enter_context(jobs.worker())
        eventually(lambda: done.read_bytes().count(b"\n") >= 50, 120, every=0.1)
        jobs.send(
            f"import time\nfor tenant in range({QUIET}):\n"
            f"    send({lanes.name!r}, str(time.time()), 0, str(tenant)); time.sleep(0.02)"
        )
        eventually(lambda: done.read_bytes().count(b"\n") == LONG_FLOOD + QUIET, 900, every=1)
    begun = jobs.begun()
    waits = sorted(began - float(name) for name, began in begun if name != "flood")
    return Run(waits[int(0.99 * len(waits))], len(begun) / (begun[-1][1] - begun[0][1]))


@pytest.mark.timeout(3600)
def test_quiet_tenants_under_a_long_flood(benchmark: Any, node: Node, tmp_path: Path) -> None:
    """Waits of 99 quiet tenants, and all tasks a second, with lanes and without."""
    runs: dict[str, list[Run]] = {"stock": [], "lanes": []}
    for number in range(LONG_ROUNDS):
        for way, found in runs.items():
            found.append(flooded_for_long(node, tmp_path / f"{way}-{number}", way))
    wait = {way: statistics.median(run.wait for run in found) for way, found in runs.items()}
    rate = {way: statistics.median(run.rate for run in found) for way, found in runs.items()}
    record(
        benchmark,
        {
            "celery: wait of quiet tenants after 100 000 tasks, 99th percentile, stock : lanes": (
                wait["stock"] / wait["lanes"],
                ">=",
                100,
            ),
            "celery: tasks a second, lanes : stock": (rate["lanes"] / rate["stock"], ">=", 0.95),
        },
        stock_wait_s=wait["stock"],
        lanes_wait_s=wait["lanes"],
        stock_tasks_s=rate["stock"],
        lanes_tasks_s=rate["lanes"],
    )
    benchmark.pedantic(lambda: None, rounds=1)
