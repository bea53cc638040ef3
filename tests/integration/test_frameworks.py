"""Fair shares in workers of Celery and dramatiq, on a real broker."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from support.frameworks import Jobs
from support.proxy import Proxy, behind
from support.rabbitmq import Node, eventually

pytestmark = pytest.mark.steady
_numbers = itertools.count()


@pytest.fixture(params=["celery", "dramatiq"])
def framework(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def names() -> list[str]:
    """Names of queues that the framework declares itself."""
    number = next(_numbers)
    return [f"frameworks-gold-{number}", f"frameworks-free-{number}"]


def test_queues_share_as_their_weights_say(framework: str, broker: Node, names: list[str], tmp_path: Path) -> None:
    gold, free = names
    jobs = Jobs(
        framework, broker.url, names, tmp_path / "done", {"weights": {gold: 40, free: 10}, "cost": "constant"}, 32
    )
    jobs.send(f"for number in range(400):\n    for queue in {names!r}: send(queue, queue, 0.01)")
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 800, 120)
    # Not the first: one queue's window was there before the other's.
    served = Counter(name for name, _ in jobs.begun()[50:450])
    assert served[gold] / 400 == pytest.approx(0.8, abs=0.03)


def test_tenants_of_a_queue_share_alike(framework: str, broker: Node, names: list[str], tmp_path: Path) -> None:
    queue = names[0]
    jobs = Jobs(framework, broker.url, [queue], tmp_path / "done", {"key": "option:tenant", "cost": "constant"}, 1000)
    # A flood, and then two that want little.
    jobs.send(
        f"for number in range(300): send({queue!r}, 'flood', 0.01, 'flood')\n"
        f"for number in range(20):\n    for tenant in 'ab': send({queue!r}, tenant, 0.01, tenant)"
    )
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 340, 120)
    order = [name for name, _ in jobs.begun()]
    # All 40 of the two within the first 60 that were served by turns; some of the flood began before they were here.
    last = max(place for place, name in enumerate(order) if name != "flood")
    assert last < 150


def test_a_lost_connection_loses_no_job(framework: str, broker: Node, names: list[str], tmp_path: Path) -> None:
    queue = names[0]
    with Proxy(broker.port) as proxy:
        jobs = Jobs(framework, behind(proxy, broker.url), [queue], tmp_path / "done", {"key": "option:tenant"}, 64)
        jobs.send(f"for number in range(200): send({queue!r}, str(number), 0.01, str(number % 3))")
        with jobs.worker():
            eventually(lambda: len(jobs.begun()) >= 40, 120)
            proxy.cut()
            eventually(lambda: len({name for name, _ in jobs.begun()}) == 200, 120)


@pytest.mark.parametrize("options", [["-P", "solo"], ["-P", "threads"]])
def test_other_pools_of_celery_are_refused(options: list[str], broker: Node, names: list[str], tmp_path: Path) -> None:
    jobs = Jobs("celery", broker.url, names, tmp_path / "done", {"cost": "time"}, 8)
    with jobs.worker(options) as worker:
        assert worker.wait(60) != 0
    assert "fair_shares needs the prefork pool on an event loop" in jobs.log()
