"""Fair shares in workers of Celery and dramatiq, on a real broker."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import celery
import pytest
from support.frameworks import Jobs
from support.kombu_workers import TRANSPORTS
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.waiting import eventually

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


@pytest.mark.steady
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


@pytest.mark.steady
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


@pytest.mark.steady
def test_tenants_share_alike_among_greenlets(broker: Node, names: list[str], tmp_path: Path) -> None:
    """gevent puts a class of its own in the place of `queue.Queue`."""
    test_tenants_of_a_queue_share_alike("dramatiq-gevent", broker, names, tmp_path)


@pytest.mark.rabbitmq("how its channels end")
def test_what_was_sent_is_with_the_broker(framework: str, broker: Node, names: list[str], tmp_path: Path) -> None:
    """However busy it is: the broker stands still until the process that sends has nothing left to send."""
    jobs = Jobs(framework, broker.url, names[:1], tmp_path / "done", None, 1)
    assert broker._process is not None
    group = broker._process.pid
    jobs.send(
        "import os, signal, subprocess\n"
        f"send({names[0]!r}, 'first', 0)\n"
        f"os.killpg({group}, signal.SIGSTOP)\n"
        f"subprocess.Popen(['sh', '-c', 'sleep 1; kill -CONT -{group}'], stdout=-3, stderr=-3)\n"  # -3: DEVNULL
        f"for number in range(300): send({names[0]!r}, 'flood', 0)"
    )
    eventually(lambda: broker.count(names[0]) == 301)


@pytest.mark.steady
def test_a_late_tenant_does_not_wait_for_a_flood(broker: Node, names: list[str], tmp_path: Path) -> None:
    """Celery takes the end of a process for one more that is free, and this worker replaces each after two tasks."""
    queue = names[0]
    jobs = Jobs("celery", broker.url, [queue], tmp_path / "done", {"key": "option:tenant"}, 1000)
    program = (
        "import os\n"
        "from support.waiting import eventually\n"
        f"for number in range(120): send({queue!r}, 'flood', 0.1, 'flood')\n"
        "eventually(lambda: len(open(os.environ['DONE']).readlines()) >= 36, 100)\n"
        f"send({queue!r}, 'late', 0.1, 'late')"
    )
    with jobs.worker(["--max-tasks-per-child", "2"]), ThreadPoolExecutor() as threads:
        sent = threads.submit(jobs.send, program)
        eventually(lambda: "late" in dict(jobs.begun()) or (sent.done() and sent.exception()), 120)
        sent.result()
    assert [name for name, _ in jobs.begun()].index("late") < 48


def test_a_lost_connection_loses_no_job(
    framework: str, broker: Node, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fairsched's transport in Celery's case."""
    monkeypatch.setenv("TRANSPORT", TRANSPORTS["fairsched"])
    queue = names[0]
    with Proxy(broker.port) as proxy:
        jobs = Jobs(framework, behind(proxy, broker.url), [queue], tmp_path / "done", {"key": "option:tenant"}, 64)
        jobs.send(f"for number in range(200): send({queue!r}, str(number), 0.01, str(number % 3))")
        with jobs.worker():
            eventually(lambda: len(jobs.begun()) >= 40, 120)
            proxy.cut()
            eventually(lambda: len({name for name, _ in jobs.begun()}) == 200, 120)


def test_any_number_of_tasks_may_be_revoked_while_they_wait(broker: Node, names: list[str], tmp_path: Path) -> None:
    queue = names[0]
    jobs = Jobs("celery", broker.url, [queue], tmp_path / "done", {"cost": "constant"}, 4000)
    app = celery.Celery(broker=broker.url)
    with jobs.worker():
        busy = [app.send_task("work", ("busy", 60), queue=queue).id for _ in range(2)]
        waiting = [app.send_task("work", ("waiting", 0), queue=queue).id for _ in range(2000)]
        eventually(lambda: broker.left(queue) == 2002 and broker.count(queue) == 0, 120)
        for ids in waiting, busy:
            app.control.revoke(ids, terminate=ids is busy, signal="SIGKILL", reply=True, limit=1, timeout=60)
        app.send_task("work", ("after", 0), queue=queue)
        eventually(lambda: broker.left(queue) == 0, 120)
    assert [name for name, _ in jobs.begun()] == ["after"]


def test_a_queue_that_is_added_and_cancelled_keeps_one_channel(broker: Node, names: list[str], tmp_path: Path) -> None:
    first, second = names
    jobs = Jobs("celery", broker.url, [first], tmp_path / "done", {"cost": "constant"}, 4)
    control = celery.Celery(broker=broker.url).control
    jobs.send(f"for queue in {names!r}: send(queue, queue, 0)")
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 1, 120)
        found = set()
        for _ in range(3):
            for command in control.add_consumer, control.cancel_consumer:
                [answer] = command(second, reply=True, limit=1, timeout=60)
                assert "ok" in next(iter(answer.values()))
            found.add(broker.channels())
        assert len(found) == 1
        eventually(lambda: len(jobs.begun()) == 2, 120)


@pytest.mark.parametrize("options", [["-P", "solo"], ["-P", "threads"]])
def test_other_pools_of_celery_are_refused(options: list[str], broker: Node, names: list[str], tmp_path: Path) -> None:
    jobs = Jobs("celery", broker.url, names, tmp_path / "done", {"cost": "time"}, 8)
    with jobs.worker(options) as worker:
        assert worker.wait(60) != 0
    assert "fair_shares needs the prefork pool on an event loop" in jobs.log()
