"""Exchanges of type x-delayed-message: the cases of the plugin's own suite, and what follows from its source.

Source: rabbitmq-delayed-message-exchange, test/plugin_SUITE.erl.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from support.rabbitmq import EmbeddedNode

Channel = pika.adapters.blocking_connection.BlockingChannel
DELAYS = [500, 100, 300, 200, 100, 400]


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(durable=True) as node:
        yield node


@pytest.fixture
def channel(node: EmbeddedNode) -> Iterator[Channel]:
    with node.connect() as channel:
        yield channel
        if channel.is_open:
            for name in ("x1", "x2"):
                channel.exchange_delete(name)
            channel.queue_delete("q")


def declare(channel: Channel, kind: object, name: str = "x1", **options: Any) -> None:
    channel.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": kind}, **options)


def set_up(channel: Channel, kind: str, *keys: str, durable: bool = False) -> None:
    declare(channel, kind, durable=durable)
    channel.queue_declare("q", durable=durable)
    for key in keys:
        channel.queue_bind("q", "x1", key)


def publish(channel: Channel, delays: list[Any], key: str = "", name: str = "x1") -> None:
    for delay in delays:
        properties = pika.BasicProperties(headers={"x-delay": delay, "a": 1}, delivery_mode=2)
        channel.basic_publish(name, key, str(delay).encode(), properties)


def consume(channel: Channel, count: int) -> list[int]:
    found: list[int] = []
    for method, properties, body in channel.consume("q", auto_ack=True, inactivity_timeout=20):
        assert method is not None, f"{len(found)} of {count} came: {found}"
        assert properties.headers["a"] == 1
        assert int(properties.headers["x-delay"]) == (-int(body) if int(body) > 0 else int(body))
        found.append(int(body))
        if len(found) == count:
            channel.cancel()
            break
    return found


@pytest.mark.parametrize("kind", ["x-not-valid-type"])
def test_a_wrong_type_is_refused(node: EmbeddedNode, kind: str) -> None:
    with (
        pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"503.*unknown exchange type"),
        node.connect() as channel,
    ):
        declare(channel, kind)


@pytest.mark.parametrize(
    ("kind", "text"), [("x-delayed-message", "can't be used"), (5, "must be an existing exchange type")]
)
def test_a_type_that_cannot_be_is_refused(node: EmbeddedNode, kind: object, text: str) -> None:
    with node.connect() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"406.*{text}"):
        declare(channel, kind)


def test_a_missing_type_is_refused(node: EmbeddedNode) -> None:
    refused = pytest.raises(pika.exceptions.ChannelClosedByBroker, match="must be an existing exchange type")
    with node.connect() as channel, refused:
        channel.exchange_declare("x1", "x-delayed-message")


@pytest.mark.parametrize(
    ("kind", "keys", "published", "count"),
    [
        ("topic", ["a.b.c", "a.*.c", "a.#"], ["a.b.c", "a.z.c", "a.j.k", "b.b.c"], 3),
        ("direct", ["mykey"], ["mykey", "noroute", "mykey"], 2),
        ("fanout", ["mykey", "", "otherkey"], ["mykey", "noroute", "mykey"], 3),
    ],
)
@pytest.mark.parametrize("delay", [0, -5, 50])
def test_routing(channel: Channel, kind: str, keys: list[str], published: list[str], count: int, delay: int) -> None:
    set_up(channel, kind, *keys)
    for key in published:
        publish(channel, [delay], key)
    assert consume(channel, count) == [delay] * count
    assert channel.queue_declare("q", passive=True).method.message_count == 0


@pytest.mark.parametrize("delays", [[0], DELAYS])
def test_an_exchange_behind_another(channel: Channel, delays: list[int]) -> None:
    set_up(channel, "direct", "")
    declare(channel, "direct", "x2")
    channel.exchange_bind("x1", "x2", "")
    publish(channel, delays, name="x2")
    assert consume(channel, len(delays)) == sorted(delays)


def test_the_first_due_is_first_and_none_is_early(channel: Channel) -> None:
    set_up(channel, "direct", "")
    began = time.monotonic()
    publish(channel, DELAYS)
    assert consume(channel, len(DELAYS)) == sorted(DELAYS)
    assert time.monotonic() >= began + 0.5


def test_delays_as_text(channel: Channel) -> None:
    set_up(channel, "direct", "")
    publish(channel, [str(delay) for delay in DELAYS])
    assert consume(channel, len(DELAYS)) == sorted(DELAYS)


def test_without_a_delay_a_message_is_routed_at_once(channel: Channel) -> None:
    set_up(channel, "direct", "")
    for headers in (None, {}, {"x-delay": "soon"}, {"x-delay": 2**32}, {"x-delay": None}):
        channel.basic_publish("x1", "", b"x", pika.BasicProperties(headers=headers))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"


def test_a_mandatory_message_is_returned_and_arrives_nevertheless(channel: Channel) -> None:
    set_up(channel, "direct", "")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("x1", "", b"1", pika.BasicProperties(headers={"x-delay": 1, "a": 1}), mandatory=True)
    assert consume(channel, 1) == [1]


@pytest.mark.parametrize("how", ["restart", "restart_cleanly"])
@pytest.mark.parametrize("delays", [[1500, 4000, 900, 600, 3000], [1, 2, 3]], ids=["before", "after"])
def test_held_messages_survive_a_restart(node: EmbeddedNode, how: str, delays: list[int]) -> None:
    with node.connect() as channel:
        set_up(channel, "direct", "", durable=True)
        channel.confirm_delivery()
        publish(channel, delays)
    getattr(node, how)()
    with node.connect() as channel:
        assert consume(channel, len(delays)) == sorted(delays)
        channel.exchange_delete("x1")
        channel.queue_delete("q")


def test_what_a_deleted_exchange_held_is_dropped(channel: Channel) -> None:
    set_up(channel, "direct", "")
    publish(channel, [100])
    channel.exchange_delete("x1")
    declare(channel, "direct", "x2")
    channel.queue_bind("q", "x2", "")
    publish(channel, [200], name="x2")
    assert consume(channel, 1) == [200]
