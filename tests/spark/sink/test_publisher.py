"""The sink's publishing: confirms, what is unroutable, ids, and the ring."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from support.declare import DeclareAll
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import PublishFailed
from fairsched.errors import ConfigurationError, FairschedError
from fairsched.routing import HashRing
from fairsched.spark.sink.options import sink_options
from fairsched.spark.sink.writers import BatchWriter


def write(node: Node, columns: dict[str, Any], **options: object) -> BatchWriter:
    """Write one batch of rows as a task would."""
    rows = pa.RecordBatch.from_pydict(columns)
    checked = sink_options({"url": node.url, **{name: str(value) for name, value in options.items()}})
    writer = BatchWriter(checked, from_arrow_schema(rows.schema))
    writer.write(iter([rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)]))
    return writer


def take(node: Node, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    with node.connect() as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
        found = [channel.basic_get(queue, auto_ack=True) for _ in range(count)]
        return [(properties, body) for _method, properties, body in found]


@pytest.mark.rabbitmq("a list of connections with the octets received")
def test_a_task_may_wait_for_its_rows_for_any_time(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    rows = pa.RecordBatch.from_pydict({"body": ["a"]})

    def received() -> int:
        """Octets that the broker has received from the task."""
        listed = broker.evaluate("rabbit_networking:connection_info_all([recv_oct, timeout]).")
        [found] = re.findall(r"\{recv_oct,\s*(\d+)\},\s*\{timeout,\s*1\}", listed)
        return int(found)

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows
        before = received()
        # Heartbeats go on meanwhile, so that the broker keeps the connection.
        for _ in range(3):
            eventually(lambda before=before: received() > before)
            before = received()
        yield rows

    options = sink_options({"url": broker.url, "routingKey": name, "heartbeat": "1s"})
    BatchWriter(options, from_arrow_schema(rows.schema)).write(slow())
    assert broker.count(name) == 2


@pytest.mark.parametrize("window", [1, 7, 2000])
def test_every_row_is_published_in_order(window: int, broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    expected = [b"%d" % number for number in range(500)]
    write(broker, {"body": expected}, routingKey=name, confirmWindow=window)
    found = take(broker, name)
    assert [body for _, body in found] == expected
    assert {properties.delivery_mode for properties, _ in found} == {2}
    ids = [properties.message_id for properties, _ in found]
    assert [one.rpartition("-")[2] for one in ids] == [str(number) for number in range(500)]


def test_columns_become_properties(broker: Node, queues: DeclareAll) -> None:
    [name, other] = queues(2)
    columns = {
        "body": ["texté", "b"],
        "routing_key": [None, other],
        "message_id": ["mine", None],
        "headers": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
        "priority": pa.array([5, None], pa.int32()),
        "expiration": ["60000", None],
        "content_type": ["text/plain", None],
        "correlation_id": ["c", None],
    }
    write(broker, columns, routingKey=name)
    [(properties, body)] = take(broker, name)
    assert (body, properties.message_id, properties.headers) == ("texté".encode(), "mine", {"a": "1"})
    assert (properties.priority, properties.expiration, properties.content_type) == (5, "60000", "text/plain")
    [(properties, body)] = take(broker, other)
    assert (body, properties.priority, properties.message_id.rpartition("-")[2]) == (b"b", None, "1")


def test_ids_may_be_left_out_or_required(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    write(broker, {"body": ["a"]}, routingKey=name, messageId="none")
    assert take(broker, name)[0][0].message_id is None
    with pytest.raises(FairschedError, match="row 1 cannot be published: messageId=column"):
        write(broker, {"body": ["a", "b"], "message_id": ["x", None]}, routingKey=name, messageId="column")


def test_two_attempts_at_a_task_use_the_same_ids(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    writer = write(broker, {"body": ["a", "b"]}, routingKey=name)
    writer.write(iter([pa.RecordBatch.from_pydict({"body": ["a", "b"]})]))
    write(broker, {"body": ["a", "b"]}, routingKey=name)
    ids = Counter(properties.message_id for properties, _ in take(broker, name))
    assert sorted(ids.values()) == [1, 1, 2, 2]


def test_the_unroutable_fails(broker: Node) -> None:
    with pytest.raises(PublishFailed, match="no queue takes a message with routing key 'nowhere'"):
        write(broker, {"body": ["a"] * 10}, routingKey="nowhere")
    write(broker, {"body": ["a"] * 10}, routingKey="nowhere", mandatory="false")


def test_the_refused_fails(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(PublishFailed, match="refused"):
        write(broker, {"body": ["a"] * 10}, routingKey=name)


def test_an_exchange_that_is_not_there_fails(broker: Node) -> None:
    with pytest.raises(PublishFailed, match="no exchange 'nothing'"):
        write(broker, {"body": ["a"]}, exchange="nothing")


def test_a_broker_that_confirms_nothing_fails(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    rows = pa.RecordBatch.from_pydict({"body": ["a"] * 3})
    with Proxy(broker.port) as proxy:

        def deaf() -> Iterator[pa.RecordBatch]:
            proxy.silence()
            yield rows

        options = {"url": behind(proxy, broker.url), "routingKey": name, "confirmTimeout": "200ms"}
        writer = BatchWriter(sink_options(options), from_arrow_schema(rows.schema))
        with pytest.raises(PublishFailed, match=r"confirmed nothing for 0\.2 s; 3 messages"):
            writer.write(deaf())


def test_a_lost_connection_loses_no_row(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    rows = pa.RecordBatch.from_pydict({"body": [str(number) for number in range(100)]})
    with Proxy(broker.port) as proxy:

        def cut() -> Iterator[pa.RecordBatch]:
            yield rows.slice(0, 50)
            proxy.cut()
            yield rows.slice(50)

        options = sink_options({"url": behind(proxy, broker.url), "routingKey": name})
        BatchWriter(options, from_arrow_schema(rows.schema)).write(cut())
    assert {body for _, body in take(broker, name)} == {b"%d" % number for number in range(100)}


def test_what_failed_ends_the_task_before_all_rows_are_read(broker: Node) -> None:
    rows = pa.RecordBatch.from_pydict({"body": ["a"]})

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield rows

    with pytest.raises(PublishFailed, match="no queue takes"):
        BatchWriter(sink_options({"url": broker.url, "routingKey": "nowhere"}), from_arrow_schema(rows.schema)).write(
            endless()
        )


def test_a_ring_chooses_the_queue(broker: Node, queues: DeclareAll) -> None:
    names = queues(3)
    keys = [f"customer-{number}" for number in range(300)]
    write(broker, {"body": keys, "customer": keys}, hashRing=",".join(names), hashColumn="customer")
    ring = HashRing(dict.fromkeys(names, 1), points_per_weight=256)
    for name in names:
        mine = [body.decode() for _, body in take(broker, name)]
        assert mine == [key for key in keys if ring.route(key) == name]
        assert len(mine) > 50
    write(broker, {"body": ["a"], "key": pa.array([None], pa.string())}, hashRing=",".join(names))
    assert [body for _, body in take(broker, str(ring.route(None)))] == [b"a"]


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"text": ["a"]}, {}, "unknown column 'text'; allowed are body, "),
        ({"routing_key": ["a"]}, {}, "column 'body' is required"),
        ({"body": [1]}, {}, "'body' must be binary or string, got bigint"),
        ({"body": ["a"]}, {"messageId": "column"}, "needs a column 'message_id'"),
        ({"body": ["a"]}, {"hashRing": "q"}, "needs the column 'key'"),
    ],
)
def test_rows_that_are_no_messages_are_refused(
    columns: dict[str, Any], options: dict[str, str], why: str, broker: Node
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        write(broker, columns, **options)


def test_a_row_without_a_body_fails(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    with pytest.raises(FairschedError, match="row 1 cannot be published: its body is null"):
        write(broker, {"body": ["a", None]}, routingKey=name)
    eventually(lambda: broker.count(name) <= 1)
