"""Lanes that are quorum queues: found and never deleted, in order, filled by the relay; and by default of a vhost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from support.rabbitmq import Node, binary
from support.relaying import by_tenant, firsts, publish, running, taken_by_lane
from support.waiting import eventually

from fairsched import Consumer, Lanes, Publisher
from fairsched.lanes import own_lanes, registry
from fairsched.lanes.relay import Relay

pytestmark = pytest.mark.rabbitmq("quorum queues")

QUORUM = {"x-queue-type": "quorum"}
_numbers = itertools.count()


class Worker:
    """A consumer of lanes in a thread, and the bodies that it handled."""

    def __init__(self, url: str, lanes: Lanes, **options: Any) -> None:
        self.consumer = Consumer(url, lanes, **options)
        self.handled: list[bytes] = []
        self.thread = threading.Thread(target=self.consumer.run, args=(self.handle,))

    def handle(self, message: Any) -> None:
        self.handled.append(bytes(message.body))

    @property
    def hears(self) -> bool:
        found = self.consumer._client.lane_registry
        return found is not None and found.connected

    def __enter__(self) -> Worker:
        self.thread.start()
        eventually(lambda: self.consumer.state.ready and self.hears)
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop(now=True)
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lanes be idle after a second, and lost connections come back soon."""
    monkeypatch.setattr(own_lanes, "IDLE", 1.0)
    monkeypatch.setattr(registry, "BEAT", 0.5)
    monkeypatch.setattr("fairsched.amqp.backoff.LONGEST", 0.5)


@pytest.fixture
def quorum_host(broker: Node) -> Iterator[str]:
    """URL of a virtual host whose queues are quorum queues unless they say otherwise."""
    name = f"host-{next(_numbers)}"
    broker.add_host(name, "quorum")
    yield broker.url.replace("%2F", name)
    broker.delete_host(name)


def flood(url: str, lanes: Lanes, tenant: str, count: int) -> set[bytes]:
    """Publish so many messages of a tenant; return their bodies, which no other flood has."""
    bodies = [b"%s %d" % (tenant.encode(), next(_numbers)) for _ in range(count)]
    with Publisher(url, lanes=lanes) as publisher:
        for body in bodies:
            publisher.publish(body, lanes.name, headers={"tenant": tenant})
    return {*bodies}


def types(broker: Node, url: str) -> dict[str, str]:
    """Return the type of each queue of a virtual host."""
    name = pika.URLParameters(url).virtual_host
    listed = broker.evaluate(
        "[{binary_to_list(Name), Type} || [{name, {resource, _, queue, Name}}, {type, Type}]"
        f" <- rabbit_amqqueue:info_all({binary(name)}, [name, type])]."
    )
    return dict(re.findall(r'\{"(.+?)",\s*\w*?(classic|quorum|stream)', listed))


def test_an_own_lane_is_found_after_a_restart_and_stays(broker: Node, impatient: None) -> None:
    lanes = Lanes(f"quorum-{next(_numbers)}", key="header:tenant", buckets=2, arguments=QUORUM)
    lane = lanes.own_lane_of("acme")
    bodies = flood(broker.url, lanes, "acme", 300)
    assert types(broker, broker.url)[lane] == "quorum"
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: {*worker.handled} == bodies)
        own = worker.consumer._client.lane_registry._registered[lanes.registry].own
        # It has been idle for longer than a lane may be that can be deleted.
        eventually(lambda: own._lanes[lane].due < time.monotonic() - 1.0)
        assert own.is_consumed(lane)
        bodies |= flood(broker.url, lanes, "acme", 300)
        eventually(lambda: {*worker.handled} == bodies)
    broker.delete(*lanes.bucket_names, lane, lanes.registry)


def test_where_queues_are_quorum_queues_by_default(broker: Node, impatient: None, quorum_host: str) -> None:
    """The broker refuses to delete an idle lane, and closes the connection."""
    lanes = Lanes("orders", key="header:tenant", buckets=2)
    lane = lanes.own_lane_of("acme")
    bodies = flood(quorum_host, lanes, "acme", 300)
    found = types(broker, quorum_host)
    assert (found[lane], found[lanes.registry]) == ("quorum", "classic")
    with Worker(quorum_host, lanes) as one, Worker(quorum_host, lanes) as two:
        eventually(lambda: {*one.handled, *two.handled} == bodies)
        owns = [each.consumer._client.lane_registry._registered[lanes.registry].own for each in (one, two)]
        eventually(lambda: any(own.keeps for own in owns))
        bodies |= flood(quorum_host, lanes, "acme", 300)
        eventually(lambda: {*one.handled, *two.handled} == bodies)
        eventually(lambda: one.hears and two.hears)
        assert lane in types(broker, quorum_host)


def test_one_at_a_time_reads_the_registry_there(impatient: None, quorum_host: str) -> None:
    """Quorum queues ignore that a consumer is exclusive, and each of two readers would have a part of the entries."""
    lanes = Lanes("orders", key="header:tenant", buckets=2)
    bodies = flood(quorum_host, lanes, "acme", 100) | flood(quorum_host, lanes, "zeta", 100)
    connection = pika.BlockingConnection(pika.URLParameters(quorum_host))
    connection.channel().basic_consume(lanes.registry, lambda *_: None, exclusive=True)
    with Worker(quorum_host, lanes) as worker:
        registered = worker.consumer._client.lane_registry._registered[lanes.registry]
        eventually(lambda: registered.turns > 0)
        assert worker.consumer.stats()["lanes"] == {"orders": 0}
        connection.close()
        eventually(lambda: {*worker.handled} == bodies)


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_the_relay_fills_them_in_order(broker: Node, new_queue: Callable[..., str], ordered: bool) -> None:
    name = new_queue("ingress")
    lanes = Lanes(name, key="header:tenant", buckets=3, ordered=ordered, arguments=QUORUM)
    tenants = [("hot" if number % 2 else f"cold-{number % 20}") for number in range(3000)]
    publish(broker, name, [(tenant, f"{tenant}:{number}".encode()) for number, tenant in enumerate(tenants)])
    relay = Relay(broker.url, lanes)
    with running(relay):
        eventually(lambda: relay.stats()["moved"] == 3000)
    found: dict[str, list[int]] = {}
    for bodies in taken_by_lane(broker, lanes).values():
        for tenant, numbers in by_tenant(bodies).items():
            found[tenant] = found.get(tenant, []) + numbers
    expected: dict[str, list[int]] = {}
    for number, tenant in enumerate(tenants):
        expected.setdefault(tenant, []).append(number)
    assert found == expected


def test_the_order_outlasts_consumers_with_different_prefetch(broker: Node) -> None:
    """What the broker takes back from one comes before what it took back from another that had less of the queue."""
    lanes = Lanes(f"quorum-{next(_numbers)}", key="header:tenant", buckets=1, ordered=True, arguments=QUORUM)
    published = flood(broker.url, lanes, "acme", 100)
    for prefetch in 50, 10:
        with Consumer(broker.url, lanes, prefetch=prefetch) as consumer:
            eventually(lambda consumer=consumer: consumer.stats()["received"] >= 10)
    with Consumer(broker.url, lanes) as consumer:
        taken = []
        for message in itertools.islice(consumer, 100):
            taken.append(bytes(message.body))
            message.ack()
    assert taken == sorted(published, key=lambda body: int(body.split()[1]))
    broker.delete(*lanes.bucket_names)


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}], ids=["plain", "single active"])
def test_relays_of_a_quorum_queue_take_turns(
    broker: Node, new_queue: Callable[..., str], arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Quorum queues ignore that a consumer is exclusive."""
    caplog.set_level(logging.INFO, "fairsched")
    name = new_queue("ingress", arguments={**QUORUM, **arguments})
    lanes = Lanes(name, key="header:tenant", buckets=2, ordered=True, arguments=QUORUM)
    first, second = Relay(broker.url, lanes, window=100), Relay(broker.url, lanes, window=100)
    with contextlib.ExitStack() as ending:
        ending.enter_context(running(first))
        eventually(lambda: first.state.ready)
        with running(second):
            eventually(lambda: f"another relay moves the messages of queue {name!r}: standing by" in caplog.text)
            publish(broker, name, [("a", f"a:{number}".encode()) for number in range(5000)])
            eventually(lambda: first.stats()["moved"] > 500)
            assert second.stats()["moved"] == 0
            ending.close()
            eventually(lambda: first.stats()["moved"] + second.stats()["moved"] >= 5000)
    found = taken_by_lane(broker, lanes)
    assert [numbers for bodies in found.values() for numbers in by_tenant(bodies).values()] == [[*range(5000)]]


def test_one_relay_of_a_quorum_queue_goes_on_when_all_connections_are_lost(
    broker: Node, new_queue: Callable[..., str]
) -> None:
    name = new_queue("ingress", arguments=QUORUM)
    lanes = Lanes(name, key="header:tenant", buckets=2, ordered=True, arguments=QUORUM)
    relays = [Relay(broker.url, lanes, window=100) for _ in range(2)]
    with running(relays[0]), running(relays[1]):
        eventually(lambda: any(relay.state.ready for relay in relays))
        for begin in range(0, 1500, 500):
            publish(broker, name, [("a", f"a:{number}".encode()) for number in range(begin, begin + 500)])
            eventually(lambda end=begin + 500: moved(relays) >= end)
            broker.close_connections()
        eventually(lambda: sum(relay.state.consuming[name] for relay in relays) == 1)
    [numbers] = [numbers for bodies in taken_by_lane(broker, lanes).values() for numbers in by_tenant(bodies).values()]
    assert firsts(numbers) == [*range(1500)]


def moved(relays: list[Relay]) -> int:
    return sum(relay.stats()["moved"] for relay in relays)
