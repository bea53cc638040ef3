"""Rows with a reason go to the dead-letter exchange, exactly those, and a failure loses none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.failing import failure
from support.spark.queries import drain, load
from support.spark.recipes import blocks_of
from support.spark.running import options_of

from fairsched.amqp.fieldtables import write_table
from fairsched.errors import ConfigurationError
from fairsched.spark import dead_letter, register

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def letters(node: Node, queue: str) -> dict[bytes, pika.BasicProperties]:
    with node.connect() as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
        found = [channel.basic_get(queue, auto_ack=True) for _ in range(count)]
    assert len({body for _, _, body in found}) == count, "a message came twice"
    return {body: properties for _, properties, body in found}


def publish(node: Node, queue: str, bodies: list[bytes], **more: Any) -> None:
    with node.connect() as channel:
        channel.confirm_delivery()
        for body in bodies:
            properties = pika.BasicProperties(message_id=f"id-{body.decode()}", delivery_mode=2, **more)
            channel.basic_publish("", queue, body, properties)


def test_the_example_of_the_documentation(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    [source, dead] = queues(2)
    exchange = f"{dead}-dlx"
    with broker.connect() as channel:
        channel.exchange_declare(exchange, "direct")
        channel.queue_bind(dead, exchange, source)
    publish(broker, source, [b'{"n": 1}', b"{broken", b"2", b"'", b"[]"], headers={"a": "b", "CC": ["other"]})
    [code] = [block.code for block in blocks_of("spark.md") if block.file == "dead.py"]
    for printed, here in {
        "amqp://app:secret@broker/%2F": broker.url, "orders-dlx": exchange, "/shared": str(tmp_path),
        ".start()": ".trigger(availableNow=True).start()",
    }.items():  # fmt: skip
        assert printed in code
        code = code.replace(printed, here)
    frame = load(spark, options_of(broker, {source: 1}, tmp_path / "spool", includeHeaders="true"))
    names: dict[str, Any] = {"orders": frame}
    exec(code, names)
    assert names["query"].awaitTermination(120)
    good = [bytes(row.body) for row in spark.read.parquet(f"{tmp_path}/good").select("body").collect()]
    assert sorted(good) == sorted([b'{"n": 1}', b"2", b"[]"])
    found = letters(broker, dead)
    assert set(found) == {b"{broken", b"'"}
    one = found[b"{broken"]
    assert one.headers == {
        "a": "b",
        "x-reason": "not JSON",
        "x-original-queue": source,
        "x-original-exchange": "",
        "x-original-routing-key": source,
    }
    assert (one.message_id, one.delivery_mode) == ("id-{broken", 2)
    assert broker.count(source) == 0


def test_a_batch_that_cannot_be_rid_of_them_fails_and_comes_again(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    [source, dead] = queues(2)
    publish(broker, source, [b"%d" % number for number in range(6)], expiration="60000000", priority=3)
    frame = load(spark, options_of(broker, {source: 1}, tmp_path / "spool", includeProperties="true"))
    kept: list[bytes] = []

    def process(key: str) -> Callable[[Any, int], None]:
        def rid(batch: Any, _number: int) -> None:
            odd = batch.withColumn(
                "why", F.expr("IF(CAST(CAST(body AS STRING) AS INT) % 2 = 1, repeat('é', 3000), NULL)")
            )
            kept.extend(bytes(row.body) for row in dead_letter(odd, "why", url=broker.url, routingKey=key).collect())

        return rid

    failure(frame, tmp_path / "checkpoint", "no queue takes a message with routing key 'nowhere'", process("nowhere"))
    assert kept == []
    drain(frame, tmp_path / "checkpoint", process(dead))
    assert kept == [b"0", b"2", b"4"]
    found = letters(broker, dead)
    assert set(found) == {b"1", b"3", b"5"}
    assert found[b"1"].headers["x-reason"] == "é" * 1000
    assert (found[b"1"].priority, found[b"1"].expiration, found[b"1"].message_id) == (3, None, "id-1")


def test_messages_that_are_acknowledged_as_they_are_read(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    """Without a spool a second reading gets other messages: none of those of the first may be lost."""
    [source, dead] = queues(2)
    bodies = [b"%d" % number for number in range(100)]
    publish(broker, source, bodies)
    frame = load(spark, options_of(broker, {source: 1}, None, maxMessagesPerTrigger=30))
    reason = F.expr("IF(CAST(CAST(body AS STRING) AS INT) % 2 = 1, 'odd', NULL)")
    kept: list[bytes] = []

    def process(batch: Any, _number: int) -> None:
        good = dead_letter(batch, reason, url=broker.url, routingKey=dead)
        assert good.columns == batch.columns
        assert good.count() == 15 or not good.isEmpty()  # further actions are of the same rows
        kept.extend(bytes(row.body) for row in good.collect())

    drain(frame, tmp_path / "checkpoint", process)
    assert kept == bodies[::2]
    assert set(letters(broker, dead)) == set(bodies[1::2])


def test_a_reason_that_is_another_each_time(spark: Any, broker: Node, queues: DeclareAll) -> None:
    """It is evaluated once for each row: a row is on one side."""
    [dead] = queues(1)
    rows = spark.range(1000).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body").withColumn("k", F.lit("k"))
    good = dead_letter(rows, F.expr("IF(rand() < 0.5, 'bad luck', NULL)"), url=broker.url, routingKey=dead)
    kept = {bytes(row.body) for row in good.collect()}
    refused = set(letters(broker, dead))
    assert len(kept) + len(refused) == 1000
    assert not kept & refused


def test_what_would_not_work_is_refused(spark: Any, broker: Node, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(b"a", "k")], "body binary, routing_key string")
    for options in {}, {"exchange": ""}, {"exchange": "", "routingKey": ""}:
        with pytest.raises(ConfigurationError, match="needs the option exchange or routingKey"):
            dead_letter(rows, F.lit("x"), url=broker.url, **options)
    with pytest.raises(ConfigurationError, match="needs the column routing_key; there are body"):
        dead_letter(rows.select("body"), F.lit("x"), url=broker.url, exchange="e")
    with pytest.raises(PySparkException, match="no such option: colour"):
        dead_letter(rows, F.lit("x"), url=broker.url, exchange="e", colour="red")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="call it in foreachBatch"):
        dead_letter(stream, F.lit("x"), url=broker.url, exchange="e")


def test_without_a_reason_nothing_is_published(spark: Any, broker: Node, queues: DeclareAll) -> None:
    [dead] = queues(1)
    rows = spark.createDataFrame([(b"a", "k")], "body binary, routing_key string")
    good = dead_letter(rows, F.lit(None), url=broker.url, routingKey=dead)
    assert [bytes(row.body) for row in good.collect()] == [b"a"]
    assert broker.count(dead) == 0


def test_messages_that_are_bad_in_every_way(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    """All kinds and sizes of headers, and text that is no UTF-8: the tool for bad messages does not fail of them."""
    [source, dead] = queues(2)
    noise = bytes(range(256)) * 235
    deep: Any = "inner"
    for _ in range(40):
        deep = {"t": [deep]}
    headers = {
        b"noise": {"blob": noise, "small": "kept"},
        b"many": {f"h{number}": noise[:2000] for number in range(25)},
        b"long": {"text": "t" * 100_000, "other": "u" * 20_000},
        b"numbers": {"float": 1.5, "nested": [2**63 - 1, {"d": Decimal("1.5"), "bytes": b"\xff"}]},
        b"deep": {"deep": deep, "none": None, "when": datetime(2020, 1, 1, tzinfo=UTC), "bool": True},
    }
    for body, table in headers.items():
        publish_raw(broker, source, body, write_table(table))
    # A name and a text of bytes that are no UTF-8: each becomes three.
    entry = bytes([200]) + b"\xff" * 200 + b"S" + (300).to_bytes(4, "big") + b"\xfe" * 300
    publish_raw(broker, source, b"bytes", len(entry).to_bytes(4, "big") + entry, message_id=b"\xff" * 255)
    frame = load(spark, options_of(
        broker, {source: 1}, tmp_path / "spool", includeHeaders="true", includeProperties="true"
    ))  # fmt: skip

    def process(batch: Any, _number: int) -> None:
        assert dead_letter(batch, F.lit("x" * 2000), url=broker.url, routingKey=dead).count() == 0

    drain(frame, tmp_path / "checkpoint", process)
    found = letters(broker, dead)
    assert set(found) == {*headers, b"bytes"}
    assert found[b"noise"].headers["small"] == "kept"
    assert found[b"noise"].headers["x-left-out"] == "blob"
    kept = {name for name in found[b"many"].headers if name.startswith("h")}
    left_out = set(found[b"many"].headers["x-left-out"].split(", "))
    assert kept
    assert kept | left_out == set(headers[b"many"])
    assert not kept & left_out
    assert found[b"long"].headers["other"] == "u" * 20_000
    assert found[b"long"].headers["x-left-out"] == "text"
    assert found[b"numbers"].headers["nested"] == '[9223372036854775807, {"d": "1.5", "bytes": "\ufffd"}]'
    assert found[b"deep"].headers["none"] == "null"
    assert found[b"bytes"].headers["x-left-out"] == "\ufffd" * 200
    assert broker.count(source) == 0


def publish_raw(node: Node, queue: str, body: bytes, table: bytes, message_id: bytes = b"id") -> None:
    """Publish a message with headers, and an id, that pika would not send."""

    class Properties(pika.BasicProperties):
        def encode(self) -> list[bytes]:
            return [b"\x20\x80" + table + bytes([len(message_id)]) + message_id]

    with node.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, Properties())
