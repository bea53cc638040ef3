"""Workers at 70 % of what they can do: nothing grows, shares stay by weight, every message is handled once.

Half a minute stands for half an hour, which `make soak` takes (SOAK_MINUTES): each half second is a round of its own,
with tenants that were never there before, failures that are retried, a scrape, and a message of the share group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from support.growth import Sample, growth, held
from support.ports import free_ports
from support.rabbitmq import Broker, EmbeddedNode
from support.waiting import eventually

from fairsched import Publisher
from fairsched.fairness import shares

#: Seconds of the whole run, and of its beginning, in which memory does not count: a worker's heap takes some thirty
#: rounds to reach its size, in ever smaller steps.
DURATION = 60 * float(os.environ.get("SOAK_MINUTES", "0.5"))
WARM_UP = DURATION / 2
#: Seconds from one round to the next.
ROUND = 0.5
#: Messages in a round: of queues for each of their weight, of new tenants of one queue, and how many of these fail.
EACH, TENANTS, OF_TENANT, FAILING = 63, 20, 10, 5
#: The first queue is served alone until the second is published: it has to have enough for that.
WEIGHTS = [4, 3, 2, 1]

SUPPORT = Path(__file__).parents[1] / "support"


class Worker:
    """`fairsched run` with a metrics port, and what it wrote."""

    def __init__(self, url: str, queues: dict[str, int], folder: Path, *options: str) -> None:
        [self.port] = free_ports(1)
        self.seen, self.log = folder / "seen", folder / "log"
        folder.mkdir()
        self._log = self.log.open("wb")
        settings = {"FAIRSCHED_URL": url, "SOAKED_QUEUES": json.dumps(queues), "SOAKED_SEEN": str(self.seen)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "run", "soaked_worker:app", "--share-group", "soak",
             "--metrics-port", str(self.port), *options],
            cwd=SUPPORT, env={**os.environ, **settings}, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)
        self._log.close()

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return "fairsched_connected 1.0" in self.scrape()
        except OSError:
            return False

    def bodies(self) -> list[str]:
        return self.seen.read_text().splitlines() if self.seen.exists() else []

    def handled(self) -> int:
        """Return how many messages it has handled."""
        return self.seen.read_bytes().count(b"\n") if self.seen.exists() else 0

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()[-5000:]


class Rounds(threading.Thread):
    """Publishes a round a second until it is told to stop: queue after queue, which a fair order has to mix.

    When the broker has all of a round's messages of queues, it asks how many the worker has `handled`.
    """

    def __init__(self, url: str, queues: dict[str, int], tenants: str, handled: Callable[[], int]) -> None:
        super().__init__()
        self.url, self.queues, self.tenants, self.handled = url, queues, tenants, handled
        self.of_queues: list[str] = []
        self.of_tenants: list[str] = []
        self.handled_before: list[int] = []
        self.error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with Publisher(self.url) as publisher:
                begun, number = time.monotonic(), 0
                while not self._over.wait(begun + number * ROUND - time.monotonic()):
                    self._publish(publisher, number)
                    number += 1
        except BaseException as error:
            self.error = error

    def _publish(self, publisher: Publisher, number: int) -> None:
        for queue, weight in self.queues.items():
            for index in range(EACH * weight):
                self.of_queues.append(f"{number} {queue} {index}")
                publisher.publish(self.of_queues[-1].encode(), queue)
        publisher.flush(60)
        self.handled_before.append(self.handled())
        for tenant in range(TENANTS):
            for index in range(OF_TENANT):
                self.of_tenants.append(f"{number} {tenant} {index}")
                headers = {"tenant": f"{number}/{tenant}", "fails": index == 0 and tenant < FAILING}
                publisher.publish(self.of_tenants[-1].encode(), self.tenants, headers=headers)
        publisher.flush(60)

    def stop(self) -> None:
        self._over.set()
        self.join(90)
        if self.error is not None:
            raise self.error


@contextmanager
def publishing(rounds: Rounds) -> Iterator[None]:
    rounds.start()
    try:
        yield
    finally:
        rounds.stop()


def samples(processes: dict[str, psutil.Process], workers: list[Worker], seconds: float) -> Iterator[Sample]:
    """About a sample a round for so many seconds, each after a scrape."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        found: Sample = {}
        for worker in workers:
            assert worker.is_ready()
        for name, process in processes.items():
            found.update(held(name, process))
        yield found
        pause.wait(ROUND)


def served_together(order: list[str], begins: list[int], weights: dict[str, int]) -> list[Counter[str]]:
    """Return how many messages of each queue were served while all of them had messages, in each third of the rounds.

    A round counts from when all of it was at the broker, and one message of each queue was handled, to the last message
    of the queue that runs dry first, in whole turns of the scheduler: as many messages as the weights add up to. No
    message counts twice.
    """
    bodies = [body.split(" ") for body in order]
    places: dict[tuple[int, str], list[int]] = {}
    for index, (number, queue, _) in enumerate(bodies):
        places.setdefault((int(number), queue), []).append(index)
    turn, end, parts = sum(weights.values()), 0, []
    for third in range(3):
        served: Counter[str] = Counter()
        for round_ in range(third * len(begins) // 3, (third + 1) * len(begins) // 3):
            begin = max(begins[round_], end, *(places[round_, name][0] + 1 for name in weights))
            dry = min(places[round_, name][-1] for name in weights)
            end = begin + max(dry - begin, 0) // turn * turn
            served.update(queue for _, queue, _ in bodies[begin:end])
        parts.append(served)
    return parts


@pytest.mark.steady
@pytest.mark.timeout(DURATION + 300)
def test_nothing_grows_and_shares_stay(
    broker: Broker, new_queue: Callable[..., str], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    queues = {new_queue("soak"): weight for weight in WEIGHTS}
    tenants = new_queue("soaked")
    with ExitStack() as stack:
        fair = stack.enter_context(Worker(broker.url, queues, tmp_path / "queues"))
        many = stack.enter_context(
            Worker(
                broker.url, {tenants: 1}, tmp_path / "tenants", "--key", "header:tenant", "--workers", "2",
                "--tenants", '{"*": {"limit": "concurrency=1,rate=1000/s"}}', "--retry",
                "max_attempts=3,backoff=0.1:0.2", "--codel", "5s",
            )
        )  # fmt: skip
        workers = [fair, many]
        for worker in workers:
            eventually(worker.is_ready, 60, "the worker consumes")
        pids = {"worker of queues": fair.process.pid, "worker of tenants": many.process.pid}
        if isinstance(broker, EmbeddedNode):
            pids["broker"] = broker.pid
        processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        rounds = Rounds(broker.url, queues, tenants, fair.handled)
        with publishing(rounds):
            for _ in samples(processes, workers, WARM_UP):
                pass
            found = list(samples(processes, workers, DURATION - WARM_UP))
        eventually(lambda: fair.handled() >= len(rounds.of_queues), 60, "all of the queues is handled")
        eventually(lambda: many.handled() >= len(rounds.of_tenants), 60, "all of the tenants is handled")
        for worker in workers:
            worker.stop()
    order = fair.bodies()
    assert Counter(order) == Counter(rounds.of_queues)
    assert Counter(many.bodies()) == Counter(rounds.of_tenants)
    parts = served_together(order, rounds.handled_before, queues)
    errors = [[one.error for one in shares(part, queues)] for part in parts]
    grown = growth(found)
    figures = {
        "messages": len(order) + len(rounds.of_tenants),
        "served while all had messages": [part.total() for part in parts],
        "errors of shares": errors,
        "growth": grown,
        "samples": found[:: max(1, len(found) // 12)],
    }
    record_property("soak", figures)
    print(json.dumps(figures, indent=1))
    for part, error in zip(parts, errors, strict=True):
        assert part.total() >= len(order) // 10, "the queues are seldom busy at the same time"
        assert error == pytest.approx([0.0] * len(WEIGHTS), abs=0.03)
    for name in processes:
        assert grown[f"{name}: MB"] <= 0.5, grown
        assert grown[f"{name}: files"] <= 0, grown
        assert grown[f"{name}: threads"] <= 0, grown
