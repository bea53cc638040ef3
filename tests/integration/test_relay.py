"""The relay: messages of an ingress queue go to the lanes of their tenants; none is lost, and their order is kept."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from support.blocking import blocked
from support.rabbitmq import Broker, Node
from support.relaying import by_tenant, firsts, lasts, moves, publish, running, taken, taken_by_lane, taken_messages
from support.waiting import eventually
from support.wiretables import Encoded, field, nested, table

from fairsched import ConfigurationError, Consumer, Lanes, Publisher, QueueNotFound
from fairsched.cli.group import cli
from fairsched.lanes import relay as relay_module
from fairsched.lanes.relay import Relay

NewQueue = Callable[..., str]


_names = itertools.count()


def numbered(tenants: dict[str, int]) -> list[tuple[str, bytes]]:
    """Return messages of tenants, mixed at random, each tenant's in order."""
    order = [tenant for tenant, count in tenants.items() for _ in range(count)]
    random.Random(7).shuffle(order)
    counts = {tenant: itertools.count() for tenant in tenants}
    return [(tenant, f"{tenant}:{next(counts[tenant])}".encode()) for tenant in order]


def found_of(broker: Broker, lanes: Lanes) -> dict[str, list[int]]:
    """Return what is in the lanes, by tenant: first what is in its bucket, then what is in its own lane."""
    found: dict[str, list[int]] = {}
    for bodies in taken_by_lane(broker, lanes).values():
        for tenant, numbers in by_tenant(bodies).items():
            found[tenant] = found.get(tenant, []) + numbers
    return found


TENANTS = {"hot": 3000, **{f"cold-{number}": 20 for number in range(100)}}


@pytest.mark.usefixtures("either_way")
def test_everything_moves_in_order(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("moved"), key="header:tenant", buckets=4)
    publish(broker, lanes.name, numbered(TENANTS))
    relay = Relay(broker.url, lanes)
    moves(relay, 5000)
    assert found_of(broker, lanes) == {tenant: list(range(count)) for tenant, count in TENANTS.items()}
    assert broker.left(lanes.name) == 0
    assert relay.stats() == {"moved": 5000, "repeated": 0, "refused": 0, "waiting": 0}


def test_messages_go_to_the_lanes_of_their_tenants(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("lanes"), key="property:app_id", buckets=7)
    tenants = ["a", "b", "ü", "x" * 200, ""]
    with Publisher(broker.url) as publisher:
        for tenant in tenants:
            publisher.publish(tenant.encode(), lanes.name, app_id=tenant)
        publisher.publish(b"", lanes.name)
    moves(Relay(broker.url, lanes), 6)
    found = taken_by_lane(broker, lanes)
    for tenant in tenants:
        assert tenant.encode() in found[lanes.bucket_of(tenant)]
    assert found[lanes.bucket_of("")].count(b"") == 2


# What a copy has ------------------------------------------------------------------------------------------------------

ODD: list[tuple[dict[str, Any], bytes]] = [
    ({}, b""),
    ({"headers": {"tenant": "a", "nested": {"list": [1, None, {"x": b"\xff"}]}, "decimal": 3}}, b"body"),
    ({"headers": {"tenant": "t" * 300}}, b"long"),
    ({"headers": {"tenant": [1, 2]}}, b"list"),
    ({"headers": {"tenant": -7}, "priority": 9, "expiration": "3600000", "delivery_mode": 1}, b"number"),
    ({"headers": {"tenant": None}, "reply_to": "answers", "correlation_id": "1", "message_id": "m"}, b"void"),
    ({"headers": {"text": "\x02CC and \x03BCC are in a value"}, "type": "t", "timestamp": 17}, b"no copies"),
    ({"content_type": "text/plain", "content_encoding": "gzip", "user_id": "guest", "app_id": "p"}, b"x" * 200_000),
    ({"headers": {"tenant": "big"}, "delivery_mode": 2}, bytes(range(256)) * (16 << 12)),
]  # fmt: skip


@pytest.mark.usefixtures("either_way")
def test_copies_are_the_same_byte_for_byte(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("odd"), key="header:tenant", buckets=1)
    reference = new_queue("reference")
    tables = [
        table(field(b"tenant", b"S", struct.pack(">I", 1) + b"a"), field(b"deep", b"F", nested(1500))),
        table(field(b"tenant", b"S", struct.pack(">I", 2) + b"\xff\xfe")),
    ]
    with broker.connect() as channel:
        channel.confirm_delivery()
        for queue in (lanes.name, reference):
            for properties, body in ODD:
                channel.basic_publish("", queue, body, pika.BasicProperties(**properties))
            for headers in tables:
                channel.basic_publish("", queue, b"odd", Encoded(headers, app_id="app"))
    moves(Relay(broker.url, lanes), len(ODD) + len(tables))
    copies, originals = raw(broker, lanes.bucket_names[0]), raw(broker, reference)
    assert [len(body) for _, body in copies] == [len(body) for _, body in originals]
    assert copies == originals


def raw(broker: Broker, queue: str) -> list[tuple[bytes, bytes]]:
    """Take encoded properties and bodies out of a queue."""
    return [(message.raw_properties, message.body) for message in taken_messages(broker, queue)]


def test_copies_are_not_routed_once_more_by_their_headers(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("cc"), key="header:tenant", buckets=1)
    audit = new_queue("audit")
    headers = {"tenant": "a", "CC": [audit, lanes.name], "BCC": [audit], "other": 1}
    with Publisher(broker.url) as publisher:
        publisher.publish(b"x", lanes.name, headers=headers).result(30)
    before = broker.count(audit)
    assert before >= 1
    moves(Relay(broker.url, lanes), 1)
    assert broker.count(audit) == before
    (properties, _), *more = taken(broker, lanes.bucket_names[0])
    assert more == []
    assert properties.headers == {"tenant": "a", "other": 1, "x-original-cc": [audit, lanes.name]}


def test_a_user_id_that_the_broker_refuses(broker: Node, new_queue: NewQueue, caplog: pytest.LogCaptureFixture) -> None:
    lanes = Lanes(new_queue("users"), key="header:tenant", buckets=1)
    url = broker.add_user("app", "hush-hush")
    with Publisher(broker.url) as publisher:
        for number in range(300):
            named = {"user_id": "guest"} if number % 3 == 0 else {}
            publisher.publish(b"a:%d" % number, lanes.name, headers={"tenant": f"t{number}"}, **named)
    relay = Relay(url, lanes)
    with caplog.at_level(logging.WARNING, "fairsched.lanes"):
        moves(relay, 300)
    found = taken(broker, lanes.bucket_names[0])
    numbers = by_tenant(body for _, body in found)["a"]
    assert numbers == list(range(300))
    for properties, body in found:
        foreign = int(body.partition(b":")[2]) % 3 == 0
        assert properties.user_id is None
        assert properties.headers.get("x-original-user-id") == ("guest" if foreign else None)
    assert sum("refuses user ids" in record.message for record in caplog.records) == 1
    assert relay.stats()["refused"] == 0


# Lanes that refuse ----------------------------------------------------------------------------------------------------


def drained(broker: Broker, lanes: Lanes, wanted: int) -> dict[str, list[int]]:
    """Consume the lanes while a relay fills them, until so many different messages have come."""
    found: dict[str, list[int]] = {}
    seen: set[bytes] = set()
    with Consumer(broker.url, lanes.bucket_names, prefetch=dict.fromkeys(lanes.bucket_names, 5)) as consumer:
        while len(seen) < wanted:
            with consumer.get(30) as message:
                seen.add(message.body)
                tenant, _, number = message.body.decode().rpartition(":")
                found.setdefault(tenant, []).append(int(number))
        consumer.stop()
    return found


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_full_lane_loses_nothing_and_keeps_the_order(
    broker: Node, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Known: by the arguments of the lanes; otherwise by a policy, as far as the relay is concerned."""
    if not known:
        monkeypatch.setattr(relay_module, "_REFUSING", frozenset())
    lanes = Lanes(
        new_queue("full"),
        key="header:tenant",
        buckets=3,
        arguments={"x-max-length": 20, "x-overflow": "reject-publish"},
    )
    tenants = {f"t{number}": 20 for number in range(60)}  # none of them is hot
    publish(broker, lanes.name, numbered(tenants))
    relay = Relay(broker.url, lanes)
    with running(relay):
        eventually(lambda: relay.stats()["refused"] > 0, what="a refusal")
        found = drained(broker, lanes, 1200)
        eventually(lambda: relay.stats()["waiting"] == 0 and broker.left(lanes.name) == 0)
    for tenant, count in tenants.items():
        if known:
            assert found[tenant] == list(range(count))
        else:
            # A copy of each comes after all that were published before it, so the last ones are in order, those still
            # in the lane included.
            assert set(found[tenant]) == set(range(count))
    if not known:
        left = found_of(broker, lanes)
        for tenant, count in tenants.items():
            assert lasts(found[tenant] + left.get(tenant, [])) == list(range(count))


def test_a_full_lane_does_not_hold_up_the_others(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(
        new_queue("busy"),
        key="header:tenant",
        buckets=8,
        arguments={"x-max-length": 50, "x-overflow": "reject-publish"},
    )
    names = [f"t{number}" for number in range(400)]
    crowd = {name: 20 for name in names if lanes.bucket_of(name) == lanes.bucket_of("t0")}
    others = [name for name in names if name not in crowd][:20]
    everyone = {**dict(list(crowd.items())[:25]), **dict.fromkeys(others, 1)}
    publish(broker, lanes.name, numbered(everyone))
    relay = Relay(broker.url, lanes)
    with running(relay):
        eventually(lambda: relay.stats()["moved"] == 70, what="50 in the full lane, and 20 others")
        assert relay.stats()["waiting"] == 450
    # What waited is in the ingress queue again, in order.
    assert broker.left(lanes.name) == 450
    rest = by_tenant(body for _, body in taken(broker, lanes.name))
    found = found_of(broker, lanes)
    for tenant, count in everyone.items():
        assert found.get(tenant, []) + rest.get(tenant, []) == list(range(count))


def test_a_lane_with_other_arguments(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("other"), key="header:tenant", buckets=2)
    broker.declare(lanes.bucket_names[1], arguments={"x-max-length": 5})
    with pytest.raises(ConfigurationError, match=r"lanes of 'other-\d+' cannot be declared .*inequivalent arg"):
        Relay(broker.url, lanes).run()


@pytest.mark.rabbitmq("streams")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-max-length-bytes": 1_000_000},
        {"x-max-age": "1D"},
        {"x-max-length-bytes": 1_000_000, "x-max-age": "1D", "x-queue-leader-locator": "client-local"},
        {"x-stream-max-segment-size-bytes": 500_000},
    ],
    ids=lambda arguments: "+".join(arguments) or "plain",
)
def test_a_stream_is_refused(broker: Node, arguments: dict[str, Any]) -> None:
    lanes = Lanes("relayed-stream", key="header:tenant", buckets=2)
    broker.declare(lanes.name, arguments={"x-queue-type": "stream", **arguments})
    try:
        with pytest.raises(ConfigurationError, match="queue 'relayed-stream' is a stream"):
            Relay(broker.url, lanes).run()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            broker.count(lanes.bucket_names[0])
    finally:
        broker.delete(lanes.name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"durable": False},
        {"arguments": {"x-queue-type": "classic"}},
        {"arguments": {"x-queue-type": "quorum"}},
        {"arguments": {"x-max-length-bytes": 1_000_000}},
        {"arguments": {"x-max-length-bytes": 1_000_000, "x-max-priority": 3, "x-message-ttl": 60_000}},
        {"arguments": {"x-expires": 60_000}},
    ],
    ids=repr,
)
def test_what_is_no_stream_is_moved(broker: Broker, options: dict[str, Any]) -> None:
    lanes = Lanes(f"no-stream-{next(_names)}", key="header:tenant", buckets=2)
    with broker.connect() as channel:
        channel.queue_declare(lanes.name, **{"durable": True, **options})
    relay = Relay(broker.url, lanes)
    publish(broker, lanes.name, [("a", b"a:0")])
    with running(relay):
        eventually(lambda: relay.stats()["moved"] == 1)


def test_an_ingress_queue_that_does_not_exist(broker: Node) -> None:
    with pytest.raises(QueueNotFound, match="'not-there' does not exist"):
        Relay(broker.url, Lanes("not-there", key="header:tenant", buckets=1)).run()
    result = CliRunner().invoke(
        cli, ["spread", "not-there", "--key", "header:tenant", "--buckets", "1", "--url", broker.url]
    )
    assert result.exit_code == 6, result.output


# The broker -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart_cleanly", "restart", "close_connections"])
def test_a_restart_of_the_broker(mortal: Broker, how: str) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=4)
    mortal.declare("orders")
    messages = [(f"t{number % 50}", f"t{number % 50}:{number}".encode()) for number in range(20_000)]
    publish_durably(mortal, "orders", messages)
    relay = Relay(mortal.url, lanes)
    with running(relay):
        eventually(lambda: relay.stats()["moved"] > 1000)
        getattr(mortal, how)()
        eventually(lambda: relay.state.connected and mortal.left("orders") == 0, 90)
    found = found_of(mortal, lanes)
    for tenant in range(50):
        numbers = found[f"t{tenant}"]
        assert firsts(numbers) == list(range(tenant, 20_000, 50))
        assert lasts(numbers) == list(range(tenant, 20_000, 50))


def publish_durably(broker: Broker, queue: str, messages: list[tuple[str, bytes]]) -> None:
    with Publisher(broker.url) as publisher:
        for tenant, body in messages:
            publisher.publish(body, queue, headers={"tenant": tenant})


def has_window(relay: Relay) -> bool:
    """Return whether the relay has its window of 300 messages: how many of them it published depends on the block."""
    return relay.state.in_hand + relay.state.buffered >= 300


def test_a_blocked_connection(mortal: Broker) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=2)
    mortal.declare("orders")
    publish(mortal, "orders", numbered({"a": 500, "b": 500}))
    relay = Relay(mortal.url, lanes, window=300)
    with contextlib.ExitStack() as blocking:
        blocking.enter_context(blocked(mortal))
        with running(relay):
            eventually(lambda: has_window(relay), what="a window of messages")
            assert relay.stats()["moved"] < 700
            blocking.close()
            eventually(lambda: relay.stats()["moved"] == 1000)
    assert found_of(mortal, lanes) == {"a": list(range(500)), "b": list(range(500))}


def test_a_stop_while_the_connection_is_blocked(mortal: Broker) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=2)
    mortal.declare("orders")
    publish(mortal, "orders", numbered({"a": 500}))
    relay = Relay(mortal.url, lanes, window=300, shutdown_timeout=2)
    with blocked(mortal), running(relay):
        eventually(lambda: has_window(relay), what="a window of messages")
    # What the broker took without a confirm is in both.
    rest = set(by_tenant(body for _, body in taken(mortal, "orders")).get("a", []))
    assert rest | set(found_of(mortal, lanes).get("a", [])) == set(range(500))


# Several relays, and their ends ---------------------------------------------------------------------------------------


def test_two_relays_divide_the_messages(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("two"), key="header:tenant", buckets=4)
    relays = [Relay(broker.url, lanes, window=100) for _ in range(2)]
    with running(relays[0]), running(relays[1]):
        eventually(lambda: all(relay.state.ready for relay in relays))
        publish(broker, lanes.name, numbered(TENANTS))
        eventually(lambda: sum(relay.stats()["moved"] for relay in relays) == 5000)
    assert all(relay.stats()["moved"] > 0 for relay in relays)
    found = found_of(broker, lanes)
    assert {tenant: sorted(numbers) for tenant, numbers in found.items()} == {
        tenant: list(range(count)) for tenant, count in TENANTS.items()
    }


def test_with_order_one_relay_moves_and_another_takes_over(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("one"), key="header:tenant", buckets=2, ordered=True)
    first, second = Relay(broker.url, lanes), Relay(broker.url, lanes)
    with running(second):
        eventually(lambda: second.state.ready)
        with running(first):
            publish(broker, lanes.name, numbered({"a": 300}))
            eventually(lambda: second.stats()["moved"] == 300)
            assert first.stats()["moved"] == 0
            second.stop()
            eventually(lambda: first.state.ready)
            publish(broker, lanes.name, [("a", b"a:300")])
            eventually(lambda: first.stats()["moved"] == 1)
    assert found_of(broker, lanes) == {"a": list(range(301))}


def start(url: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fairsched.cli", "spread", *arguments, "--key", "header:tenant", "--url", url]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))


def test_sigterm_moves_what_is_here(broker: Node, new_queue: NewQueue) -> None:
    lanes = Lanes(new_queue("term"), key="header:tenant")
    publish(broker, lanes.name, numbered({"a": 20_000, "b": 20_000}))
    process = start(broker.url, lanes.name)
    try:
        eventually(lambda: sum_in(broker, lanes) > 500)
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert b"SIGTERM: finishing" in output
    rest = by_tenant(body for _, body in taken(broker, lanes.name))
    for tenant, numbers in found_of(broker, lanes).items():
        assert numbers + rest.get(tenant, []) == list(range(20_000))


@pytest.mark.chaos
@pytest.mark.slow
def test_kill_9_at_random_moments(mortal: Broker, outcomes: Any) -> None:
    """Twenty relays are killed, one after the other, while messages are published."""
    mortal.declare("kill")
    lanes = Lanes("kill", key="header:tenant")
    chance = random.Random(9)
    total = itertools.count()
    published: list[int] = []
    stop = threading.Event()

    def produce() -> None:
        with Publisher(mortal.url) as publisher:
            while not stop.wait(0.02):  # up to five thousand a second
                for _ in range(100):
                    number = next(total)
                    tenant = f"t{number % 13}"
                    publisher.publish(f"{tenant}:{number}".encode(), lanes.name, headers={"tenant": tenant})
                publisher.flush()
                published.append(100)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        eventually(lambda: published)
        others = mortal.channels()  # the producer's, on a broker that no other test uses
        for _ in range(20):
            process = start(mortal.url, lanes.name)
            try:
                wanted = sum_in(mortal, lanes) + chance.randrange(1, 3000)
                eventually(lambda wanted=wanted: sum_in(mortal, lanes) >= wanted)
            finally:
                process.kill()
                process.communicate()
            # Until the broker has noticed, it gives the next relay later messages than it takes back; and copies that
            # it has not read would come behind those of the next relay.
            eventually(lambda: consumers_of(mortal, lanes.name) == 0 and mortal.channels() <= others)
    finally:
        stop.set()
        producer.join()
    count = sum(published)
    relay = Relay(mortal.url, lanes)
    with running(relay):
        eventually(lambda: mortal.left(lanes.name) == 0, 60)
    # A tenant becomes hot once more with each relay, and goes from its bucket to its own lane.
    runs = [numbers for bodies in taken_by_lane(mortal, lanes).values() for numbers in by_tenant(bodies).values()]
    for numbers in runs:
        assert firsts(numbers) == sorted(set(numbers))
        assert lasts(numbers) == sorted(set(numbers))
    everything = [number for numbers in runs for number in numbers]
    assert set(everything) == set(range(count))
    assert len(everything) - count <= 20 * 2000  # at most a window for each relay that was killed
    outcomes.note("the process is killed, twenty times", "relay", (set(range(count)), everything))


def consumers_of(broker: Broker, queue: str) -> int:
    with broker.connect() as channel:
        return int(channel.queue_declare(queue, passive=True).method.consumer_count)


def sum_in(broker: Broker, lanes: Lanes) -> int:
    counts = broker.messages()
    return sum(count for name, count in counts.items() if lanes.is_lane(name))
