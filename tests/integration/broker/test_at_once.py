"""A time to live of 0, and a limit of a whole channel with consumers that need no acknowledgements: on both brokers."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Queue
from support.waiting import eventually
from support.wireclient import Name, WireChannel

#: Of a queue's arguments and a message's properties: each gives messages no time.
AT_ONCE = [({"x-message-ttl": 0}, {}), ({}, {"expiration": "0"}), ({}, {"expiration": "+00"})]


@pytest.fixture(params=AT_ONCE)
def at_once(request: pytest.FixtureRequest, channel: WireChannel, name: Name) -> tuple[str, str, dict[str, str]]:
    """A queue, the queue of its dead letters, and properties."""
    arguments, properties = request.param
    dead = channel.declare(name())
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    return channel.declare(name(), {**arguments, **letters}), dead, properties


def test_without_a_consumer_it_expires(channel: WireChannel, at_once: tuple[str, str, dict[str, str]]) -> None:
    queue, dead, properties = at_once
    channel.published(b"a", b"b", routing_key=queue, **properties)
    assert channel.get(queue) is None
    eventually(lambda: channel.ready(dead) == 2)
    letter = channel.get(dead)
    assert letter is not None
    assert letter.properties.headers["x-death"][0]["reason"] == "expired"


def test_behind_others_it_waits_to_be_the_first(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name())
    channel.published(b"a", routing_key=queue)
    channel.published(b"b", routing_key=queue, expiration="0")
    assert channel.ready(queue) == 2
    assert channel.get(queue).body == b"a"
    eventually(lambda: channel.ready(queue) == 0)


def test_a_consumer_that_can_take_it_gets_it(channel: WireChannel, at_once: tuple[str, str, dict[str, str]]) -> None:
    queue, dead, properties = at_once
    channel.qos(2)
    channel.consume(queue)
    channel.published(b"a", routing_key=queue, **properties)
    assert channel.bodies(1) == [b"a"]
    channel.published(b"b", routing_key=queue, **properties)
    assert channel.bodies(1) == [b"b"]
    # A consumer that has enough cannot take it.
    channel.published(b"c", routing_key=queue, **properties)
    eventually(lambda: channel.ready(dead) == 1)
    channel.ack(1)
    channel.published(b"d", routing_key=queue, **properties)
    assert channel.bodies(1) == [b"d"]
    assert channel.ready(dead) == 1


def test_what_comes_back_expires(channel: WireChannel, at_once: tuple[str, str, dict[str, str]]) -> None:
    queue, dead, properties = at_once
    channel.consume(queue)
    channel.published(b"a", routing_key=queue, **properties)
    [one] = channel.deliveries(1)
    channel.nack(one.tag)
    eventually(lambda: channel.ready(dead) == 1)
    assert channel.waiting == []
    assert channel.ready(queue) == 0


def test_what_comes_back_behind_others_waits_to_be_the_first(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name())
    channel.published(b"a", routing_key=queue)
    channel.consume(queue, "c")
    [first] = channel.deliveries(1)
    channel.published(b"b", routing_key=queue, expiration="0")
    [second] = channel.deliveries(1)
    channel.call(Basic.Cancel(consumer_tag="c"))
    channel.nack(second.tag, multiple=True)
    assert first.tag < second.tag
    eventually(lambda: channel.ready(queue) == 2)
    assert channel.get(queue).body == b"a"
    eventually(lambda: channel.ready(queue) == 0)


def test_what_a_deleted_queue_had_is_no_dead_letter(
    channel: WireChannel, at_once: tuple[str, str, dict[str, str]]
) -> None:
    queue, dead, properties = at_once
    channel.consume(queue, "c")
    channel.published(b"a", routing_key=queue, **properties)
    [one] = channel.deliveries(1)
    channel.call(Queue.Delete(queue=queue))
    channel.nack(one.tag)
    channel.round_trip()
    assert channel.ready(dead) == 0


def test_what_a_closed_channel_had_expires(
    client, channel: WireChannel, at_once: tuple[str, str, dict[str, str]]
) -> None:
    queue, dead, properties = at_once
    other = client.channel()
    other.consume(queue)
    channel.published(b"a", routing_key=queue, **properties)
    assert other.bodies(1) == [b"a"]
    other.close()
    eventually(lambda: channel.ready(dead) == 1)


def test_a_channels_limit_holds_back_a_consumer_without_acknowledgements(channel: WireChannel, name: Name) -> None:
    counted, free = channel.declare(name()), channel.declare(name())
    channel.qos(1, everywhere=True)
    channel.consume(free, "free", no_ack=True)
    channel.published(b"1", b"2", b"3", routing_key=free)
    assert channel.bodies(3) == [b"1", b"2", b"3"]
    channel.consume(counted, "counted")
    channel.published(b"x", routing_key=counted)
    [one] = channel.deliveries(1)
    channel.published(b"4", b"5", routing_key=free)
    channel.round_trip()
    assert channel.waiting == []
    assert channel.ready(free) == 2
    channel.ack(one.tag)
    assert channel.bodies(2) == [b"4", b"5"]


def test_consumers_under_a_channels_limit_have_turns(channel: WireChannel, name: Name) -> None:
    queues = [channel.declare(name()) for _ in range(3)]
    channel.qos(1, everywhere=True)
    for queue in queues:
        channel.published(*[b"x"] * 40, routing_key=queue)
        channel.consume(queue, queue)
    served = dict.fromkeys(queues, 0)
    for _ in range(60):
        [one] = channel.deliveries(1)
        served[one.method.consumer_tag] += 1
        channel.ack(one.tag)
    # RabbitMQ asks the queues in random order.
    assert min(served.values()) >= 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("nested", [False, True])
def test_a_header_that_is_no_number_ends_the_connection(
    client, channel: WireChannel, name: Name, value: float, nested: bool
) -> None:
    queue = channel.declare(name())
    channel.publish(b"x", queue, headers={"a": {"b": [value]} if nested else value})
    code, text = client.ended()
    assert (code, text.split()[0]) == (541, "INTERNAL_ERROR")
