"""The Spark source beside a plain pika reader in the same Python data source, and the sink beside synchronous confirms.

Tasks run in workers of one Spark session, local[2], one at a time, so that a CPU-second is one process's. A worker
measures itself: user and system time between its first and its last message, the Arrow batches it hands to Spark
included.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from interleave import record
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched.spark.sink.options import sink_options
from fairsched.spark.sink.writers import BatchWriter
from fairsched.spark.source.options import SourceOptions, source_options
from fairsched.spark.source.partition import PartitionPlan, PartitionReader
from fairsched.spark.source.spool import Spool
from fairsched.spark.source.streamrange import bounds
from fairsched.spark.source.streams import Range, read_rows

pytestmark = pytest.mark.timeout(900)
QUEUES = 10
EACH = 3000
TOTAL = QUEUES * EACH
STREAM = "bench-stream"
ROUNDS = 5
BODY = b"x" * 200
SCHEMA = "body BINARY, queue STRING, routing_key STRING, exchange STRING, message_id STRING, redelivered BOOLEAN"
INSTANTS = ", enqueued_at TIMESTAMP, received_at TIMESTAMP"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as found:
        yield found


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from support.spark.home import find_java
    from support.spark.session import start

    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "tests"), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    before = dict(os.environ)
    os.environ.update(JAVA_HOME=find_java(), PYSPARK_PYTHON=sys.executable, PYTHONPATH=os.pathsep.join(paths))
    session = start("local[2]")
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fill(node: Node, count: int = EACH) -> list[str]:
    names = [f"bench-{number}" for number in range(QUEUES)]
    node.delete(*names)
    node.declare(*names)
    for name in names:
        node.publish(name, [BODY] * count, delivery_mode=2, message_id="0123456789abcdef")
    return names


# Reading ------------------------------------------------------------------------------------------------------------


def metered(rows: Iterator[Any], figures: Path) -> Iterator[Any]:
    """Pass rows on, and note the CPU that this process used meanwhile."""
    start = cpu_seconds()
    yield from rows
    figures.write_text(str(cpu_seconds() - start))


def plain_rows(url: str, names: list[str], each: int) -> Iterator[tuple[Any, ...]]:
    """What one would write first: callbacks of a BlockingConnection, tuples, one acknowledgement at the end."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=each)
    found: list[tuple[Any, ...]] = []
    for name in names:

        def take(_channel: Any, method: Any, properties: Any, body: bytes, name: str = name) -> None:
            found.append((body, name, method.routing_key, method.exchange, properties.message_id, method.redelivered))

        channel.basic_consume(name, take)
    while len(found) < each * len(names):
        connection.process_data_events(1)
    channel.basic_ack(0, multiple=True)
    connection.close()
    yield from found


def stream_options(url: str) -> SourceOptions:
    return source_options({"url": url, "streams": STREAM, "startingOffsets": "earliest"})


class Compared(DataSource):
    """One of the readers as a batch source; each reads everything, and acknowledges what queues have."""

    @classmethod
    def name(cls) -> str:
        return "compared"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return ComparedReader(dict(self.options.items()), schema)


class ComparedReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: Any) -> None:
        self.given = json.loads(options["given"])
        self.names = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        given = self.given
        kind, url, names = given["kind"], given["url"], given["names"]
        if kind == "plain":
            rows: Iterator[Any] = plain_rows(url, names, EACH)
        elif kind == "stream":
            rows = read_rows(stream_options(url), self.names, Range(STREAM, 0, TOTAL))
        else:
            how = {"ackMode": "auto"}
            if kind == "spool":
                how = {"spoolLocation": given["spool"]}
                Spool(given["spool"], "e").open_batch(1, strict=True)
            options = source_options({"url": url, "queues": ",".join(names), **how})
            part = PartitionPlan(0, 1, "e", dict.fromkeys(names, EACH), dict.fromkeys(names, len(BODY)))
            rows = PartitionReader(options, self.names, part).read()
        return metered(rows, Path(given["figures"]))


def source_run(kind: str, node: Node, spark: Any, folder: Path) -> float:
    """Microseconds of CPU for each message, in the worker."""
    names = fill(node)
    given = {"kind": kind, "url": node.url, "names": names, "spool": str(folder / "spool"),
             "figures": str(folder / "figures")}  # fmt: skip
    folder.mkdir()
    frame = spark.read.format("compared").option("given", json.dumps(given)).load()
    frame.write.format("noop").mode("overwrite").save()
    return float((folder / "figures").read_text()) / TOTAL * 1e6


def test_source_beside_a_plain_reader(benchmark: Any, node: Node, spark: Any, tmp_path: Path) -> None:
    """CPU of the worker for each message; ours decodes, orders, spools, publishes and acknowledges."""
    spark.dataSource.register(Compared)
    node.declare(STREAM, arguments={"x-queue-type": "stream"})
    node.publish(STREAM, [BODY] * TOTAL, delivery_mode=2, message_id="0123456789abcdef")
    broker = stream_options(node.url).broker
    eventually(lambda: bounds(broker, [STREAM], "last")[STREAM] >= TOTAL, 60)
    runs: dict[str, list[float]] = {"plain": [], "spool": [], "auto": [], "stream": []}
    for number in range(ROUNDS + 1):
        for kind, found in runs.items():
            taken = source_run(kind, node, spark, tmp_path / f"{kind}-{number}")
            if number:
                found.append(taken)
    cost = {kind: statistics.median(found) for kind, found in runs.items()}
    record(
        benchmark,
        {
            "Spark source : plain pika reader, messages a CPU-second": (cost["plain"] / cost["spool"], ">=", 10),
            "a stream : queues with ackMode=auto, CPU a message": (cost["stream"] / cost["auto"], "<=", 1.2),
        },
        **{f"{kind}_us": taken for kind, taken in cost.items()},
    )
    benchmark.pedantic(source_run, args=("spool", node, spark, tmp_path / "last"), rounds=1)


# The Arrow path -----------------------------------------------------------------------------------------------------


class Prebuilt(DataSource):
    """A million rows of 200 bytes and the source's columns, as record batches or as tuples."""

    ROWS, BATCH = 1_000_000, 10_000

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return SCHEMA + INSTANTS

    def reader(self, schema: Any) -> DataSourceReader:
        return PrebuiltReader(self.options["kind"])


class PrebuiltReader(DataSourceReader):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if self.kind == "tuples":
            now = dt.datetime.now()
            numbers = range(Prebuilt.ROWS)
            return ((BODY, "queue", "key", "exchange", str(number), False, now, now) for number in numbers)
        rows = [(BODY, "queue", "key", "exchange", str(number), False) for number in range(Prebuilt.BATCH)]
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        arrays += [pa.array([0] * len(rows), pa.timestamp("us", tz="UTC"))] * 2
        names = [column.split()[0] for column in (SCHEMA + INSTANTS).split(", ")]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return iter([batch] * (Prebuilt.ROWS // Prebuilt.BATCH))


def test_record_batches_beside_tuples(benchmark: Any, spark: Any) -> None:
    """A million rows of 200 bytes from a Python data source into a sink that drops them."""
    spark.dataSource.register(Prebuilt)

    def run(kind: str) -> float:
        frame = spark.read.format("prebuilt").option("kind", kind).load()
        start = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    runs: dict[str, list[float]] = {"tuples": [], "batches": []}
    for number in range(ROUNDS + 1):
        for kind, found in runs.items():
            taken = run(kind)
            if number:
                found.append(taken)
    seconds = {kind: statistics.median(found) for kind, found in runs.items()}
    record(
        benchmark,
        {"record batches : tuples, rows/s": (seconds["tuples"] / seconds["batches"], ">=", 3.0)},
        batches_rows_s=Prebuilt.ROWS / seconds["batches"],
        tuples_rows_s=Prebuilt.ROWS / seconds["tuples"],
    )
    benchmark.pedantic(run, args=("batches",), rounds=1)


# The sink -----------------------------------------------------------------------------------------------------------


def windowed(node: Node, queue: str, count: int) -> tuple[float, float]:
    """Messages per second with a window of 2000, and microseconds of CPU for each."""
    options = sink_options({"url": node.url, "routingKey": queue})
    rows = pa.RecordBatch.from_pydict({"body": pa.array([BODY] * count, pa.binary())})
    writer = BatchWriter(options, from_arrow_schema(rows.schema))
    start, begun = time.perf_counter(), cpu_seconds()
    writer.write(iter([rows]))
    return count / (time.perf_counter() - start), (cpu_seconds() - begun) / count * 1e6


def synchronous(node: Node, queue: str, count: int) -> float:
    """Messages per second when each waits for its confirm, as a BlockingChannel does it."""
    with node.connect() as channel:
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, message_id="0123456789abcdef")
        start = time.perf_counter()
        for _ in range(count):
            channel.basic_publish("", queue, BODY, properties, mandatory=True)
        return count / (time.perf_counter() - start)


def test_sink_beside_synchronous_confirms(benchmark: Any, node: Node) -> None:
    """Persistent messages of 200 bytes to one durable queue, all confirmed."""
    runs: dict[str, list[float]] = {"windowed": [], "synchronous": [], "cpu": []}
    node.declare("bench-sink")
    for _ in range(ROUNDS):
        with node.connect() as channel:
            channel.queue_purge("bench-sink")
        runs["synchronous"].append(synchronous(node, "bench-sink", 1000))
        rate, cpu = windowed(node, "bench-sink", 30_000)
        runs["windowed"].append(rate)
        runs["cpu"].append(cpu)
    found = {name: statistics.median(figures) for name, figures in runs.items()}
    record(
        benchmark,
        {
            "sink, window 2000 : synchronous confirms, msg/s": (found["windowed"] / found["synchronous"], ">=", 10.0),
            "sink, CPU for a row : 91 us, with pika": (found["cpu"] / 91, "<=", 0.4),
        },
        windowed_msg_s=found["windowed"],
        synchronous_msg_s=found["synchronous"],
        sink_us=found["cpu"],
    )
    benchmark.pedantic(windowed, args=(node, "bench-sink", 10_000), rounds=1)
