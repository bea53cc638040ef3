"""Lanes while everything is killed: producers, a relay and workers go on, and nothing is lost.

LANE_KILLS is the number of kills of each test, three by default; LANE_SEED changes their order.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from oracles.order import Losses, check, handlings
from support.lane_worker import arguments_of
from support.outcomes import Outcomes
from support.rabbitmq import Broker, on_embedded
from support.waiting import eventually

from fairsched import Lanes, Publisher
from fairsched.cli.exits import CONNECTION

KILLS = int(os.environ.get("LANE_KILLS", "3"))
#: Each is killed once in any three kills, in a random order.
VICTIMS = ("broker", "relay", "worker")
WORKERS = 3

#: Messages that are under way at each part, at most: those may come again when it is killed.
PUBLISHER_WINDOW = 100
RELAY_WINDOW = 200
#: The prefetch of a worker, 50, and at least one message of each lane.
WORKER_WINDOW = 150
#: Messages that were published and are not handled, before the producers pause.
FARTHEST_BEHIND = 1000
#: Copies that one kill can cause. What a relay has under way when the broker dies is published once more by its
#: publisher, and delivered again by the ingress queue.
COPIES = {
    "worker": WORKER_WINDOW,
    "relay": RELAY_WINDOW,
    "broker": WORKERS * WORKER_WINDOW + 3 * RELAY_WINDOW + 2 * PUBLISHER_WINDOW,
}


#: Arguments of the ingress queue and the lanes. Each death of a worker counts as a delivery of what it had: the limit
#: of RabbitMQ 4 would drop messages.
ARGUMENTS = {"classic": None, "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}}


class Process:
    """A worker or a relay, in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        tests = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
        self._process = subprocess.Popen([sys.executable, "-m", *arguments], env=environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def has_ended(self) -> bool:
        """Whether it ended by itself, which is allowed only if it could not connect at its start."""
        assert self._process.poll() in (None, CONNECTION)
        return self._process.returncode is not None

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(40)


class Worker(Process):
    """A worker, and what it has written down so far."""

    def __init__(self, url: str, lanes: Lanes, record: Path) -> None:
        self.record = record
        super().__init__("support.lane_worker", url, str(record), *arguments_of(lanes))
        self.lines: list[str] = []
        self._read = 0

    def read(self) -> list[str]:
        """Return what was written since the last call."""
        if not self.record.exists():
            return []
        with self.record.open() as file:
            file.seek(self._read)
            found = file.read().splitlines()
            self._read = file.tell()
        self.lines += found
        return found


class Producer:
    """Publishes numbered messages of hot and of quiet tenants until it is told to stop."""

    def __init__(self, name: str, queue: str, **options: Any) -> None:
        self.name, self.queue = name, queue
        self.publisher = Publisher(confirm_window=PUBLISHER_WINDOW, confirm_timeout=120, **options)
        self.published: Counter[str] = Counter()
        #: Whether messages are published; otherwise the workers are too far behind.
        self.going = threading.Event()
        self.going.set()
        self._source = random.Random(name)
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.publisher:
                while not self._stopping.wait(0.05):
                    for _ in range(15 if self.going.is_set() else 0):
                        self._publish()
        except BaseException as error:
            self._errors.append(error)

    def _publish(self) -> None:
        hot = self._source.random() < 0.5
        tenant = f"{self.name}-hot-{self._source.randrange(2)}" if hot else f"{self.name}-{self._source.randrange(30)}"
        number = self.published[tenant]
        self.publisher.publish(b"%d" % number, self.queue, headers={"account": tenant})
        self.published[tenant] += 1

    def end(self) -> None:
        """Publish no more; raise what went wrong."""
        self._stopping.set()
        self._thread.join(150)
        assert not self._thread.is_alive()
        if self._errors:
            raise self._errors[0]


class Chaos:
    """All parts of the lanes, each of which may be killed and is replaced at once."""

    def __init__(self, broker: Broker, folder: Path, lanes: Lanes) -> None:
        self.broker, self.folder, self.lanes = broker, folder, lanes
        self.source = random.Random(os.environ.get("LANE_SEED", "lanes"))
        self.workers: list[Worker] = []
        self.gone: list[Worker] = []
        #: When each worker lost what it had.
        self.lost = Losses()
        #: How often each message was handled.
        self.ended: Counter[tuple[str, int]] = Counter()
        self.kills: Counter[str] = Counter()
        #: Copies that these kills can have caused.
        self.allowed = 0
        broker.declare(lanes.name, arguments=lanes.arguments)
        self.relay = self._new_relay()
        for _ in range(WORKERS):
            self._add_worker()
        self.producers = [
            Producer("direct", lanes.name, url=broker.url, lanes=lanes),
            Producer("ingress", lanes.name, url=broker.url),
        ]

    def _new_relay(self) -> Process:
        options = ["--ordered"] if self.lanes.ordered else []
        for name, value in (self.lanes.arguments or {}).items():
            options += ["--argument", f"{name}={value}"]
        return Process(
            "fairsched.cli", "spread", self.lanes.name, "--key", self.lanes.key, "--url", self.broker.url,
            "--buckets", str(self.lanes.buckets), "--window", str(RELAY_WINDOW), "--log-level", "error", *options,
        )  # fmt: skip

    def _add_worker(self) -> None:
        record = self.folder / f"worker-{len(self.workers) + len(self.gone)}"
        self.workers.append(Worker(self.broker.url, self.lanes, record))

    def close(self) -> None:
        for producer in self.producers:
            producer._stopping.set()
        for process in [self.relay, *self.workers]:
            process.kill()

    def done(self) -> int:
        """Return how many messages were handled."""
        self._supervise()
        for worker in [*self.workers, *self.gone]:
            for line in worker.read():
                what, tenant, number, _ = line.split()
                if what == "end":
                    self.ended[tenant, int(number)] += 1
        self._pace()
        return len(self.ended)

    def _pace(self) -> None:
        """Have the producers pause while the workers are too far behind: one lane is handled by one of them."""
        behind = sum(producer.published.total() for producer in self.producers) - len(self.ended)
        for producer in self.producers:
            producer.going.set() if behind < FARTHEST_BEHIND else producer.going.clear()

    def kill(self, victim: str) -> None:
        self.kills[victim] += 1
        self.allowed += COPIES[victim]
        if victim == "broker":
            if not on_embedded():  # RabbitMQ stores acknowledgements late: what was handled may all come again
                self.allowed += self.done()
            with self._losing(self.workers):
                self.broker.restart()
        elif victim == "relay":
            self.relay.kill()
            self.relay = self._new_relay()
        else:
            worker = self.source.choice(self.workers)
            with self._losing([worker]):
                worker.kill()
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.gone.append(worker)
        self._add_worker()

    def _supervise(self) -> None:
        """Start again what could not connect: the broker was down when it started, or died just then."""
        if self.relay.has_ended():
            self.relay = self._new_relay()
        for worker in [one for one in self.workers if one.has_ended()]:
            self._replace(worker)

    def _losing(self, workers: list[Worker]) -> AbstractContextManager[None]:
        return self.lost.during([worker.record.name for worker in workers])

    def go_on(self) -> None:
        """Wait until a random number of further messages are handled."""
        wanted = self.done() + self.source.randrange(50, 500)
        eventually(lambda: self.done() >= wanted, 60, f"messages are handled after {dict(self.kills)}", every=0.05)

    def finish(self) -> dict[str, int]:
        """Let everything be handled, stop all, and return how many messages there were of each tenant."""
        for producer in self.producers:
            producer.end()
        published = self.producers[0].published + self.producers[1].published
        with contextlib.suppress(AssertionError):
            while (done := self.done()) < published.total():
                eventually(lambda before=done: self.done() > before, 60, every=0.1)
        missing = self._missing(published)
        assert not missing, f"{len(missing)} messages are lost, such as {missing[:10]}; {self._left()}"
        eventually(lambda: sum(self._left().values()) == 0, 60, "all messages are settled", every=0.2)
        assert self.relay.stop() == 0
        for worker in self.workers:
            eventually(worker.record.exists)  # from then on it can be told to stop
        assert [worker.stop() for worker in self.workers] == [0] * WORKERS
        for worker in self.workers:
            worker.read()
        return dict(published)

    def _missing(self, published: Counter[str]) -> list[tuple[str, int]]:
        return sorted({(tenant, n) for tenant, count in published.items() for n in range(count)} - self.ended.keys())

    def _left(self) -> dict[str, int]:
        """Return the messages in each queue but the registry."""
        return {name: count for name, count in self.broker.messages().items() if name != self.lanes.registry}

    def own_lanes(self) -> set[str]:
        return {name for name in self.broker.messages() if self.lanes.is_own_lane(name)}


@pytest.fixture
def start(mortal: Broker, tmp_path: Path) -> Iterator[Callable[..., Chaos]]:
    made: list[Chaos] = []

    def begin(**options: Any) -> Chaos:
        made.append(Chaos(mortal, tmp_path, Lanes("orders", key="header:account", buckets=8, **options)))
        return made[-1]

    yield begin
    for chaos in made:
        chaos.close()


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.rabbitmq("quorum queues"))])
def test_nothing_is_lost_whatever_is_killed(
    start: Callable[..., Chaos], outcomes: Outcomes, kind: str, ordered: bool
) -> None:
    chaos = start(ordered=ordered, arguments=ARGUMENTS[kind])
    chaos.go_on()
    deck: list[str] = []
    for _ in range(KILLS):
        deck = deck or chaos.source.sample(VICTIMS, len(VICTIMS))
        chaos.kill(deck.pop())
        chaos.go_on()
    published = chaos.finish()
    expected = {(tenant, number) for tenant, count in published.items() for number in range(count)}
    subject = f"{kind} lanes, {'ordered' if ordered else 'unordered'}"
    outcomes.note("broker, relays and workers killed", subject, (expected, chaos.ended.elements()))
    assert chaos.ended.keys() == expected
    copies = chaos.ended.total() - len(expected)
    assert copies <= chaos.allowed, chaos.kills
    if ordered:
        assert chaos.own_lanes() == set()
        workers = [*chaos.gone, *chaos.workers]
        handled = [one for each in workers for one in handlings(each.record.name, each.lines)]
        check(handled, chaos.lost, published)
    else:
        assert {chaos.lanes.own_lane_of(f"{name}-hot-0") for name in ("direct", "ingress")} <= chaos.own_lanes()
