"""Workers of Celery and dramatiq with fair shares, beside the same workers as they come, under a flood.

One queue, a worker of two processes or threads, jobs of 10 ms. One tenant has sent a flood; while the worker is at it,
99 others send a job each. What is compared is how long those wait (from sending to beginning, 99th percentile), and the
jobs a second in all.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interleave import record
from support.frameworks import Jobs
from support.rabbitmq import Node
from support.waiting import eventually

FLOOD, QUIET, BUSY, WINDOW, ROUNDS = 1500, 99, 0.01, 4000, 3
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
