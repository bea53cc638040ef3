"""Worker queues against a real broker: order within a key, whatever happens to the connection, and parallel work."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterable

import pika
import pika.exceptions
import pytest
from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import App, ConfigurationError, Consumer, aio

#: Lets one consumer at a time have messages, so that a lost one's come back before the next has any.
ONE_AT_A_TIME = {"x-single-active-consumer": True}


def publish(broker: Node, queue: str, keys: Iterable[str | None]) -> None:
    """Publish messages numbered in order, each with its account in a header."""
    with broker.connect() as channel:
        raw = channel._impl
        for number, key in enumerate(keys):
            headers = None if key is None else {"account": key}
            raw.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers=headers))
            if number % 500 == 499:
                channel.connection.process_data_events(0)
        channel.queue_declare(queue, passive=True)


def account(message: object) -> str:
    return message.headers.get("account", "")


class Journal:
    """The order of handling: the first deliveries of each key, and whether two of one key ran at once."""

    def __init__(self) -> None:
        self.first: defaultdict[str, list[int]] = defaultdict(list)
        self.seen: set[int] = set()
        self.repeated = self.overlaps = 0
        self._running: set[str] = set()
        self._guard = threading.Lock()

    def begin(self, message: object) -> None:
        key, number = account(message), int(message.body)
        with self._guard:
            self.overlaps += key in self._running
            self._running.add(key)
            if number in self.seen:
                self.repeated += 1
            else:
                self.seen.add(number)
                self.first[key].append(number)

    def end(self, message: object) -> None:
        with self._guard:
            self._running.discard(account(message))

    def check(self, count: int) -> None:
        assert self.seen == set(range(count))
        assert self.overlaps == 0
        for key, numbers in self.first.items():
            assert numbers == sorted(numbers), key


def cut(consumer: Consumer) -> None:
    """Reset the connection, as a broken network or a load balancer does."""
    io_thread = consumer._client.io_thread

    def reset() -> None:
        connection = io_thread._connection.transport
        if connection is not None:
            connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection._transport._sock.shutdown(socket.SHUT_RDWR)

    io_thread._loop.add_callback_threadsafe(reset)


@pytest.mark.slow
def test_every_key_keeps_its_order_over_lost_connections(broker: Node, new_queue: Declare) -> None:
    count, cuts = 100_000, 12
    queue = new_queue("ordered", arguments=ONE_AT_A_TIME)
    source = random.Random(1)
    publish(broker, queue, (f"account-{source.randrange(1000)}" for _ in range(count)))
    journal, pause = Journal(), threading.Event()
    # Several addresses of one broker: the next is tried at once, the least time for the broker to take notice.
    urls = [f"{broker.url}?heartbeat={seconds}" for seconds in range(60, 90)]
    consumer = Consumer(urls, [queue], ordering_key="header:account", workers=8)

    def handler(message: object) -> None:
        journal.begin(message)
        chance = random.random()
        if chance < 0.02:
            pause.wait(chance * 0.5)
        journal.end(message)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    try:
        for part in range(1, cuts + 1):
            eventually(lambda part=part: len(journal.seen) >= count * part // (cuts + 1), 60)
            cut(consumer)
            eventually(lambda part=part: consumer.stats()["reconnects"] >= part)
        eventually(lambda: len(journal.seen) == count, 60)
        eventually(lambda: consumer.stats()["buffered"] == 0 and broker.count(queue) == 0)
    finally:
        consumer.stop()
        thread.join(40)
    assert not thread.is_alive()
    assert broker.count(queue) == 0
    journal.check(count)
    assert journal.repeated > 0
    assert consumer.stats()["reconnects"] == cuts


@pytest.mark.parametrize("arguments", [ONE_AT_A_TIME, None], ids=["single active consumer", "plain queue"])
def test_order_while_the_broker_believes_in_a_lost_connection(
    broker: Node, new_queue: Declare, arguments: dict[str, bool] | None
) -> None:
    queue = new_queue("half-open", arguments=arguments)
    publish(broker, queue, ["one"] * 200)
    order: list[int] = []
    lost = threading.Event()
    consumer = Consumer(broker.url, [queue], ordering_key="header:account", workers=2, prefetch=50)
    sockets: list[socket.socket] = []

    def handler(message: object) -> None:
        if len(order) == 5:
            lost.wait(30)
        order.append(int(message.body))

    def lose() -> None:
        connection = consumer._client.io_thread._connection.transport
        # Nothing is said to the broker: the socket is put aside, open.
        connection._transport._deactivate()
        sockets.append(connection._transport._sock)
        connection._on_stream_terminated(pika.exceptions.StreamLostError("test"))

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    try:
        eventually(lambda: len(order) == 5 and consumer.stats()["received"] >= 50)
        consumer._client.io_thread._loop.add_callback_threadsafe(lose)
        eventually(lambda: consumer.stats()["reconnects"] == 1)
        lost.set()
        if arguments is None:
            eventually(lambda: max(order) >= 50)
        sockets.pop().close()
        broker.close_connections()
        eventually(lambda: len(set(order)) == 200)
    finally:
        lost.set()
        consumer.stop()
        thread.join(40)
    first = list(dict.fromkeys(order))
    # What a plain queue does is the reason for asking for the other kind.
    assert (first == sorted(first)) == (arguments is not None)


@pytest.mark.steady
def test_eight_workers_are_six_times_as_fast(broker: Node, new_queue: Declare) -> None:
    count, work = 2000, 0.02
    queue = new_queue("parallel")
    publish(broker, queue, (f"order-{number}" for number in range(count)))
    journal, pause = Journal(), threading.Event()
    consumer = Consumer(broker.url, [queue], ordering_key="header:account", workers=8)
    moments: list[float] = []

    def handler(message: object) -> None:
        moments.append(time.perf_counter())
        journal.begin(message)
        pause.wait(work)
        journal.end(message)
        moments.append(time.perf_counter())
        if len(journal.seen) == count:
            consumer.stop()

    consumer.run(handler)
    journal.check(count)
    speed_up = count * work / (max(moments) - min(moments))
    # The fullest of the worker queues has 266 of the 2000 keys: 7.5 is all there is.
    assert speed_up >= 6, speed_up


@pytest.mark.steady
def test_shares_hold_with_worker_queues(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue("gold"), new_queue("free")
    for queue in (gold, free):
        publish(broker, queue, (f"account-{number % 500}" for number in range(4000)))
    served: list[str] = []
    pause = threading.Event()
    consumer = Consumer(broker.url, {gold: 3, free: 1}, ordering_key="header:account", workers=4)

    def handler(message: object) -> None:
        pause.wait(0.001)
        served.append(message.queue)
        if len(served) == 3000:
            consumer.stop(now=True)

    consumer.run(handler)
    assert served[:3000].count(gold) / 3000 == pytest.approx(0.75, abs=0.03)
    assert set(consumer.stats()["slots"]) == {gold, free}


def test_messages_without_the_key_keep_their_order(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("keyless")
    publish(broker, queue, [None] * 300)
    journal = Journal()
    app = App(broker.url, workers=4)

    @app.consumer(queue)
    def handler(message: object) -> None:
        journal.begin(message)
        journal.end(message)
        if len(journal.seen) == 300:
            app.stop()

    app.run(ordering_key="header:account")
    journal.check(300)
    assert broker.count(queue) == 0


def test_a_failed_message_comes_back_behind_its_successors(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("failing")
    publish(broker, queue, ["one"] * 50)
    handled: list[int] = []
    consumer = Consumer(broker.url, [queue], ordering_key="header:account", workers=2, prefetch=50)

    def handler(message: object) -> None:
        handled.append(int(message.body))
        if len(handled) == 51:
            consumer.stop()
        if handled == [0]:
            # The others are here already; the broker can bring this one only after them.
            eventually(lambda: consumer.stats()["received"] == 50)
            raise ValueError("not yet")

    consumer.run(handler)
    assert handled == [*range(50), 0]
    assert broker.count(queue) == 0


def test_stop_finishes_what_waits_in_every_worker_queue(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("stopping")
    publish(broker, queue, (f"account-{number % 50}" for number in range(1000)))
    journal, first = Journal(), threading.Lock()
    consumer = Consumer(broker.url, [queue], ordering_key="header:account", workers=8, prefetch=400)

    def handler(message: object) -> None:
        eventually(lambda: first.locked() or consumer.stats()["received"] == 400)
        journal.begin(message)
        if first.acquire(blocking=False):
            consumer.stop()
        journal.end(message)

    consumer.run(handler)
    stats = consumer.stats()
    assert stats["acked"] == stats["received"] == len(journal.seen)
    assert (stats["buffered"], stats["nacked"]) == (0, 0)
    eventually(lambda: broker.count(queue) == 1000 - len(journal.seen))
    assert journal.overlaps == journal.repeated == 0


def test_leaving_at_once_gives_back_what_waits_in_every_worker_queue(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("leaving")
    publish(broker, queue, (f"account-{number}" for number in range(200)))
    consumer = Consumer(broker.url, [queue], ordering_key="header:account", workers=4, prefetch=200)

    def handler(message: object) -> None:
        eventually(lambda: consumer.stats()["received"] == 200)
        consumer.stop(now=True)

    consumer.run(handler)
    stats = consumer.stats()
    assert stats["buffered"] == 0
    assert stats["acked"] <= 4
    eventually(lambda: broker.count(queue) == 200 - stats["acked"])


def test_coroutines_run_in_worker_queues(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio-lanes")
    publish(broker, queue, (f"account-{number * 31 % 100}" for number in range(2000)))
    journal = Journal()
    running = most = 0

    async def main() -> dict[str, object]:
        async with aio.Consumer(broker.url, [queue], ordering_key=account, workers=8) as consumer:

            async def handler(message: object) -> None:
                nonlocal running, most
                journal.begin(message)
                running += 1
                most = max(most, running)
                await asyncio.sleep(random.random() * 0.002)
                running -= 1
                journal.end(message)
                if len(journal.seen) == 2000:
                    consumer.stop()

            await consumer.run(handler)
        return consumer.stats()

    stats = asyncio.run(main())
    journal.check(2000)
    assert (stats["acked"], most) == (2000, 8)
    assert broker.count(queue) == 0


def test_worker_queues_are_served_by_run_alone(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("one-by-one")
    publish(broker, queue, ["one"] * 3)
    options = {"ordering_key": "header:account", "workers": 2}
    with Consumer(broker.url, [queue], **options) as consumer, pytest.raises(ConfigurationError, match="run"):
        next(iter(consumer))

    async def main() -> None:
        async with aio.Consumer(broker.url, [queue], **options) as consumer:
            with pytest.raises(ConfigurationError, match="run"):
                await consumer.get()
            with pytest.raises(ConfigurationError, match="run"):
                async for _ in consumer:
                    pass

    asyncio.run(main())
    # One worker has one queue: an iteration keeps every key's order.
    with Consumer(broker.url, [queue], ordering_key="header:account") as consumer:
        messages = list(itertools.islice(consumer, 3))
        assert sorted(int(message.body) for message in messages) == [0, 1, 2]
