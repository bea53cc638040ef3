"""Messages whose headers pika cannot decode, on their way through a consumer: nothing stops, nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import consume
from support.wiretables import Encoded, field, nested, table

from fairsched import Consumer, DecodingError, aio, from_pika

TENANT = field(b"tenant", b"S", struct.pack(">I", 1) + b"a")
MILLISECONDS = 1_700_000_000_000
HEADERS = {
    "milliseconds": table(TENANT, field(b"sent", b"T", struct.pack(">Q", MILLISECONDS))),
    "nested": table(TENANT, field(b"deep", b"F", nested(1500))),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "key": {"key": "header:tenant"},
    "property": {"key": "property:app_id"},
    "ordering": {"ordering_key": "header:tenant", "workers": 3},
    "function": {"key": lambda message: message.headers["tenant"], "cost": lambda message: len(message.headers)},
}
#: The second is longer than any frame: such a delivery takes pika's way.
SIZES = [3, 300_000]


def publish(broker: Node, queue: str, headers: bytes, body: bytes) -> None:
    with broker.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, Encoded(headers, app_id="app"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("headers", HEADERS.values(), ids=list(HEADERS))
def test_no_headers_stop_a_consumer(
    broker: Node, new_queue: Declare, headers: bytes, options: dict[str, Any], size: int
) -> None:
    bad, good = new_queue("bad"), new_queue("good")
    publish(broker, bad, headers, b"x" * size)
    broker.publish(bad, numbered(5))
    broker.publish(good, numbered(20))
    consumer = Consumer(broker.url, [bad, good], on_error="reject", **options)
    bodies = consume(consumer, 26)
    assert sorted(bodies) == sorted([b"x" * size, *numbered(5), *numbered(20)])
    stats = consumer.stats()
    assert (stats["acked"], stats["errors"], stats["reconnects"]) == (26, 0, 0)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("size", SIZES)
def test_what_a_handler_sees_of_them(broker: Node, new_queue: Declare, size: int) -> None:
    queue = new_queue("seen")
    publish(broker, queue, HEADERS["milliseconds"], b"x" * size)
    publish(broker, queue, HEADERS["nested"], b"x" * size)
    publish(broker, queue, table(field(b"half", b"d", struct.pack(">d", 2.75))), b"x" * size)
    seen: list[Any] = []

    def look(message: Any) -> None:
        seen.append(message)
        assert message.properties.app_id == "app"
        if len(seen) == 3:
            consumer.stop()

    consumer = Consumer(broker.url, [queue])
    consumer.run(look)
    late, deep, half = seen
    assert late.headers == {"tenant": "a", "sent": MILLISECONDS}
    assert half.headers == {"half": 2.75}
    with pytest.raises(DecodingError, match=r"^the headers cannot be decoded: .* nested more than 100 deep"):
        _ = deep.headers


def test_a_handler_that_needs_them_fails_by_policy(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("needed")
    for body in (b"0", b"1", b"2"):
        publish(broker, queue, HEADERS["nested"], body)
    broker.publish(queue, [b"last"])

    slots: list[object] = []

    def handler(message: Any) -> None:
        slots.append(message.slot)
        if message.body == b"last":
            consumer.stop()
        else:
            message.headers["tenant"]

    consumer = Consumer(broker.url, [queue], on_error="reject", key="header:tenant")
    with caplog.at_level(logging.ERROR, "fairsched"):
        consumer.run(handler)
    stats = consumer.stats()
    assert (stats["acked"], stats["rejected"], stats["errors"]) == (1, 3, 3)
    assert slots == [""] * 4
    # One line for all of them, not one for each.
    said = [record.getMessage() for record in caplog.records if "key of a message" in record.getMessage()]
    assert len(said) == 1
    assert repr(queue) in said[0]


@pytest.mark.parametrize("size", SIZES)
def test_a_callback_for_pika_gets_them(broker: Node, new_queue: Declare, size: int) -> None:
    queue = new_queue("pika")
    publish(broker, queue, HEADERS["nested"], b"x" * size)
    seen: list[Any] = []

    def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        seen.append((properties.app_id, len(body)))
        channel.basic_ack(method.delivery_tag)
        consumer.stop()

    consumer = Consumer(broker.url, [queue])
    consumer.run(from_pika(callback))
    assert seen == [("app", size)]
    assert consumer.stats()["acked"] == 1


@pytest.mark.parametrize("size", SIZES)
def test_no_headers_stop_a_consumer_of_asyncio(broker: Node, new_queue: Declare, size: int) -> None:
    queue = new_queue("async")
    for headers in HEADERS.values():
        publish(broker, queue, headers, b"x" * size)
    seen: list[int] = []

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], key="header:tenant") as consumer:
            async for message in consumer:
                with message:
                    seen.append(len(message.body))
                    if len(seen) == 2:
                        consumer.stop()
        return consumer.stats()

    stats = asyncio.run(main())
    assert seen == [size, size]
    assert (stats["acked"], stats["reconnects"]) == (2, 0)
    assert broker.count(queue) == 0
