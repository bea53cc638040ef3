"""State that survives a kill, or a restart in good order: of RabbitMQ, and of the embedded one with a data
directory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika
import pytest
from support.rabbitmq import EmbeddedNode, Node
from support.waiting import eventually

Channel = pika.adapters.blocking_connection.BlockingChannel

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Node]:
    """A RabbitMQ that may be killed."""
    with Node() as node:
        yield node


@pytest.fixture(params=["rabbitmq", "embedded"])
def node(request: pytest.FixtureRequest) -> Iterator[Node | EmbeddedNode]:
    if request.param == "rabbitmq":
        yield request.getfixturevalue("mortal")
        return
    with EmbeddedNode(durable=True) as node:
        yield node


@pytest.fixture(params=["restart", "restart_cleanly"])
def restart(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def left_open(node: Node | EmbeddedNode) -> Iterator[Channel]:
    """A channel of a connection that the broker ends."""
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    yield connection.channel()
    with suppress(pika.exceptions.AMQPError):
        connection.process_data_events(0)
        connection.close()


def there(node: Node | EmbeddedNode, kind: str, name: str) -> bool:
    """Whether a queue or an exchange of that name exists."""
    with node.connect() as channel:
        try:
            if kind == "queue":
                channel.queue_declare(name, passive=True)
            else:
                channel.exchange_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


def drain(channel: Channel, queue: str) -> list[tuple[bytes, bool]]:
    """Take all messages of a queue: body, and whether it is said to be redelivered."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((body, method.redelivered))


def test_what_is_declared(node: Node | EmbeddedNode, restart: str) -> None:
    with left_open(node) as channel, left_open(node) as other:
        channel.queue_declare("d", durable=True, arguments={"x-max-length": 7})
        channel.queue_declare("transient")
        channel.queue_declare("exclusive", durable=True, exclusive=True)
        channel.queue_declare("auto", durable=True, auto_delete=True)
        channel.queue_declare("consumed", durable=True, auto_delete=True)
        channel.queue_declare("deleted", durable=True)
        channel.exchange_declare("dx", "topic", durable=True, arguments={"alternate-exchange": "dx2"})
        channel.exchange_declare("dx2", "headers", durable=True)
        channel.exchange_declare("tx", "direct")
        channel.exchange_declare("ax", "fanout", durable=True, auto_delete=True)
        channel.queue_bind("d", "dx", "a.#")
        channel.queue_bind("d", "dx", "unbound")
        channel.queue_bind("deleted", "dx", "deleted")
        channel.queue_bind("transient", "dx", "a.#")
        channel.queue_bind("d", "dx2", "", {"x-match": "any", "colour": "red"})
        channel.queue_bind("d", "amq.direct", "k")
        channel.queue_bind("d", "tx", "k")
        channel.queue_bind("d", "ax", "")
        channel.exchange_bind("dx2", "dx", "b")
        channel.queue_unbind("d", "dx", "unbound")
        channel.queue_delete("deleted")
        other.basic_consume("consumed", lambda *_: None)
        getattr(node, restart)()
    expected = {
        "d": True, "transient": False, "exclusive": False, "auto": True,
        "consumed": restart == "restart", "deleted": False,
    }  # fmt: skip
    assert {name: there(node, "queue", name) for name in expected} == expected
    assert [there(node, "exchange", name) for name in ("dx", "dx2", "tx", "ax")] == [True, True, False, True]
    with node.connect() as channel:
        channel.queue_declare("d", durable=True, arguments={"x-max-length": 7})
        channel.exchange_declare("dx", "topic", durable=True, arguments={"alternate-exchange": "dx2"})
        red, blue = ({"headers": {"colour": colour}} for colour in ("red", "blue"))
        for exchange, key, properties in [
            ("dx", "a.1", {}),
            ("dx", "unbound", blue),
            ("dx", "other", red),
            ("dx", "b", red),
            ("dx2", "", red),
            ("amq.direct", "k", {}),
            ("ax", "", {}),
        ]:
            body = f"{exchange} {key} {properties}".encode()
            channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))
        assert [body for body, _ in drain(channel, "d")] == [
            b"dx a.1 {}",
            b"dx other {'headers': {'colour': 'red'}}",
            b"dx b {'headers': {'colour': 'red'}}",
            b"dx2  {'headers': {'colour': 'red'}}",
            b"amq.direct k {}",
            b"ax  {}",
        ]
        for name in ("d", "auto", "consumed"):
            channel.queue_delete(name)
        for name in ("dx", "dx2", "ax"):
            channel.exchange_delete(name)


def test_which_messages(node: Node | EmbeddedNode, restart: str) -> None:
    with left_open(node) as channel:
        channel.queue_declare("m", durable=True)
        channel.queue_declare("n", durable=True)
        channel.queue_bind("n", "amq.fanout")
        channel.queue_bind("m", "amq.fanout")
        channel.confirm_delivery()
        for number in range(6):
            channel.basic_publish("amq.fanout", "", b"%d" % number, PERSISTENT)
            channel.basic_publish("", "m", b"transient")
        assert channel.basic_get("m")[2] == b"0"
        assert [channel.basic_get("m", auto_ack=True)[2] for _ in range(3)] == [b"transient", b"1", b"transient"]
        assert channel.basic_get("m")[2] == b"2"
        method = channel.basic_get("n")[0]
        channel.basic_ack(method.delivery_tag)
        # Acknowledgements are not confirmed, but they are on the disk before what comes after them.
        channel.basic_publish("amq.fanout", "", b"6", PERSISTENT)
        getattr(node, restart)()
    killed = restart == "restart"
    with node.connect() as channel:
        untouched = [(b"%d" % number, killed) for number in range(3, 7)]
        assert drain(channel, "m") == [(b"0", True), (b"2", True), *untouched]
        assert drain(channel, "n") == [(b"%d" % number, killed) for number in range(1, 7)]
        channel.queue_delete("m")
        channel.queue_delete("n")


def test_time_to_live_goes_on(node: Node | EmbeddedNode, restart: str) -> None:
    """A message that had its whole time again after the restart would expire after the witness."""
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with left_open(node) as channel:
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("ttl", durable=True, arguments=dead_letters)
        channel.confirm_delivery()
        for body, expiration in ((b"soon", "1500"), (b"late", "600000")):
            channel.basic_publish("", "ttl", body, pika.BasicProperties(delivery_mode=2, expiration=expiration))
        due = time.monotonic() + 1.5
        getattr(node, restart)()
    with node.connect() as channel:
        channel.queue_declare("witness", arguments=dead_letters)
        # No start takes as little as 0.1 s; after a long one, a busy broker needs a moment to find what is due.
        rest = max(500, math.ceil((due + 0.1 - time.monotonic()) * 1000))
        channel.basic_publish("", "witness", b"witness", pika.BasicProperties(expiration=str(rest)))
        eventually(lambda: node.count("dead") == 2)
        dead = [channel.basic_get("dead", auto_ack=True) for _ in range(2)]
        assert [(body, properties.headers["x-death"][0]["reason"]) for _method, properties, body in dead] == [
            (b"soon", "expired"), (b"witness", "expired"),
        ]  # fmt: skip
        assert [body for body, _ in drain(channel, "ttl")] == [b"late"]
        for queue in ("ttl", "witness", "dead"):
            channel.queue_delete(queue)
