"""Publishing to lanes: placed, declared when they are missing, announced, and nothing lost when they vanish."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pika
import pytest
from support.blocking import blocked
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Lanes, MessageReturned, Publisher, PublishFailed, aio
from fairsched.amqp._publishing import Confirmation
from fairsched.lanes.announcement import ACTIVE, decode
from fairsched.publisher import asynchronous as aio_publisher_module
from fairsched.publisher import client as client_module
from fairsched.publisher import lane_upkeep
from fairsched.publisher.lane_opener import LaneOpener

_numbers = itertools.count()


@pytest.fixture
def new_lanes() -> Callable[..., Lanes]:
    """Makes lanes that no other test uses."""

    def make(**options: Any) -> Lanes:
        return Lanes(f"lanes-{next(_numbers)}", **{"key": "header:tenant", "buckets": 4, **options})

    return make


def take(node: Node, queue: str) -> list[bytes]:
    """Take messages of a queue in their order; none if it does not exist."""
    found: list[bytes] = []
    with node.connect() as channel:
        while not (not found and is_missing(channel, queue)):
            method, _properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            found.append(body)
    return found


def announced(node: Node, lanes: Lanes) -> list[tuple[str, Any]]:
    """Take what the registry has."""
    return [tuple(decode(body, lanes)) for body in take(node, lanes.registry)]


def is_missing(channel: Any, queue: str) -> bool:
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return True
    return False


def exists(node: Node, queue: str) -> bool:
    with node.connect() as channel:
        return not is_missing(channel, queue)


def flood(publisher: Publisher, lanes: Lanes, tenant: Any, numbers: range) -> None:
    for number in numbers:
        publisher.publish(b"%d" % number, lanes.name, headers={"tenant": tenant})


def is_open(publisher: Publisher, lanes: Lanes, *tenants: Any) -> bool:
    active = dict(publisher._client.spreads[lanes.name].placement.active(time.monotonic(), 60.0))
    return set(tenants) <= set(active)


def test_messages_go_to_buckets_which_are_declared(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher:
        for number in range(60):
            publisher.publish(b"%d" % number, lanes.name, headers={"tenant": f"t{number % 6}"})
        publisher.publish(b"none", lanes.name)
        publisher.flush()
        assert publisher.stats()["failed"] == 0
    expected: dict[str, list[bytes]] = {name: [] for name in lanes.bucket_names}
    for number in range(60):
        expected[lanes.bucket_of(f"t{number % 6}")].append(b"%d" % number)
    expected[lanes.bucket_of("")].append(b"none")
    assert {name: take(broker, name) for name in lanes.bucket_names} == expected
    assert not exists(broker, lanes.registry)  # nothing was announced


def test_other_messages_are_published_as_without_lanes(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()
    with Publisher(broker.url, lanes=[lanes, new_lanes()]) as publisher:
        direct = publisher.publish(b"x", lanes.bucket_of("a"), headers={"tenant": "a"})
        assert isinstance(direct.exception(30), MessageReturned)
        publisher.publish(b"x", "nowhere", mandatory=False).result(30)
        elsewhere = publisher.publish(b"x", lanes.name, exchange="amq.direct", headers={"tenant": "a"})
        assert isinstance(elsewhere.exception(30), MessageReturned)
        # Returned together with those of the lane that has the same name:
        ones = [publisher.publish(b"x", lanes.name, mandatory=False, headers={"tenant": "a"}) for _ in range(20)]
        direct = publisher.publish(b"y", lanes.bucket_of("a"))
        for one in ones:
            one.result(30)
        assert isinstance(direct.exception(30), MessageReturned | None)
        arrived = take(broker, lanes.bucket_of("a"))
        assert Counter(arrived)[b"x"] == 20
        assert (b"y" in arrived) == (direct.exception(0) is None)


def test_a_hot_tenant_gets_a_lane_that_is_announced(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher:
        flood(publisher, lanes, "acme", range(100))
        publisher.flush()
        eventually(lambda: is_open(publisher, lanes, "acme"))
        flood(publisher, lanes, "acme", range(100, 200))
        flood(publisher, lanes, "quiet", range(200, 203))
    assert take(broker, lanes.own_lane_of("acme"))[-100:] == [b"%d" % number for number in range(100, 200)]
    assert announced(broker, lanes) == [(lanes.own_lane_of("acme"), "acme")]
    assert take(broker, lanes.bucket_of("quiet"))[-3:] == [b"200", b"201", b"202"]


@pytest.mark.parametrize("existed", [False, True], ids=["new", "existed"])
def test_a_flood_leaves_the_bucket_to_others(broker: Node, new_lanes: Callable[..., Lanes], existed: bool) -> None:
    lanes = new_lanes()
    if existed:
        broker.declare(lanes.own_lane_of("acme"))
    with Publisher(broker.url, lanes=lanes) as publisher:
        flood(publisher, lanes, "acme", range(3000))
    assert take(broker, lanes.bucket_of("acme")) == [b"%d" % number for number in range(31)]
    assert take(broker, lanes.own_lane_of("acme")) == [b"%d" % number for number in range(31, 3000)]


def test_a_flood_of_an_asyncio_publisher_leaves_the_bucket_to_others(
    broker: Node, new_lanes: Callable[..., Lanes]
) -> None:
    lanes = new_lanes()

    async def publish() -> None:
        async with aio.Publisher(broker.url, lanes=lanes) as publisher:
            for number in range(3000):
                await publisher.publish(b"%d" % number, lanes.name, headers={"tenant": "acme"})

    asyncio.run(publish())
    assert take(broker, lanes.bucket_of("acme")) == [b"%d" % number for number in range(31)]
    assert take(broker, lanes.own_lane_of("acme")) == [b"%d" % number for number in range(31, 3000)]


@pytest.mark.parametrize("kind", [Publisher, aio.Publisher], ids=["sync", "asyncio"])
def test_a_close_ends_the_wait_for_a_lane(
    broker: Node, new_lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    for module in (client_module, aio_publisher_module):
        monkeypatch.setattr(module, "LANE_TIMEOUT", 1000.0)
    monkeypatch.setattr(lane_upkeep, "NOTICE", 1000.0)  # a lane that exists is not used for twice as long
    lanes = new_lanes()
    broker.declare(lanes.own_lane_of("acme"))
    publisher = kind(broker.url, lanes=lanes)

    async def publish() -> None:
        await done(publisher.open())
        for number in range(32):
            await done(publisher.publish(b"%d" % number, lanes.name, headers={"tenant": "acme"}))

    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(publish())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: publisher._client.begun and publisher._client.io_thread._lanes._when_open)
    publisher._client.end()
    thread.join(30)
    assert not thread.is_alive()
    assert [str(error) for error in errors] == ["this publisher is closed; create another"]


async def done(result: Any) -> Any:
    """Return a result, which is awaited if it is a coroutine's."""
    return await result if asyncio.iscoroutine(result) else result


def test_a_done_callback_publishes_to_the_bucket_meanwhile(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()
    numbers = iter(range(100))
    done = threading.Event()
    with Publisher(broker.url, lanes=lanes) as publisher:

        def publish_next(_confirmation: Any = None) -> None:
            number = next(numbers, None)
            if number is None:
                done.set()
                return
            confirmation = publisher.publish(b"%d" % number, lanes.name, headers={"tenant": "acme"})
            confirmation.add_done_callback(publish_next)

        publish_next()
        assert done.wait(30)
    found = [*take(broker, lanes.bucket_of("acme")), *take(broker, lanes.own_lane_of("acme"))]
    assert found == [b"%d" % number for number in range(100)]


def test_a_lane_in_use_is_announced_again_and_again(
    broker: Node, new_lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_upkeep, "_PERIOD", 0.0)  # with each look, once a second
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher, broker.connect() as channel:
        flood(publisher, lanes, 7, range(40))
        eventually(lambda: is_open(publisher, lanes, 7))
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, lanes.registry, ACTIVE)
        found: list[bytes] = []

        def heard() -> bool:
            flood(publisher, lanes, 7, range(1))
            _method, _properties, body = channel.basic_get(queue, auto_ack=True)
            found.extend([body] if body is not None else [])
            return len(found) > 1

        eventually(heard)
        assert {tuple(decode(body, lanes)) for body in found} == {(lanes.own_lane_of(7), 7)}
        # Without the registry, messages go on all the same.
        channel.exchange_delete(lanes.registry)
        flood(publisher, lanes, 7, range(1000))
        publisher.flush()
        assert publisher.stats()["failed"] == 0


@pytest.mark.parametrize("deleted", ["queue", "exchange and queue", "messages"])
def test_lanes_in_use_are_entered_again_into_a_registry_that_lost_them(
    broker: Node, new_lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    """While no worker runs, which would do it: one that starts later would not find them."""
    monkeypatch.setattr(lane_upkeep, "_PERIOD", 0.0)
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher, broker.connect() as channel:
        for tenant in ("acme", "zeta"):
            flood(publisher, lanes, tenant, range(40))
        eventually(lambda: is_open(publisher, lanes, "acme", "zeta"))
        if deleted == "messages":
            channel.queue_purge(lanes.registry)
        else:
            channel.queue_delete(lanes.registry)
        if deleted == "exchange and queue":
            channel.exchange_delete(lanes.registry)

        def is_entered() -> bool:
            for tenant in ("acme", "zeta"):
                flood(publisher, lanes, tenant, range(1))
            return exists(broker, lanes.registry) and broker.count(lanes.registry) >= 2

        eventually(is_entered, every=0.1)
        publisher.flush()
        assert publisher.stats()["failed"] == 0
    assert {*announced(broker, lanes)} == {(lanes.own_lane_of(tenant), tenant) for tenant in ("acme", "zeta")}


def test_order_within_a_tenant_is_kept_while_lanes_are_declared(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes(ordered=True)
    tenants = [f"t{number}" for number in range(8)]
    with Publisher(broker.url, lanes=lanes, confirm_window=300) as publisher:
        for number in range(8000):
            publisher.publish(b"%d" % number, lanes.name, headers={"tenant": tenants[number % 8]})
    found = {name: take(broker, name) for name in lanes.bucket_names}
    assert sum(map(len, found.values())) == 8000
    for bodies in found.values():
        assert bodies == sorted(bodies, key=int)
    with broker.connect() as channel:  # as the consumers declare it
        queue = lanes.queue(lanes.bucket_of("t0"))
        channel.queue_declare(queue.name, durable=True, arguments=dict(queue.all_arguments))


def test_a_lane_is_declared_when_the_broker_has_answered_to_all_messages(
    broker: Node, new_lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner, it would take the last of many messages at once, before the first ones, which are published again."""
    lanes = new_lanes(ordered=True, buckets=1)
    [bucket] = lanes.bucket_names
    owed: list[int] = []
    declare = LaneOpener.declare
    with Publisher(broker.url, lanes=lanes, confirm_window=5000) as publisher:
        window = publisher._client.io_thread.window
        monkeypatch.setattr(LaneOpener, "declare", lambda *what: (owed.append(window.in_flight), declare(*what))[1])
        broker.delete(bucket)
        flood(publisher, lanes, "acme", range(5000))
        publisher.flush()
        assert publisher.stats()["republished"] > 0
    assert {*owed} == {0}
    assert take(broker, bucket) == [b"%d" % number for number in range(5000)]


def test_lanes_with_order_are_there_before_the_first_message(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    """If another program declared them meanwhile, they would take the last messages of many, and return the first."""
    lanes = new_lanes(ordered=True)
    with Publisher(broker.url, lanes=lanes):
        assert all(exists(broker, name) for name in lanes.bucket_names)


def test_a_lane_with_order_that_has_other_arguments_is_named_in_the_log(
    broker: Node, new_lanes: Callable[..., Lanes], caplog: pytest.LogCaptureFixture
) -> None:
    lanes = new_lanes(ordered=True, buckets=2)
    broker.declare(lanes.bucket_names[1])
    with Publisher(broker.url, lanes=lanes) as publisher:
        flood(publisher, lanes, "acme", range(10))
    [line] = [record.getMessage() for record in caplog.records if "publishing anyway" in record.getMessage()]
    assert f"{lanes.bucket_names[1]!r} cannot be opened" in line
    assert "x-single-active-consumer" in line


@pytest.mark.parametrize("publishers", [1, 2])
def test_nothing_is_lost_when_lanes_are_deleted_again_and_again(
    broker: Node, new_lanes: Callable[..., Lanes], publishers: int
) -> None:
    # Not at the very moment at which a message arrives: RabbitMQ confirms it, and deletes it with the queue.
    lanes = new_lanes(buckets=2)
    names = [*lanes.bucket_names, *(lanes.own_lane_of(f"t{number}") for number in range(4))]
    chance = random.Random(publishers)
    received: Counter[bytes] = Counter()
    numbers = itertools.count()
    with broker.connect() as channel, ExitStack() as stack:
        many = [stack.enter_context(Publisher(broker.url, lanes=lanes, confirm_window=100)) for _ in range(publishers)]
        for _ in range(60):
            for _ in range(chance.choice([1, 50, 200])):
                body = {"headers": {"tenant": f"t{chance.choice([0, 0, 0, 1, 2, 3])}"}, "body": b"%d" % next(numbers)}
                chance.choice(many).publish(routing_key=lanes.name, **body)
            for publisher in many:
                publisher.flush()
            for name in chance.sample(names, 3):
                received.update(take(broker, name))
                channel.queue_delete(name, if_unused=True, if_empty=True)
        assert sum(publisher.stats()["republished"] for publisher in many) > 50
    for name in names:
        received.update(take(broker, name))
    assert set(received) == {b"%d" % number for number in range(next(numbers))}


def test_two_publishers_declare_the_same_lanes_at_once(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()
    begin = threading.Barrier(4)

    def publish(which: int) -> None:
        with Publisher(broker.url, lanes=lanes) as publisher:
            begin.wait()
            flood(publisher, lanes, "acme", range(1000 * which, 1000 * which + 1000))

    threads = [threading.Thread(target=publish, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [*take(broker, lanes.bucket_of("acme")), *take(broker, lanes.own_lane_of("acme"))]
    assert {*map(int, found)} == {*range(4000)}
    assert {*announced(broker, lanes)} == {(lanes.own_lane_of("acme"), "acme")}


def test_a_lane_with_other_arguments_fails_its_messages_and_says_what_to_do(
    broker: Node, new_lanes: Callable[..., Lanes], caplog: pytest.LogCaptureFixture
) -> None:
    lanes = new_lanes(arguments={"x-max-length": 10_000})
    with Publisher(broker.url, lanes=lanes) as publisher:
        # An own lane that cannot be had is no reason for a failure: its messages stay in the bucket.
        broker.declare(lanes.own_lane_of("acme"))
        flood(publisher, lanes, "acme", range(100))
        eventually(lambda: "arguments" in caplog.text)
        flood(publisher, lanes, "acme", range(100, 200))
        publisher.flush()
        assert take(broker, lanes.bucket_of("acme")) == [b"%d" % number for number in range(200)]
        [line] = [record.getMessage() for record in caplog.records if record.name == "fairsched.publisher.lane_upkeep"]
        assert f"lane {lanes.own_lane_of('acme')!r} cannot be opened" in line
        assert "{'x-max-length': 10000}" in line
        assert "give all programs the same arguments=" in line
        assert line.endswith("Until then its messages go to the bucket of their tenant")
    lanes = new_lanes(arguments={"x-max-length": -1})
    with Publisher(broker.url, lanes=lanes) as publisher:
        broker.declare(lanes.bucket_of("good"))
        bad = next(name for name in "abcdefgh" if lanes.bucket_of(name) != lanes.bucket_of("good"))
        ones = [publisher.publish(b"x", lanes.name, headers={"tenant": bad}) for _ in range(10)]
        publisher.publish(b"x", lanes.name, headers={"tenant": "good"}).result(30)
        for one in ones:
            with pytest.raises(
                PublishFailed, match=r"refused queue 'lanes-.*', durable, with arguments \{'x-max-length': -1\}"
            ):
                one.result(30)
    with pytest.raises(ConfigurationError, match="lanes must be a Lanes or several, got 'orders'"):
        Publisher(broker.url, lanes="orders")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="different names, got 'a' twice"):
        Publisher(broker.url, lanes=[Lanes("a", key="header:a"), Lanes("a", key="header:b")])


@pytest.mark.rabbitmq("users with permissions")
def test_without_permission_a_lane_fails_its_messages_and_no_others(
    broker: Node, new_lanes: Callable[..., Lanes]
) -> None:
    lanes = new_lanes()
    url = broker.add_user("poor", "poor")
    broker.permit("poor", "nothing")
    broker.declare(lanes.bucket_of("a"))
    other = next(name for name in "bcdefgh" if lanes.bucket_of(name) != lanes.bucket_of("a"))
    with Publisher(url, lanes=lanes) as publisher:
        good = [publisher.publish(b"x", lanes.name, headers={"tenant": "a"}) for _ in range(10)]
        bad = [publisher.publish(b"x", lanes.name, headers={"tenant": other}) for _ in range(10)]
        good += [publisher.publish(b"x", lanes.name, headers={"tenant": "a"}) for _ in range(10)]
        for one in good:
            one.result(30)
        for one in bad:
            with pytest.raises(PublishFailed, match=r"the broker refused queue .*: .*; grant this user the perm"):
                one.result(30)


TENANTS = [
    "", "x" * 300, "ä b/c", "\0", b"\xff\xfe", b"text", 0, -(2**40), True, False, 1.5, 2.0,
    Decimal("1.50"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), ["ä", 1], {"a": [None]}, None,
]  # fmt: skip


def test_tenants_of_all_kinds_have_the_lane_that_a_consumer_would_name(
    broker: Node, new_lanes: Callable[..., Lanes]
) -> None:
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher:
        for number, tenant in enumerate(TENANTS):
            publisher.publish(b"%d" % number, lanes.name, headers={"tenant": tenant})
    expected = len(TENANTS)
    seen = 0
    with Consumer(broker.url, [lanes.queue(name) for name in lanes.bucket_names], key=lanes.key) as consumer:
        for message in consumer:
            assert message.queue == lanes.bucket_of(message.slot), message.slot
            message.ack()
            seen += 1
            if seen == expected:
                consumer.stop()


@pytest.mark.parametrize(
    "key", ["property:message_id", "property:priority", "property:timestamp", "property:expiration"]
)
def test_a_property_may_be_the_key(broker: Node, new_lanes: Callable[..., Lanes], key: str) -> None:
    lanes = new_lanes(key=key)
    values = {"message_id": "m", "priority": 7, "timestamp": 1_700_000_000, "expiration": 600}
    with Publisher(broker.url, lanes=lanes) as publisher:
        publisher.publish(b"0", lanes.name, **values)
        publisher.publish(b"1", lanes.name, properties=pika.BasicProperties(**{**values, "expiration": "600000"}))
        publisher.publish(b"2", lanes.name)
    with Consumer(broker.url, [lanes.queue(name) for name in lanes.bucket_names], key=lanes.key) as consumer:
        slots = []
        for message in consumer:
            assert message.queue == lanes.bucket_of(message.slot)
            slots.append(message.slot)
            message.ack()
            if len(slots) == 3:
                consumer.stop()
    assert slots.count("") == 1


def test_a_million_messages_of_as_many_tenants_take_no_memory(new_lanes: Callable[..., Lanes], broker: Node) -> None:
    lanes = new_lanes(key="property:message_id")
    broker.declare(*lanes.bucket_names, arguments={"x-max-length": 1})
    with Publisher(broker.url, lanes=lanes) as publisher:
        for number in range(100_000):
            publisher.publish(b"", lanes.name, message_id=f"t{number}", delivery_mode=1)
        publisher.flush()
        assert publisher._client.spreads[lanes.name].placement.known_tenants <= 2048 + 64
        assert publisher.stats()["failed"] == 0


def test_nothing_is_lost_when_the_broker_is_killed(mortal: Node) -> None:
    lanes = Lanes("lanes", key="header:tenant", buckets=2)
    numbers = itertools.count()
    with Publisher(mortal.url, lanes=lanes) as publisher:
        for _ in range(3):
            flood(publisher, lanes, "acme", range(begin := next(numbers) * 1000, begin + 1000))
            mortal.restart()
            eventually(lambda: publisher.publish(b"-1", lanes.name).done() or publisher.stats()["unconfirmed"] < 2000)
        publisher.flush(60)
        eventually(
            lambda: publisher.flush() or is_open(publisher, lanes, "acme") or flood(publisher, lanes, "acme", range(1))
        )
    queues = [*lanes.bucket_names, lanes.own_lane_of("acme")]
    found = {int(body) for queue in queues for body in take(mortal, queue)}
    assert found >= {*range(3000)}
    assert {*announced(mortal, lanes)} == {(lanes.own_lane_of("acme"), "acme")}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Have own lanes be left after two seconds without an answer; return a little more."""
    monkeypatch.setattr(lane_upkeep, "_LONGEST_WAIT", 2.0)
    return 3.5


def pass_time(seconds: float) -> None:
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= end)


def with_own_lane(publisher: Publisher, lanes: Lanes) -> None:
    """Make a tenant hot."""
    flood(publisher, lanes, "acme", range(40))
    eventually(lambda: is_open(publisher, lanes, "acme"))
    publisher.flush()


def test_after_a_long_absence_messages_go_to_buckets_until_their_lanes_are_open_again(
    mortal: Node, impatient: float
) -> None:
    """Workers may be about to delete the lane, and RabbitMQ would confirm and lose what reaches it then."""
    lanes = Lanes("lanes", key="header:tenant", buckets=2)
    with Publisher(mortal.url, lanes=lanes) as publisher:
        with_own_lane(publisher, lanes)
        mortal.kill()
        eventually(lambda: not publisher._client.io_thread.connected)
        flood(publisher, lanes, "acme", range(100, 200))
        pass_time(impatient)
        mortal.start()
        publisher.flush(60)
        eventually(lambda: is_open(publisher, lanes, "acme"))
        flood(publisher, lanes, "acme", range(200, 210))
    assert {*take(mortal, lanes.bucket_of("acme"))} >= {b"%d" % number for number in range(100, 200)}
    own = {*map(int, take(mortal, lanes.own_lane_of("acme")))}
    assert own.isdisjoint(range(100, 200))
    assert own >= {*range(200, 210)}


def test_after_a_long_block_messages_go_to_buckets(mortal: Node, impatient: float) -> None:
    lanes = Lanes("lanes", key="header:tenant", buckets=2)
    with Publisher(mortal.url, lanes=lanes) as publisher:
        with_own_lane(publisher, lanes)
        with blocked(mortal):
            # The first one has the broker block this connection, too.
            flood(publisher, lanes, "acme", range(100, 200))
            eventually(lambda: not is_open(publisher, lanes, "acme"))
        publisher.flush(60)
    assert {*take(mortal, lanes.bucket_of("acme"))} >= {b"%d" % number for number in range(100, 200)}


def test_a_link_without_an_end_is_left(broker: Node, new_lanes: Callable[..., Lanes], impatient: float) -> None:
    """No heartbeat has failed yet when own lanes may be deleted."""
    lanes = new_lanes()
    port = pika.URLParameters(broker.url).port
    with Proxy(port) as proxy, Publisher(behind(proxy, broker.url), lanes=lanes) as publisher:
        with_own_lane(publisher, lanes)
        proxy.silence()
        flood(publisher, lanes, "acme", range(100, 200))
        publisher.flush(60)
        assert proxy.connections == 2
    assert {*take(broker, lanes.bucket_of("acme"))} >= {b"%d" % number for number in range(100, 200)}


def test_a_publisher_that_is_idle_or_answered_keeps_its_connection_and_its_lanes(
    broker: Node, new_lanes: Callable[..., Lanes], impatient: float
) -> None:
    lanes = new_lanes()
    with Publisher(broker.url, lanes=lanes) as publisher:
        with_own_lane(publisher, lanes)
        pass_time(impatient)
        end = time.monotonic() + impatient
        # There is always one without an answer, and none for long.
        waiting: deque[tuple[float, Confirmation]] = deque()
        longest, number = 0.0, 100
        while time.monotonic() < end or waiting:
            if time.monotonic() < end:
                headers = {"tenant": "acme"}
                waiting.append((time.monotonic(), publisher.publish(b"%d" % number, lanes.name, headers=headers)))
                number += 1
            if len(waiting) > 20 or time.monotonic() >= end:
                began, confirmation = waiting.popleft()
                confirmation.result(60)
                longest = max(longest, time.monotonic() - began)
        if longest < lane_upkeep._LONGEST_WAIT / 2:  # else the machine stood still, and the broker answered too late
            assert publisher.stats()["reconnects"] == 0
            assert is_open(publisher, lanes, "acme")
            assert int(take(broker, lanes.own_lane_of("acme"))[-1]) == number - 1


STOPPED = """
import signal, sys, threading
from fairsched import Lanes, Publisher
from fairsched.publisher import lane_upkeep
from fairsched.publisher.transport import PublisherTransport

lane_upkeep._LONGEST_WAIT = 2.0
lanes = Lanes(sys.argv[2], key="header:tenant", buckets=4)
emit = PublisherTransport.emit

def stop_and_emit(self, data):
    if b"late" in bytes(data) and lanes.own_lane_of("acme").encode() in bytes(data):
        # A signal to the process may reach its first thread, and this one would go on until that runs.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    emit(self, data)

with Publisher(sys.argv[1], lanes=lanes) as publisher:
    placement = publisher._client.spreads[lanes.name].placement
    while not placement.active(0.0):
        publisher.publish(b"x", lanes.name, headers={"tenant": "acme"}).result()
    PublisherTransport.emit = stop_and_emit
    publisher.publish(b"late", lanes.name, headers={"tenant": "acme"}).result()
    PublisherTransport.emit = emit
"""


def test_a_process_that_was_stopped_believes_no_confirm_of_its_own_lanes(
    broker: Node, new_lanes: Callable[..., Lanes], impatient: float
) -> None:
    """It was stopped before it could send the message, which reached the lane when workers might delete it."""
    lanes = new_lanes()
    process = subprocess.Popen([sys.executable, "-c", STOPPED, broker.url, lanes.name])
    try:
        eventually(lambda: os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)[1]))
        pass_time(impatient)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert b"late" in take(broker, lanes.own_lane_of("acme"))
    assert b"late" in take(broker, lanes.bucket_of("acme"))


KILLED = """
import os, signal, sys
from fairsched import Lanes, Publisher
from fairsched.publisher.lane_opener import LaneOpener

def announce(*_):
    os.kill(os.getpid(), signal.SIGKILL)

LaneOpener._announce_new = announce
with Publisher(sys.argv[1], lanes=Lanes(sys.argv[2], key="header:tenant")) as publisher:
    number = 0
    while True:
        publisher.publish(b"%d" % number, sys.argv[2], headers={"tenant": "acme"}).result()
        print(number, flush=True)
        number += 1
"""


def test_a_publisher_killed_between_declaration_and_announcement_leaves_no_message_in_the_lane(
    broker: Node, new_lanes: Callable[..., Lanes]
) -> None:
    assert hasattr(LaneOpener, "_announce_new")
    lanes = new_lanes(buckets=16)
    command = [sys.executable, "-c", KILLED, broker.url, lanes.name]
    process = subprocess.run(command, stdout=subprocess.PIPE, timeout=50, check=False)
    assert process.returncode == -signal.SIGKILL
    confirmed = {int(line) for line in process.stdout.split()}
    assert len(confirmed) >= 31
    assert confirmed <= {*map(int, take(broker, lanes.bucket_of("acme")))}
    assert exists(broker, lanes.own_lane_of("acme"))
    assert take(broker, lanes.own_lane_of("acme")) == []
    assert announced(broker, lanes) == []
    with Publisher(broker.url, lanes=lanes) as publisher:
        flood(publisher, lanes, "acme", range(40))
        eventually(lambda: is_open(publisher, lanes, "acme"))
    assert announced(broker, lanes) == [(lanes.own_lane_of("acme"), "acme")]


def test_the_asyncio_publisher_has_lanes_too(broker: Node, new_lanes: Callable[..., Lanes]) -> None:
    lanes = new_lanes()

    async def publish() -> None:
        async with aio.Publisher(broker.url, lanes=lanes, confirm_window=50) as publisher:
            ones = [
                await publisher.publish(b"%d" % number, lanes.name, headers={"tenant": "acme"})
                for number in range(1000)
            ]
            await asyncio.gather(*ones)

    asyncio.run(publish())
    found = [*take(broker, lanes.bucket_of("acme")), *take(broker, lanes.own_lane_of("acme"))]
    assert sorted(map(int, found)) == [*range(1000)]
    assert announced(broker, lanes) == [(lanes.own_lane_of("acme"), "acme")]
