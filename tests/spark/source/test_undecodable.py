"""Headers and routing keys that pika cannot decode, in a query."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pika
import pytest
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.running import Driver
from support.wiretables import LATE, LATIN, Encoded, field, table


@pytest.mark.parametrize("size", [3, 300_000])
def test_no_header_stops_a_query(size: int, broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    headers = table(LATE, LATIN, field(b"half", b"d", struct.pack(">d", 0.5)), field(b"n", b"F", table(LATIN)))
    with broker.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", name, b"x" * size, Encoded(headers))
    one = driver([name], includeHeaders="true")
    [[row]] = one.read(one.plan())
    assert row["body"] == b"x" * size
    assert dict(row["headers"]) == {"late": str(2**60), "\ufffd": "x", "half": "0.5", "n": '{"\ufffd": "x"}'}
    assert broker.count(name) == 0


@pytest.mark.parametrize("size", [3, 300_000])
def test_no_routing_key_stops_a_query(
    size: int, broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    with broker.connect() as channel:
        channel.exchange_declare(f"{name}-all", "fanout")
        channel.queue_bind(name, f"{name}-all")
        method = pika.spec.Basic.Publish(exchange=f"{name}-all", routing_key="k")
        frame = b"".join(method.encode()).replace(b"\x01k", b"\x01\xe9")
        method.encode = lambda: [frame]
        channel._impl._send_method(method, (pika.BasicProperties(), b"x" * size))
        channel.queue_declare(name, passive=True)
    one = driver([name])
    [[row]] = one.read(one.plan())
    assert row["routing_key"] == "\ufffd"
    assert len(row["body"]) == size
