"""Ordered lanes over several processes: the order of each key, whatever happens to the workers and the broker."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pika
import pytest
from oracles.order import Losses, check, handlings
from support.lane_worker import arguments_of
from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Lanes

KEYS = [f"account-{number}" for number in range(40)]
_numbers = itertools.count()


class Worker:
    """A process that consumes the lanes."""

    def __init__(self, url: str, lanes: Lanes, record: Path) -> None:
        self.record = record
        arguments = [url, str(record), *arguments_of(lanes)]
        self.process = subprocess.Popen([sys.executable, "-m", "support.lane_worker", *arguments], env=environment())

    def begins(self) -> int:
        return self.record.read_text().count("begin") if self.record.exists() else 0


def environment() -> dict[str, str]:
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}


class Crowd:
    """The workers, the messages that were published, and what happened."""

    def __init__(self, broker: Broker, folder: Path, buckets: int = 8) -> None:
        self.broker, self.folder = broker, folder
        self.lanes = Lanes(f"ordered-{next(_numbers)}", key="header:account", ordered=True, buckets=buckets)
        self.workers: list[Worker] = []
        self.gone: list[Worker] = []
        self.lost = Losses()
        self.published: Counter[str] = Counter()
        self.source = random.Random(7)

    def __enter__(self) -> Crowd:
        with self.broker.connect() as channel:
            for name in self.lanes.bucket_names:
                channel.queue_declare(name, durable=True, arguments=self.lanes.queue(name).all_arguments)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        with self.broker.connect() as channel:
            for name in [*self.lanes.bucket_names, self.lanes.registry]:
                channel.queue_delete(name)
            channel.exchange_delete(self.lanes.registry)

    def join(self, count: int = 1) -> None:
        for _ in range(count):
            record = self.folder / f"worker-{len(self.workers) + len(self.gone)}"
            self.workers.append(Worker(self.broker.url, self.lanes, record))

    def wait_for_work(self) -> None:
        """Wait until every worker has had a message."""
        eventually(lambda: all(worker.begins() for worker in self.workers), 30, "every worker has a part of the lanes")

    def publish(self, count: int) -> None:
        with self.broker.connect() as channel:
            channel.tx_select()
            for _ in range(count):
                key = self.source.choice(KEYS)
                properties = pika.BasicProperties(headers={"account": key}, delivery_mode=2)
                channel.basic_publish("", self.lanes.bucket_of(key), b"%d" % self.published[key], properties)
                self.published[key] += 1
            channel.tx_commit()

    def kill(self) -> Worker:
        worker = self.workers.pop(self.source.randrange(len(self.workers)))
        with self.losing([worker]):
            worker.process.kill()
            worker.process.wait()
        self.gone.append(worker)
        return worker

    def losing(self, workers: list[Worker]) -> AbstractContextManager[None]:
        return self.lost.during([worker.record.name for worker in workers])

    def stop(self) -> Worker:
        worker = self.workers.pop(self.source.randrange(len(self.workers)))
        eventually(worker.record.exists)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        self.gone.append(worker)
        return worker

    def done(self) -> int:
        return len({line.rsplit(maxsplit=1)[0] for line in self.lines() if line.startswith("end")})

    def lines(self) -> Iterator[str]:
        for worker in [*self.workers, *self.gone]:
            if worker.record.exists():
                yield from worker.record.read_text().splitlines()

    def finish(self, timeout: float = 40) -> None:
        """Wait until all messages are handled and settled, stop the workers, and check the order."""
        eventually(lambda: self.done() == self.published.total(), timeout, "all messages are handled", every=0.1)
        eventually(lambda: self.broker.left(*self.lanes.bucket_names) == 0, timeout, "and settled", every=0.2)
        while self.workers:
            self.stop()
        handled = []
        for worker in self.gone:
            if worker.record.exists():
                lines = worker.record.read_text().splitlines()
                handled += handlings(worker.record.name, lines)
        check(handled, self.lost, self.published)


@pytest.fixture
def crowd(broker: Broker, tmp_path: Path) -> Iterator[Crowd]:
    with Crowd(broker, tmp_path) as made:
        yield made


def test_workers_divide_the_lanes_and_keep_the_order(crowd: Crowd) -> None:
    crowd.join(3)
    crowd.publish(2000)
    crowd.finish()
    assert min(worker.begins() for worker in crowd.gone) > 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_order_while_twenty_workers_are_killed(crowd: Crowd) -> None:
    crowd.join(4)
    crowd.publish(4000)
    crowd.wait_for_work()
    for _ in range(20):
        before = crowd.done()
        crowd.publish(300)
        crowd.kill()
        crowd.join()
        eventually(lambda before=before: crowd.done() >= before + 150, 30, "the others go on", every=0.05)
    crowd.finish(60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_order_while_workers_stop_and_join(crowd: Crowd) -> None:
    crowd.join(2)
    crowd.publish(3000)
    crowd.wait_for_work()
    for _ in range(8):
        crowd.join()
        crowd.publish(400)
        before = crowd.done()
        crowd.stop()
        eventually(lambda before=before: crowd.done() >= before + 100, 30, "the others go on", every=0.05)
    crowd.finish(60)
    assert not crowd.lost


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["restart", "restart_cleanly", "close_connections"])
def test_order_when_all_connections_are_lost(mortal: Broker, tmp_path: Path, fault: str) -> None:
    with Crowd(mortal, tmp_path) as crowd:
        crowd.join(3)
        crowd.publish(3000)
        crowd.wait_for_work()
        for _ in range(2):
            before = crowd.done()
            with crowd.losing(crowd.workers):
                getattr(mortal, fault)()
            crowd.publish(600)  # on a busy machine, the others are done by now
            eventually(lambda before=before: crowd.done() >= before + 300, 40, "workers go on", every=0.05)
        crowd.finish(60)


def test_another_ordering_key_is_refused(broker: Broker) -> None:
    lanes = Lanes("accounts", key="header:account", ordered=True)
    with pytest.raises(
        ConfigurationError, match=r"ordering_key must be the key of lanes 'accounts'.*got 'header:other'"
    ):
        Consumer(broker.url, lanes, ordering_key="header:other")
    assert Consumer(broker.url, lanes, ordering_key="header:account")._client.settings.worker_queues == 1


def test_a_worker_without_the_registry_consumes_all_lanes(broker: Broker, new_queue: Callable[..., str]) -> None:
    """The name of the registry is taken by an exchange of another type: the broker refuses to declare it."""
    lanes = Lanes(f"deaf-{next(_numbers)}", key="header:account", ordered=True, buckets=4)
    with broker.connect() as channel:
        channel.exchange_declare(lanes.registry, "fanout")
    handled: list[int] = []
    consumer = Consumer(broker.url, lanes)
    thread = threading.Thread(target=consumer.run, args=(lambda message: handled.append(int(message.body)),))
    thread.start()
    try:
        eventually(lambda: sum(consumer.state.consuming.values()) == 4)
        for number in range(20):
            key = f"key-{number}"
            broker.publish(lanes.bucket_of(key), [b"%d" % number], headers={"account": key})
        eventually(lambda: sorted(handled) == [*range(20)])
    finally:
        consumer.stop()
        thread.join(30)
        broker.delete(*lanes.bucket_names)
        with broker.connect() as channel:
            channel.exchange_delete(lanes.registry)
