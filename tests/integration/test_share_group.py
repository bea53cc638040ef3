"""Shares across processes, with a worker that is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import Consumer

#: Seconds that a message takes, and messages of each queue: more than can be handled in the time of a test.
SERVICE, BACKLOG = 0.002, 40_000

WORKER = """
import sys, time
from fairsched import Consumer
url, group, service, *queues = sys.argv[1:]
with Consumer(url, queues, share_group=group) as consumer:
    print("ready", flush=True)
    consumer.run(lambda message: time.sleep(float(service)))
"""


@contextmanager
def worker(broker: Node, group: str, *queues: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, broker.url, group, str(SERVICE), *queues]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def handling(consumer: Consumer) -> Iterator[None]:
    with consumer:
        thread = threading.Thread(target=consumer.run, args=(lambda _message: time.sleep(SERVICE),))
        thread.start()
        try:
            yield
        finally:
            consumer.stop(now=True)
            thread.join(30)


def left(broker: Node, *queues: str) -> Counter[str]:
    """Return how many messages of each queue wait."""
    with broker.connect() as channel:
        return Counter({
            name: channel.queue_declare(name, passive=True).method.message_count for name in queues
        })  # fmt: skip


def served(broker: Node, queues: list[str], total: int) -> Counter[str]:
    """Return how many messages of each queue are handled while all consumers handle so many in total."""
    # What is unsettled is in windows of one size, which the ends of the span have in common.
    before, found = left(broker, *queues), Counter[str]()

    def enough() -> bool:
        nonlocal found
        found = before - left(broker, *queues)
        return found.total() >= total

    eventually(enough, 60, every=0.1)
    return found


@pytest.mark.slow
@pytest.mark.steady
def test_workers_of_different_queues_are_fair_together(broker: Node, new_queue: Declare) -> None:
    gold, free = queues = [new_queue("gold"), new_queue("free")]
    for name in queues:
        broker.publish(name, [b""] * BACKLOG)
    consumer = Consumer(broker.url, queues, share_group=gold, prefetch=200)
    with handling(consumer):
        with worker(broker, gold, free) as other:
            eventually(lambda: consumer.stats()["peers"] == 1)

            def fair() -> bool:
                found = served(broker, queues, 3000)
                return abs(found[gold] - found[free]) <= 0.05 * found.total()

            # Alone, it would be a quarter and three quarters.
            eventually(fair, 90)
            other.kill()
            other.wait()
            eventually(lambda: consumer.stats()["peers"] == 0)
        before = consumer.stats()["slots"]

        def balanced() -> bool:
            found = {name: slot.served - before[name].served for name, slot in consumer.stats()["slots"].items()}
            return sum(found.values()) > 1000 and abs(found[gold] - found[free]) <= 0.05 * sum(found.values())

        eventually(balanced, 60)


def test_many_join_and_leave(broker: Node, new_queue: Declare) -> None:
    queues = [new_queue("a"), new_queue("b")]
    one, two = (Consumer(broker.url, queues, share_group=queues[0]) for _ in range(2))
    with one:
        assert one.stats()["peers"] == 0
        with two:
            eventually(lambda: one.stats()["peers"] == two.stats()["peers"] == 1)
        eventually(lambda: one.stats()["peers"] == 0)


def test_it_comes_back_after_a_lost_connection(broker: Node, new_queue: Declare) -> None:
    queues = [new_queue("a"), new_queue("b")]
    with (
        Consumer(broker.url, queues, share_group=queues[0]) as one,
        Consumer(broker.url, queues, share_group=queues[0]) as two,
    ):
        eventually(lambda: one.stats()["peers"] == two.stats()["peers"] == 1)
        # A queue of theirs and the exchange: what was declared is declared again.
        with broker.connect() as channel:
            channel.exchange_delete(f"fairsched.shares.{queues[0]}")
        eventually(lambda: one.stats()["peers"] == 0 or two.stats()["peers"] == 0, 30)
        eventually(lambda: one.stats()["peers"] == two.stats()["peers"] == 1, 60)


def test_a_consumer_that_may_not_declare_works_on_alone(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [new_queue("a"), new_queue("b")]
    exchange = f"fairsched.shares.{queues[0]}"
    with broker.connect() as channel:  # of another kind than theirs
        channel.exchange_declare(exchange, "direct")
    try:
        for name in queues:
            broker.publish(name, [b""] * 10)
        with Consumer(broker.url, queues, share_group=queues[0]) as consumer:
            eventually(lambda: "shares are kept by this consumer alone" in caplog.text)
            got = [message for _, message in zip(range(20), consumer, strict=False)]
            assert Counter(message.queue for message in got) == dict.fromkeys(queues, 10)
            for message in got:
                message.ack()
    finally:
        with broker.connect() as channel:
            channel.exchange_delete(exchange)
