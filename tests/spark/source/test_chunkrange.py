"""Ranges of offsets over the stream protocol: the rows of AMQP, whatever happens to the connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pika
import pyarrow as pa
import pytest
from support.declare import DeclareAll
from support.ports import free_ports
from support.proxy import Proxy
from support.rabbitmq import Node
from support.spark.running import Driver, bodies, schema_of, unique
from support.waiting import eventually

from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound
from fairsched.spark.source import chunkrange, streams
from fairsched.spark.source.batch import BatchReader
from fairsched.spark.source.chunkrange import chunks_cluster
from fairsched.spark.source.columns import column_names
from fairsched.spark.source.options import SourceOptions, source_options
from fairsched.spark.source.starts import offsets_since
from fairsched.spark.source.streams import Range, StreamsReader, read_rows
from fairsched.streams import StreamConnection, StreamRecords, data_message

pytestmark = pytest.mark.rabbitmq("streams")

STREAM = {"x-queue-type": "stream"}


def options_of(node: Node, names: list[str], **more: object) -> SourceOptions:
    found = {"url": node.url, "streams": ",".join(names), "planningInterval": "0s", "streamPort": node.stream_port}
    return source_options({name: str(value) for name, value in {**found, **more}.items()})


def fill(node: Node, name: str, count: int) -> list[bytes]:
    sent = unique(name, count)
    with StreamConnection(node.stream_url) as connection:
        publisher = connection.declare_publisher(name)
        # In chunks of some hundred messages.
        for start in range(0, count, 200):
            connection.publish(publisher, ((n, data_message(sent[n])) for n in range(start, min(start + 200, count))))
            assert connection.wait_confirms(min(start + 200, count), 30)
    return sent


def rows_of(options: SourceOptions, part: Range, names: list[str] | None = None) -> pa.Table:
    return pa.Table.from_batches(list(read_rows(options, names or column_names(options), part)))


@pytest.fixture
def counted(broker: Node) -> Iterator[Proxy]:
    with Proxy(broker.stream_port) as proxy:
        yield proxy


def test_rows_are_those_of_amqp_in_every_column(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments=STREAM)
    with broker.connect() as channel:
        channel.tx_select()
        for number in range(50):
            properties = pika.BasicProperties(
                content_type="text/plain", headers={"tenant": f"t{number % 3}", "sent": 10**12 + number, "x-n": number},
                message_id=f"m{number}", timestamp=1_700_000_000 + number, priority=number % 5, app_id="é",
            )  # fmt: skip
            channel.basic_publish("", name, b"body %d" % number, properties if number % 4 else None)
        channel.tx_commit()
    more = {"includeProperties": True, "includeHeaders": True, "includeTypedHeaders": True, "fairKey": "header:tenant",
            "enqueueTimeHeader": "sent"}  # fmt: skip
    options = options_of(broker, [name], **more)
    cluster = chunks_cluster(options)
    assert cluster
    for low, high in ((0, 50), (7, 31), (49, 50)):
        expected = rows_of(options, Range(name, low, high))
        assert rows_of(options, Range(name, low, high, cluster)).equals(expected)
        assert expected.num_rows == high - low


@pytest.mark.parametrize("protocol", ["auto", "stream", "amqp"])
def test_a_query_reads_every_offset_once_and_its_checkpoint_fits_both_ways(
    broker: Node, queues: DeclareAll, protocol: str
) -> None:
    [name] = queues(1, arguments=STREAM)
    sent = fill(broker, name, 600)
    found: list[bytes] = []
    offset = None
    given = {"url": broker.url, "streams": name, "planningInterval": "0s", "streamPort": str(broker.stream_port),
             "startingOffsets": "earliest", "maxMessagesPerTrigger": "250"}  # fmt: skip
    while True:
        driver = Driver({**given, "protocol": protocol if len(found) % 500 else "amqp"}, StreamsReader)
        driver.offset = driver.offset if offset is None else offset
        end = driver.plan()
        if end is None:
            break
        found += [row["body"] for part in driver.read(end) for row in part]
        offset = end
    assert found == sent


def test_a_batch_query(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments=STREAM)
    sent = fill(broker, name, 300)
    options = options_of(broker, [name], protocol="stream", minPartitions=3)
    reader = BatchReader(options, schema_of(options))
    parts = reader.partitions()
    assert [(part.value.start, part.value.end) for part in parts] == [(0, 100), (100, 200), (200, 300)]
    assert {part.value.cluster for part in parts} == {chunks_cluster(options)}
    assert bodies([row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]) == sent


def chunk_times(node: Node, name: str, count: int) -> list[tuple[int, int]]:
    """The first offset of each chunk, and when the broker wrote it."""
    found = []
    with StreamConnection(node.stream_url) as connection:
        records = StreamRecords(name, connection.old)
        subscription = connection.subscribe(name, "first")
        while records.next_offset < count:
            chunk = connection.chunk(30)
            assert chunk is not None
            first = max(0, records.next_offset)
            records.want(count, 1 << 30)
            records.add_chunk(chunk.frame, chunk.at, 0, {})
            connection.credit(subscription)
            found.append((first, records.timestamp))
    return found


def test_a_stream_is_read_from_a_millisecond_on(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments=STREAM)
    sent = unique(name, 24)
    # Within one second, but for the first chunks if it ends meanwhile.
    with StreamConnection(broker.stream_url) as connection:
        publisher = connection.declare_publisher(name)
        for at in range(0, 24, 4):
            connection.publish(publisher, ((n, data_message(sent[n])) for n in range(at, at + 4)))
            assert connection.wait_confirms(at + 4, 30)
            now = time.time_ns() // 1_000_000
            eventually(lambda now=now: time.time_ns() // 1_000_000 > now + 1)
    times = chunk_times(broker, name, 24)
    assert len({moment for _, moment in times}) >= 6

    def planned(moment: int, **more: object) -> int:
        given = {"url": broker.url, "streams": name, "planningInterval": "0s", "streamPort": str(broker.stream_port),
                 "startingTimestamp": str(moment), "pollTimeout": "500ms"}  # fmt: skip
        driver = Driver({**given, **{key: str(value) for key, value in more.items()}}, StreamsReader)
        begin = driver.plan()
        assert begin is not None
        driver.offset = begin
        first = int(begin["streams"][name])
        end = driver.plan()
        rows = [row for part in driver.read(end) for row in part] if end is not None else []
        assert bodies(rows) == sent[first:]
        return first

    def expected(moment: int) -> int:
        return next((first for first, written in times if written >= moment), 24)

    for _, moment in times[::2]:
        assert planned(moment) == expected(moment)
        assert planned(moment + 1, protocol="stream") == expected(moment + 1)
    last = times[-1][1]
    assert (planned(times[0][1] - 10_000), planned(last + 1)) == (0, 24)
    # Over AMQP, and where the planner does not reach the port, rows begin with the second.
    assert planned(last, protocol="amqp") == expected(last // 1000 * 1000)
    options = options_of(broker, [name], streamPort=free_ports(1)[0], startingTimestamp=last, connectRetries=0)
    assert isinstance(options.starting_offsets, datetime)
    assert offsets_since(options, "any", options.starting_offsets) == {name: expected(last // 1000 * 1000)}
    batch = options_of(broker, [name], startingTimestamp=last)
    assert BatchReader(batch, schema_of(batch)).partitions()[0].value.start == expected(last)


def test_an_empty_stream_is_read_from_a_moment_on(broker: Node, queues: DeclareAll) -> None:
    names = queues(2, arguments=STREAM)
    fill(broker, names[0], 3)
    options = options_of(broker, names, startingTimestamp=4 * 10**12, protocol="stream", pollTimeout="200ms")
    assert isinstance(options.starting_offsets, datetime)
    found = offsets_since(options, chunks_cluster(options), options.starting_offsets)
    assert found == {names[0]: 3, names[1]: 0}


def test_cuts_cost_no_row_and_repeat_none(
    broker: Node, queues: DeclareAll, counted: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEGMENT_MESSAGES", 300)
    # One chunk at a time, so that the rest is not here already when the connection is cut.
    monkeypatch.setattr(chunkrange, "_CREDIT", 1)
    [name] = queues(1, arguments=STREAM)
    sent = fill(broker, name, 3000)
    options = options_of(broker, [name], streamPort=counted.port)
    cluster = chunks_cluster(options)
    found: list[bytes] = []
    for rows in read_rows(options, ["body"], Range(name, 0, 3000, cluster)):
        found += rows.column("body").to_pylist()
        if len(found) // 300 % 3 == 1:
            counted.cut()
    assert found == sent
    assert counted.connections >= 3


def test_a_task_that_does_not_reach_the_port_reads_over_amqp(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments=STREAM)
    sent = fill(broker, name, 20)
    cluster = chunks_cluster(options_of(broker, [name]))
    [port] = free_ports(1)
    part = Range(name, 0, 20, cluster)
    lost = options_of(broker, [name], streamPort=port)
    assert rows_of(lost, part, ["body"]).column("body").to_pylist() == sent
    with pytest.raises(ConnectionFailed, match=f":{port}: "):
        rows_of(options_of(broker, [name], streamPort=port, protocol="stream", connectRetries=0), part)


def test_the_port_must_answer_and_belong_to_the_cluster(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1, arguments=STREAM)
    [port] = free_ports(1)
    assert chunks_cluster(options_of(broker, ["any"], protocol="amqp")) == ""
    assert chunks_cluster(options_of(broker, ["any"], streamPort=port)) == ""
    with pytest.raises(ConnectionFailed, match=f":{port}: "):
        chunks_cluster(options_of(broker, ["any"], streamPort=port, protocol="stream"))
    cluster = chunks_cluster(options_of(broker, ["any"], protocol="stream"))
    with pytest.raises(ConnectionFailed, match=f"must be of cluster 'another', got '{cluster}'"):
        rows_of(options_of(broker, [name], protocol="stream", connectRetries=0), Range(name, 0, 1, "another"))


@pytest.fixture
def super_stream(broker: Node, queues: DeclareAll) -> tuple[str, list[str]]:
    """A super stream of three streams, made as before RabbitMQ 3.13: of an exchange and its bindings."""
    names = queues(3, arguments=STREAM)
    whole = f"super-{names[0]}"
    with broker.connect() as channel:
        channel.exchange_declare(whole, "direct", durable=True, arguments={"x-super-stream": True})
        for number, name in enumerate(reversed(names)):
            channel.queue_bind(name, whole, str(number), arguments={"x-stream-partition-order": number})
    return whole, names[::-1]


def test_a_super_stream_is_read_as_its_streams(broker: Node, super_stream: tuple[str, list[str]]) -> None:
    whole, names = super_stream
    with StreamConnection(broker.stream_url) as connection:
        assert connection.partitions(whole) == names
        assert connection.route("1", whole) == [names[1]]
        with pytest.raises(QueueNotFound, match="super stream 'nowhere'"):
            connection.partitions("nowhere")
    sent = {name: fill(broker, name, 40) for name in names}
    given = {"url": broker.url, "superStream": whole, "streamPort": str(broker.stream_port), "planningInterval": "0s",
             "startingOffsets": "earliest"}  # fmt: skip
    driver = Driver(given, StreamsReader)
    driver.offset = driver.plan()
    end = driver.plan()
    assert end is not None
    rows = [row for part in driver.read(end) for row in part]
    assert {name: bodies([row for row in rows if row["queue"] == name]) for name in names} == sent
    options = source_options(given)
    assert options.description.startswith(f"super stream {whole} at ")
    parts = BatchReader(options, schema_of(options)).partitions()
    assert [(part.value.stream, part.value.end) for part in parts] == [(name, 40) for name in names]


def test_options_are_checked() -> None:
    for given, complaint in (
        ({"protocol": "mqtt", "streams": "s"}, "protocol must be auto or stream or amqp, got 'mqtt'"),
        ({"superStream": "s", "streams": "s"}, "superStream replaces queues and streams"),
        ({"superStream": ""}, "superStream must be the name of a super stream"),
        ({"superStream": "s", "protocol": "amqp"}, "superStream needs the stream protocol"),
        ({"streamPort": "0", "streams": "s"}, "streamPort must be an integer from 1 to 65535, got '0'"),
        ({"protocol": "stream", "queues": "q", "spoolLocation": "/x"}, "protocol is for streams only"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            source_options({"url": "amqp://localhost", **given})
