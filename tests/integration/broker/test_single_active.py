"""The single active consumer of a queue on both brokers: when the next one begins, and with which messages."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Queue
from support.rabbitmq import numbered
from support.waiting import eventually
from support.wireclient import Dial, Name, WireChannel

#: Messages that the active consumer may have unsettled.
WINDOW = 4


@pytest.fixture(params=["classic", "quorum"])
def lane(request: pytest.FixtureRequest, channel: WireChannel, name: Name) -> str:
    """A queue with a single active consumer and ten messages."""
    arguments = {"x-single-active-consumer": True, "x-queue-type": request.param}
    queue = str(channel.call(Queue.Declare(queue=name(), durable=True, arguments=arguments)).queue)
    channel.confirming().published(*numbered(10), routing_key=queue)
    return queue


def consuming(dial: Dial, queue: str) -> WireChannel:
    """A channel of a connection of its own that consumes a queue."""
    channel = dial().open().channel()
    channel.qos(WINDOW)
    channel.consume(queue, "its")
    return channel


def numbers(channel: WireChannel, count: int) -> list[int]:
    return [int(one.body) for one in channel.deliveries(count)]


# Not of classic queues: that of RabbitMQ 3.10 delivers nothing after the cancellation, and at the next message that is
# published it crashes, with the messages that are not persistent.
@pytest.mark.parametrize("lane", ["quorum"], indirect=True)
def test_a_cancellation_lets_the_next_begin_while_messages_are_unsettled(dial: Dial, lane: str) -> None:
    first, second = consuming(dial, lane), consuming(dial, lane)
    assert numbers(first, 4) == [0, 1, 2, 3]
    first.call(Basic.Cancel("its"))
    # This is why a consumer must not leave an ordered queue so: 0 to 3 may still be in its handlers.
    assert numbers(second, 4) == [4, 5, 6, 7]


def test_closing_the_channel_returns_its_messages_in_order_before_the_next_begins(dial: Dial, lane: str) -> None:
    first, second = consuming(dial, lane), consuming(dial, lane)
    assert numbers(first, 4) == [0, 1, 2, 3]
    first.close()
    assert numbers(second, 4) == [0, 1, 2, 3]
    second.ack(4, multiple=True)
    assert numbers(second, 4) == [4, 5, 6, 7]


def test_what_was_settled_before_the_channel_was_closed_does_not_come_again(dial: Dial, lane: str) -> None:
    first, second = consuming(dial, lane), consuming(dial, lane)
    [zero, *_] = first.deliveries(4)
    first.ack(zero.tag)
    assert numbers(first, 1) == [4]  # room for one more
    first.ack(3)
    assert numbers(first, 1) == [5]
    first.counts(lane)
    first.close()
    assert numbers(second, 4) == [1, 3, 4, 5]


def test_a_lost_connection_is_like_a_closed_channel(dial: Dial, lane: str) -> None:
    first, second = consuming(dial, lane), consuming(dial, lane)
    assert numbers(first, 4) == [0, 1, 2, 3]
    first.client.abort()
    assert numbers(second, 4) == [0, 1, 2, 3]


def test_the_active_consumer_gets_what_it_gave_back(dial: Dial, lane: str) -> None:
    first, second = consuming(dial, lane), consuming(dial, lane)
    first.nack(first.deliveries(4)[0].tag)
    [came] = first.deliveries(1)
    while came.body != b"0":  # a quorum queue delivers others until the return is in its log
        first.ack(came.tag)
        [came] = first.deliveries(1)
    assert came.method.redelivered
    second.counts(lane)
    assert not second.waiting


def test_a_consumer_that_waits_may_leave(dial: Dial, lane: str, channel: WireChannel) -> None:
    first, second, third = (consuming(dial, lane) for _ in range(3))
    assert numbers(first, 4) == [0, 1, 2, 3]
    second.close()
    first.close()
    assert numbers(third, 4) == [0, 1, 2, 3]
    eventually(lambda: channel.counts(lane) == (6, 1))
