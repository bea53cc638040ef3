"""Messages that wait too long in one consumer go to another, on a real broker."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched import App, CoDel, ConfigurationError, aio
from fairsched.consumer import Consumer, consumer_counts

pytestmark = pytest.mark.steady

#: A handler that is asked for more than it can do: 25 messages of 40 ms each are a second of waiting.
LAW = CoDel(0.1, 0.1)
#: The same, for messages that are worthless when they are late.
FINAL = CoDel(0.1, 0.1, requeue=False)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_counts, "PERIOD", 0.1)
    monkeypatch.setattr(consumer_counts, "FIRST", 0.05)


def deliveries(*consumers: Running) -> Counter[bytes]:
    """Return how often each message was handled, by any consumer."""
    total: Counter[bytes] = Counter()
    for one in consumers:
        # A copy is made in one step, whatever it counts meanwhile.
        for (_, body), count in one.processed.copy().items():
            total[body] += count
    return total


def connection_of(running: Running) -> object:
    return running.consumer._client.io_thread._connection.transport


def asking(running: Running) -> consumer_counts.ConsumerCounts:
    """The counts of a consumer that has begun to ask."""
    client = running.consumer._client
    eventually(lambda: hasattr(client, "io_thread") and client.io_thread.consumer_counts._channel is not None)
    return client.io_thread.consumer_counts


def in_company(queue: str, *consumers: Running) -> None:
    """Return when each of them knows that another consumes the queue: all of them do."""
    for one in consumers:
        seen = asking(one)
        eventually(lambda seen=seen: not seen.alone(queue))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_waits_too_long_goes_to_another_consumer(broker: Node, new_queue: Declare, kind: str) -> None:
    queue = new_queue(f"shed-{kind}", arguments={"x-queue-type": kind})
    count, budget = 400, 3
    with (
        Running(broker.url, [queue], work=0.04, prefetch=51, codel=CoDel(0.1, 0.1, budget=budget)) as slow,
        Running(broker.url, [queue], prefetch=51) as quick,
    ):
        in_company(queue, slow)
        broker.publish(queue, numbered(count))
        eventually(lambda: len(deliveries(slow, quick)) == count)
        eventually(lambda: slow.acked + quick.acked == count)
        stats = slow.consumer.stats()
        received = stats["received"] + quick.consumer.stats()["received"]
    assert stats["shed"] > 0
    assert stats["shed"] == stats["nacked"]
    assert stats["kept_alone"] == 0
    assert deliveries(slow, quick) == Counter(numbered(count))  # none lost, none twice
    assert received == count + stats["shed"]
    assert broker.count(queue) == 0
    slots = stats["slots"][queue]
    # What went back was not charged.
    assert slots.work == stats["acked"]
    assert stats["codel"]["slots"][queue].returned == stats["shed"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_no_message_is_returned_more_often_than_its_budget(broker: Node, new_queue: Declare, kind: str) -> None:
    """Two slow consumers, both returning: messages bounce between them, but not for ever."""
    queue = new_queue(f"bounce-{kind}", arguments={"x-queue-type": kind})
    count, budget = 150, 2
    received: Counter[bytes] = Counter()

    def counting(running: Running) -> None:
        take = running.consumer._client.worker_queues.put_many

        def put_many(slots: object, messages: list[object], costs: object = None) -> list[object]:
            received.update(message.body for message in messages)
            return take(slots, messages, costs)

        running.consumer._client.worker_queues.put_many = put_many

    one = Running(broker.url, [queue], work=0.02, prefetch=40, codel=CoDel(0.1, 0.1, budget=budget))
    other = Running(broker.url, [queue], work=0.02, prefetch=40, codel=CoDel(0.1, 0.1, budget=budget))
    counting(one)
    counting(other)
    with one, other:
        in_company(queue, one, other)
        broker.publish(queue, numbered(count))
        eventually(lambda: one.acked + other.acked == count, 60)
        shed = one.consumer.stats()["shed"] + other.consumer.stats()["shed"]
    assert deliveries(one, other) == Counter(numbered(count))
    assert shed > 0
    assert received.total() == count + shed
    assert max(received.values()) <= 1 + budget
    assert broker.count(queue) == 0


def test_alone_it_keeps_them_and_says_so(broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    queue = new_queue("alone")
    with (
        caplog.at_level(logging.WARNING, "fairsched.consumer"),
        Running(broker.url, [queue], work=0.02, prefetch=40, codel=LAW) as running,
    ):
        broker.publish(queue, numbered(60))
        eventually(lambda: running.acked == 60)
        stats = running.consumer.stats()
    assert (stats["shed"], stats["nacked"], stats["received"]) == (0, 0, 60)
    assert stats["kept_alone"] > 0
    said = [record.getMessage() for record in caplog.records if "has no other consumer" in record.getMessage()]
    assert len(said) == 1
    assert "A prefetch of" in said[0]


def test_alone_but_told_to_it_gets_them_straight_back(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("alone-too")
    law = CoDel(0.1, 0.1, budget=1, when_alone=True)
    with Running(broker.url, [queue], work=0.02, prefetch=40, codel=law) as running:
        broker.publish(queue, numbered(60))
        eventually(lambda: running.acked == 60)
        stats = running.consumer.stats()
    assert stats["shed"] > 0
    assert stats["received"] == 60 + stats["shed"]
    assert stats["kept_budget"] > 0
    assert running.processed == Counter({(queue, body): 1 for body in numbered(60)})


def test_company_that_comes_later_is_noticed_and_so_is_its_going(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("company")
    with Running(broker.url, [queue], codel=LAW) as running:
        seen = asking(running)
        alone = seen.alone
        assert alone(queue)
        with Running(broker.url, [queue]):
            eventually(lambda: not alone(queue))
        eventually(lambda: alone(queue))
        running.in_io_thread(seen._channel.close)
        with Running(broker.url, [queue]):
            eventually(lambda: not alone(queue))


def test_a_queue_that_vanishes_costs_the_counting_its_channel_only(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("vanishing"), new_queue("staying")
    with Running(broker.url, [queue, other], codel=LAW) as running:
        seen = asking(running)
        # A queue that is missing at the start is an error of the program that named it.
        eventually(lambda: running.channel(queue).consuming)
        broker.delete(queue)
        eventually(lambda: not running.channel(queue).consuming)
        broker.publish(other, numbered(20))
        eventually(lambda: running.acked == 20)
        broker.declare(queue)
        with Running(broker.url, [other, queue]):
            eventually(lambda: not seen.alone(other) and not seen.alone(queue))


def test_dead_letters(broker: Node, new_queue: Declare) -> None:
    dead = new_queue("dead")
    queue = new_queue("late", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    with Running(broker.url, [queue], work=0.02, prefetch=40, codel=FINAL) as running:
        broker.publish(queue, numbered(60))
        eventually(lambda: running.consumer.stats()["shed"] + running.acked == 60)
        stats = running.consumer.stats()
    assert stats["shed"] == stats["rejected"] > 0
    eventually(lambda: broker.count(dead) == stats["shed"])


def test_order_and_returning_do_not_go_together_but_dead_letters_do(broker: Node, new_queue: Declare) -> None:
    dead = new_queue("dead")
    queue = new_queue("ordered", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    with pytest.raises(ConfigurationError, match="would break the order"):
        Consumer(broker.url, [queue], codel=LAW, ordering_key="header:k")
    options = {"codel": FINAL, "ordering_key": lambda message: int(message.body) % 4}
    with Running(broker.url, [queue], work=0.02, prefetch=80, workers=2, **options) as running:
        broker.publish(queue, numbered(120))
        eventually(lambda: running.consumer.stats()["shed"] + running.acked == 120)
    assert running.consumer.stats()["shed"] > 0
    handled = [int(body) for _, body in running.processed]
    for key in range(4):
        of_key = [number for number in handled if number % 4 == key]
        assert of_key == sorted(of_key)


def test_the_iterator_sheds_too(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("iterator")
    pause = threading.Event()
    with Running(broker.url, [queue], prefetch=50) as quick:
        with Consumer(broker.url, [queue], prefetch=50, codel=LAW) as consumer:
            eventually(lambda: not consumer._client.io_thread.consumer_counts.alone(queue))
            broker.publish(queue, numbered(100))
            for message in consumer:
                with message:
                    pause.wait(0.03)
                if consumer.stats()["shed"]:
                    break
            assert consumer.stats()["shed"] > 0
        eventually(lambda: broker.count(queue) == 0)
        eventually(lambda: quick.acked + consumer.stats()["acked"] == 100)


def test_coroutines(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")

    async def main() -> dict[str, object]:
        async with aio.Consumer(broker.url, [queue], prefetch=50, codel=LAW) as consumer:
            handled = 0

            async def handler(message: object) -> None:
                nonlocal handled
                handled += 1
                await asyncio.sleep(0.03)
                if consumer.stats()["shed"] or handled == 100:
                    consumer.stop(now=True)

            seen = consumer._client.io_thread.consumer_counts
            await asyncio.to_thread(eventually, lambda: not seen.alone(queue))
            await asyncio.to_thread(broker.publish, queue, numbered(100))
            await consumer.run(handler)
            return consumer.stats()

    with Running(broker.url, [queue], prefetch=50) as quick:
        stats = asyncio.run(asyncio.wait_for(main(), 60))
        assert stats["shed"] > 0
        eventually(lambda: quick.acked + stats["acked"] == 100)


def test_an_app(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("app")
    app = App(broker.url, codel=LAW, prefetch=50)
    pause = threading.Event()

    @app.consumer(queue)
    def handle(message: object) -> None:
        pause.wait(0.03)

    with Running(broker.url, [queue], prefetch=50) as quick:
        thread = threading.Thread(target=app.run)
        thread.start()
        try:
            eventually(lambda: app._consumer is not None and hasattr(app._consumer._client, "io_thread"))
            eventually(lambda: not app._consumer._client.io_thread.consumer_counts.alone(queue))
            broker.publish(queue, numbered(200))
            eventually(lambda: app.stats()["shed"] > 0)
            eventually(lambda: app.stats()["acked"] + quick.acked == 200)
        finally:
            app.stop()
            thread.join(30)


def test_a_lost_connection_loses_no_returned_message(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("lost")
    with (
        Running(broker.url, [queue], work=0.02, prefetch=51, codel=LAW) as slow,
        Running(broker.url, [queue], work=0.005, prefetch=20) as quick,
    ):
        seen = asking(slow)
        in_company(queue, slow)
        broker.publish(queue, numbered(600))
        eventually(lambda: slow.consumer.stats()["shed"] > 0)
        slow.in_io_thread(lambda: connection_of(slow)._transport._sock.shutdown(socket.SHUT_RDWR))
        eventually(lambda: len(deliveries(slow, quick)) == 600, 60)
        eventually(lambda: slow.consumer.stats()["reconnects"] == 1)
        eventually(lambda: not seen.alone(queue))
    assert broker.count(queue) == 0


def test_the_age_at_which_handling_begins(broker: Node, new_queue: Declare) -> None:
    """One handler is ten times slower than another that is mostly idle; with CoDel no message waits for it."""
    found: dict[bool, list[float]] = {False: [], True: []}
    # Measured 5.5 to 6.2. A machine that does other things only adds to ages, so the least of each kind is compared.
    for _ in range(4):
        for shedding, percentiles in found.items():
            ages = sorted(story(broker, new_queue("story"), CoDel(0.02, 0.02) if shedding else None))
            percentiles.append(ages[int(0.99 * len(ages))])
        if min(found[False]) >= 4 * min(found[True]):
            return
    raise AssertionError(found)


def story(broker: Node, queue: str, law: CoDel | None) -> Iterator[float]:
    count, pause = 600, threading.Event()
    sent: dict[bytes, float] = {}
    begun: dict[bytes, float] = {}
    done = threading.Event()

    def handler(work: float) -> Callable[[object], None]:
        def handle(message: object) -> None:
            begun.setdefault(message.body, time.monotonic())
            if len(begun) == count:
                done.set()
            pause.wait(work)

        return handle

    slow = Consumer(broker.url, [queue], prefetch=51, codel=law)
    quick = Consumer(broker.url, [queue], prefetch=51)
    threads = [
        threading.Thread(target=slow.run, args=(handler(0.04),)),
        threading.Thread(target=quick.run, args=(handler(0.004),)),
    ]
    for thread in threads:
        thread.start()
    try:
        eventually(
            lambda: all(
                hasattr(one._client, "io_thread") and one._client.io_thread._startup.done for one in (slow, quick)
            )
        )
        eventually(lambda: law is None or not slow._client.io_thread.consumer_counts.alone(queue))
        with broker.connect() as channel:
            for body in numbered(count):
                sent[body] = time.monotonic()
                channel.basic_publish("", queue, body)
                pause.wait(0.006)
        assert done.wait(60)
    finally:
        slow.stop()
        quick.stop()
        for thread in threads:
            thread.join(40)
    yield from (begun[body] - sent[body] for body in sent)
