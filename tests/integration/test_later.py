"""Publishing for later: delays, exchanges, Celery's ladder, missing parts, permissions, restarts."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pika
import pytest
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
)
from support.declare import Declare
from support.rabbitmq import Broker, Node, make_broker, numbered
from support.waiting import eventually

from fairsched import App, Consumer, Lanes, Publisher, PublishFailed, aio
from fairsched.publisher.ladder import LEVELS, Target, level_name
from fairsched.publisher.ladder_builder import LadderBuilder

Found = list[tuple[float, Any, pika.BasicProperties, bytes]]


def collect(broker: Broker, queue: str, count: int, timeout: float = 30) -> Found:
    """Take messages of a queue, with the time at which each came."""
    found: Found = []
    with broker.connect() as channel:
        for method, properties, body in channel.consume(queue, inactivity_timeout=timeout):
            assert method is not None, f"{len(found)} of {count} messages came"
            found.append((time.time(), method, properties, body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                channel.cancel()
                break
    return found


def remove_ladder(broker: Broker, *targets: Target) -> None:
    """Delete what delayed messages need."""
    with broker.connect() as channel:
        for name in [*map(level_name, range(LEVELS)), *(target.outlet for target in targets)]:
            channel.queue_delete(name)
            channel.exchange_delete(name)
        channel.exchange_delete("celery_delayed_delivery")


def test_a_message_arrives_when_it_is_due_as_it_was_published(broker: Broker, new_queue: Declare) -> None:
    queue = new_queue("later")
    with Publisher(broker.url) as publisher:
        began = time.time()
        publisher.publish(b"now", queue, delay=0).result(30)
        for delay in (3, "2s", 1, 0.5):
            publisher.publish(
                str(delay).encode(), queue, delay=delay, headers={"a": 1}, message_id="m", priority=3
            ).result(30)
        ended = time.time()
    found = collect(broker, queue, 5)
    assert found[0][3] == b"now"
    assert [body for *_, body in found][3:] == [b"2s", b"3"]
    for came, method, properties, body in found[1:]:
        seconds = float(body.rstrip(b"s"))
        assert began + seconds <= came <= ended + seconds + 1 + 5  # other tests keep the machine busy
        assert (method.exchange, method.routing_key) == ("", queue)
        assert (properties.headers["a"], properties.message_id, properties.priority) == (1, "m", 3)


@pytest.mark.steady
def test_none_of_many_is_early_and_half_are_less_than_a_second_late(broker: Broker, new_queue: Declare) -> None:
    queue, due = new_queue("later"), {}
    with Publisher(broker.url) as publisher:
        for number in range(500):
            seconds = 1 + number % 5
            due[b"%d" % number] = time.time() + seconds
            publisher.publish(b"%d" % number, queue, delay=seconds)
    late = [came - due.pop(body) for came, _, _, body in collect(broker, queue, 500)]
    assert min(late) >= 0
    assert statistics.median(late) <= 1
    assert not due


@pytest.mark.parametrize(("kind", "key"), [("direct", "a.b"), ("topic", "a.*.#.1"), ("fanout", ""), ("headers", "k")])
def test_exchange_and_routing_key_are_those_that_were_published(
    broker: Broker, new_queue: Declare, kind: str, key: str
) -> None:
    queue, exchange = new_queue("later"), f"later-{kind}"
    with broker.connect() as channel:
        channel.exchange_declare(exchange, kind, durable=True)
        channel.queue_bind(queue, exchange, key, {"x-match": "all", "h": "1"} if kind == "headers" else None)
    with Publisher(broker.url) as publisher:
        publisher.publish(b"x", key, exchange=exchange, delay=1, headers={"h": "1"}).result(30)
    [(_, method, _, body)] = collect(broker, queue, 1)
    assert (method.exchange, method.routing_key, body) == (exchange, key, b"x")


def test_a_time_may_be_given(broker: Broker, new_queue: Declare) -> None:
    queue = new_queue("later")
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    with Publisher(broker.url) as publisher:
        publisher.publish(b"past", queue, at=due - timedelta(days=1))
        publisher.publish(b"due", queue, at=due)
    (_, _, _, past), (came, _, _, body) = collect(broker, queue, 2)
    assert (past, body) == (b"past", b"due")
    assert due.timestamp() <= came


def test_a_message_that_was_delayed_can_be_delayed_again(broker: Broker, new_queue: Declare) -> None:
    """Its headers say that it has expired in the same queues, and the broker would drop it as going in a circle."""
    queue, times = new_queue("later"), 3
    with Publisher(broker.url) as publisher, Consumer(broker.url, [queue]) as consumer:
        publisher.publish(b"x", queue, delay=1, headers={"a": 1})
        for message in consumer:
            assert message.headers["a"] == 1
            times -= 1
            if times:
                publisher.publish(message.body, queue, delay=1, properties=message.properties).result(30)
            message.ack()
            if not times:
                consumer.stop()
    assert times == 0


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_the_ladder_is_shared_with_celery(new_queue: Declare, broker: Broker, queue_type: str) -> None:
    ours, theirs, target = new_queue("ours"), new_queue("theirs"), Target("", "")
    with kombu.Connection(broker.url) as connection:
        target = Target("", ours)
        remove_ladder(broker, target)
        declare_native_delayed_delivery_exchanges_and_queues(connection, queue_type)
        queue = kombu.Queue(theirs, kombu.Exchange(theirs, "topic"), theirs)
        queue(connection.channel()).declare()
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        with Publisher(broker.url) as publisher:
            for name in (ours, theirs):
                publisher.publish(b"ours", name, delay=2).result(30)
        with broker.connect() as channel:
            channel.basic_publish(level_name(27), calculate_routing_key(1, theirs), b"theirs")
        assert [body for *_, body in collect(broker, theirs, 2)] == [b"theirs", b"ours"]
        assert [body for *_, body in collect(broker, ours, 1)] == [b"ours"]
        assert broker.left(ours, theirs) == 0
        declare_native_delayed_delivery_exchanges_and_queues(connection, queue_type)
    remove_ladder(broker, target)


def test_celery_accepts_the_ladder_that_is_declared_here(broker: Broker, new_queue: Declare) -> None:
    queue = new_queue("later")
    remove_ladder(broker)
    with Publisher(broker.url) as publisher:
        publisher.publish(b"x", queue, delay=1).result(30)
    with kombu.Connection(broker.url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    collect(broker, queue, 1)


def test_a_queue_that_does_not_exist_is_named(broker: Broker) -> None:
    with Publisher(broker.url) as publisher:
        with pytest.raises(
            PublishFailed, match=r"queue 'nowhere': 404 .*; declare it, or publish with mandatory=False"
        ):
            publisher.publish(b"x", "nowhere", delay=1)
        with pytest.raises(PublishFailed, match=r"exchange 'no-exchange': 404 .*; declare it"):
            publisher.publish(b"x", "k", exchange="no-exchange", delay=1)
        assert publisher.stats()["published"] == 0


@pytest.mark.rabbitmq("a dead letter that no queue takes is kept: at-least-once dead lettering")
def test_a_message_waits_for_its_queue(broker: Broker) -> None:
    """A message that no queue takes when it is due stays at the broker, and others are not kept back."""
    with Publisher(broker.url, mandatory=False) as publisher:
        for number in range(100):
            publisher.publish(b"%d" % number, "late-queue", delay=1)
        publisher.flush()
        broker.declare("other-queue")
        publisher.publish(b"x", "other-queue", delay=2)
        publisher.flush()
    collect(broker, "other-queue", 1)
    eventually(lambda: broker.left(Target("", "late-queue").outlet) == 100)
    broker.declare("late-queue")
    found = collect(broker, "late-queue", 100)
    assert {body for *_, body in found} == set(numbered(100))


def test_a_ladder_that_is_deleted_is_declared_again(broker: Broker, new_queue: Declare) -> None:
    queue = new_queue("later")
    with Publisher(broker.url) as publisher:
        publisher.publish(b"1", queue, delay=1).result(30)
        collect(broker, queue, 1)
        remove_ladder(broker, Target("", queue))
        with pytest.raises(PublishFailed, match="no exchange 'celery_delayed_0'"):
            publisher.publish(b"2", queue, delay=1).result(30)
        publisher.publish(b"3", queue, delay=1).result(30)
        collect(broker, queue, 1)
        with broker.connect() as channel:
            channel.queue_delete(level_name(0))
        with pytest.raises(PublishFailed, match="queue 'celery_delayed_0' is missing"):
            publisher.publish(b"4", queue, delay=1).result(30)
        publisher.publish(b"5", queue, delay=1).result(30)
    assert [body for *_, body in collect(broker, queue, 1)] == [b"5"]


def test_what_is_being_declared_when_a_part_is_found_missing_is_declared_again(
    broker: Broker, new_queue: Declare
) -> None:
    target, missing = Target("", new_queue("later")), [True, False]

    def url() -> str:
        if missing.pop(0):
            builder.forget()
        return broker.url

    builder = LadderBuilder(url, 30)
    builder.prepare(target, True, None)
    assert not builder.is_ready(target)
    builder.prepare(target, True, None)
    assert builder.is_ready(target)


def test_messages_for_lanes_go_to_the_bucket_of_their_tenant(broker: Broker) -> None:
    lanes = Lanes("later-lanes", key="header:tenant", buckets=2)
    with Publisher(broker.url, lanes=lanes) as publisher:
        publisher.publish(b"x", lanes.name, delay=1, headers={"tenant": "acme"}).result(30)
    [(_, method, _, body)] = collect(broker, lanes.bucket_of("acme"), 1)
    assert (method.routing_key, body) == (lanes.bucket_of("acme"), b"x")


@pytest.mark.rabbitmq("permissions")
def test_a_user_without_permission_is_told_which_suffices(broker: Node) -> None:
    broker.declare("orders-of-poor")
    url = broker.add_user("poor", "poor")
    broker.permit("poor", "^$", "^amq\\.default$", "^$")
    with Publisher(url) as publisher:
        with pytest.raises(
            PublishFailed, match=r"403 .*configure, write and read '(.*)', and to write to .*"
        ) as raised:
            publisher.publish(b"x", "orders-of-poor", delay=1)
        publisher.publish(b"y", "orders-of-poor").result(30)
        [names, default] = re.findall(r"'([^ ]*)'(?=, and to write| for the default)", str(raised.value))
        broker.permit("poor", f"^{names}$", f"^({names}|{re.escape(default)})$", f"^{names}$")
        publisher.publish(b"z", "orders-of-poor", delay=1).result(30)
    assert [body for *_, body in collect(broker, "orders-of-poor", 2)] == [b"y", b"z"]


def test_a_done_callback_does_not_wait_for_queues(broker: Broker, new_queue: Declare) -> None:
    queue, raised = new_queue("later"), []

    def publish(_one: object) -> None:
        try:
            publisher.publish(b"x", queue, delay=1)
        except RuntimeError as error:
            raised.append(error)

    with Publisher(broker.url) as publisher:
        publisher.publish(b"x", queue).add_done_callback(publish)
        publisher.flush()
        eventually(lambda: len(raised) == 1)
        publisher.publish(b"x", queue, delay=1).add_done_callback(publish)  # declared by now
        eventually(lambda: publisher.stats()["confirmed"] == 3)
    collect(broker, queue, 3)
    assert len(raised) == 1


def test_coroutines_and_apps_publish_for_later(broker: Broker, new_queue: Declare) -> None:
    queue = new_queue("later")

    async def publish() -> None:
        async with aio.Publisher(broker.url) as publisher:
            await (await publisher.publish(b"aio", queue, delay=1))
            with pytest.raises(ValueError, match="aware"):
                await publisher.publish(b"x", queue, at=datetime(2030, 1, 1))

    asyncio.run(publish())
    app = App(broker.url)

    @app.consumer(queue)
    def handle(message: Any) -> None:
        if message.body == b"aio":
            app.publish(b"app", queue, delay="1s").result(30)
        else:
            app.stop()

    app.run()
    assert broker.left(queue) == 0


def test_none_is_lost_or_early_when_the_broker_is_killed() -> None:
    """What was being passed on at the kill may arrive twice."""
    with make_broker(durable=True) as broker:
        broker.declare("orders")
        expected = numbered(300)
        with Publisher(broker.url) as publisher:
            began = time.time()
            for body in expected[:150]:
                publisher.publish(body, "orders", delay=2 + int(body) % 7)
            publisher.flush()
            broker.restart()
            for body in expected[150:]:
                publisher.publish(body, "orders", delay=2 + int(body) % 7)
            publisher.flush()
        missing = set(expected)
        with broker.connect() as channel:
            for method, _, body in channel.consume("orders", auto_ack=True, inactivity_timeout=60):
                assert method is not None, f"{len(missing)} messages did not come, {broker.messages()} are there"
                assert time.time() >= began + 2 + int(body) % 7
                missing.discard(body)
                if not missing:
                    break
