"""Quorum queues: delivery limit and consumer timeout, which differ between versions of RabbitMQ, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.rabbitmq import Node, numbered
from support.spark.running import schema_of
from support.waiting import eventually

from fairsched import Consumer, aio
from fairsched.spark.source.batch import BatchReader
from fairsched.spark.source.options import source_options

pytestmark = pytest.mark.rabbitmq("quorum queues")
#: Redeliveries that are allowed.
LIMIT = 2


@pytest.fixture
def limited(broker: Node, new_queue: Callable[..., str]) -> tuple[str, str]:
    """A quorum queue with a message, and where it sends what is to be delivered once more than that."""
    dead = new_queue("dead")
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": LIMIT,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    queue = new_queue("limited", arguments=arguments)
    broker.publish(queue, [b"one"], delivery_mode=2)
    return queue, dead


def test_what_fails_counts_before_4_3(broker: Node, limited: tuple[str, str]) -> None:
    queue, dead = limited
    counted = broker.version < (4, 3)
    seen: list[dict[str, Any]] = []
    consumer = Consumer(broker.url, [queue], on_error="requeue")

    def fail(message: Any) -> None:
        seen.append(message.headers)
        if len(seen) == LIMIT + (1 if counted else 3):
            consumer.stop()
        raise ValueError

    consumer.run(fail)
    eventually(lambda: broker.count(dead if counted else queue) == 1)
    count, other = ("x-delivery-count", "x-acquired-count") if counted else ("x-acquired-count", "x-delivery-count")
    assert [headers.get(count, 0) for headers in seen] == [*range(len(seen))]
    assert not any(other in headers for headers in seen)


def test_what_spark_browses_counts_before_4_3(broker: Node, limited: tuple[str, str]) -> None:
    queue, dead = limited
    counted = broker.version < (4, 3)
    options = source_options({"url": broker.url, "queues": queue})
    for _ in range(LIMIT + (1 if counted else 3)):
        eventually(lambda: broker.count(queue) == 1)
        reader = BatchReader(options, schema_of(options))
        found = [rows.column("body").to_pylist() for part in reader.partitions() for rows in reader.read(part)]
        assert found == [[b"one"]]
    eventually(lambda: broker.count(dead if counted else queue) == 1)


@pytest.mark.usefixtures("either_way")
def test_a_consumer_that_is_cancelled_for_its_slowness_drops_what_it_holds(
    broker: Node, new_queue: Callable[..., str]
) -> None:
    """From RabbitMQ 4.3 on, a consumer timeout of a quorum queue takes messages back and leaves the channel open."""
    if broker.version < (4, 3):
        pytest.skip("only from RabbitMQ 4.3 on: before, the channel is closed")
    queue = new_queue("slow", arguments={"x-queue-type": "quorum", "x-consumer-timeout": 1000})
    broker.publish(queue, numbered(3), delivery_mode=2)
    consumer = Consumer(broker.url, [queue])
    handled: list[tuple[bytes, bool]] = []

    def handle(message: Any) -> None:
        handled.append((message.body, message.redelivered))
        if len(handled) == 1:
            # All of them came a second time, at least.
            eventually(lambda: consumer.stats()["received"] >= 9)
        if len(handled) == 4:
            consumer.stop()

    consumer.run(handle)
    assert handled[0] == (b"0", False)
    assert sorted(handled[1:]) == [(b"0", True), (b"1", True), (b"2", True)]
    eventually(lambda: broker.left(queue) == 0)


MESSAGES, ROUNDS = 600, 6


def by_iterating(url: str, queue: str, stopped: bool) -> list[Any]:
    """Take all messages, then settle them one by one, every second by an ack; return all."""
    found = []
    with Consumer(url, [queue], prefetch=2 * MESSAGES) as consumer:
        for message in consumer:
            found.append(message)
            if len(found) == MESSAGES:
                if not stopped:
                    break
                consumer.stop()  # the loop ends when the broker has confirmed the end of deliveries
        settle(found)
    return found


def by_asyncio(url: str, queue: str, stopped: bool) -> list[Any]:
    """As `by_iterating`."""

    async def main() -> list[Any]:
        found = []
        async with aio.Consumer(url, [queue], prefetch=2 * MESSAGES) as consumer:
            async for message in consumer:
                found.append(message)
                if len(found) == MESSAGES:
                    if not stopped:
                        break
                    consumer.stop()
            settle(found)
        return found

    return asyncio.run(main())


def settle(messages: list[Any]) -> None:
    for number, message in enumerate(messages):
        assert message.ack() if number % 2 else message.nack()


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("way", [by_iterating, by_asyncio])
def test_what_was_acked_right_before_the_end_does_not_come_again(
    broker: Node, new_queue: Callable[..., str], way: Callable[[str, str, bool], list[Any]], stopped: bool
) -> None:
    """A quorum queue logs settlements later than its channel answers: the end has to wait for that."""
    for _ in range(ROUNDS):
        queue = new_queue("ending", arguments={"x-queue-type": "quorum"})
        broker.publish(queue, numbered(MESSAGES), delivery_mode=2)
        acked = {message.body for message in way(broker.url, queue, stopped)[1::2]}
        eventually(lambda queue=queue: broker.count(queue) >= MESSAGES // 2)
        left = set()
        with broker.connect() as channel:
            while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
                left.add(one[2])
        assert left == {*numbered(MESSAGES)} - acked


def test_a_removed_quorum_queue_keeps_no_message_that_was_acknowledged(
    broker: Node, new_queue: Callable[..., str]
) -> None:
    other, queue = new_queue(), new_queue(arguments={"x-queue-type": "quorum"})
    broker.publish(queue, numbered(500))
    with Consumer(broker.url, [other, queue], prefetch=600) as consumer:
        for _ in range(200):
            consumer.get(timeout=30).ack()
        consumer.remove_queue(queue)
        eventually(lambda: broker.count(queue) == 300)
        consumer.add_queue(queue)
        for _ in range(300):
            consumer.get(timeout=30).ack()
    eventually(lambda: broker.left(queue) == 0)
