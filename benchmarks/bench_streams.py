"""A stream read over its own protocol beside the same one over AMQP 0-9-1: processor time of client and broker.

Both readers are the Spark source's, in this process and in turn, without Spark: they end with Arrow batches. The broker
is a RabbitMQ node of the benchmark's own, whose chunks are full.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interleave import record
from support.rabbitmq import Node

from fairsched.spark.source.chunkrange import chunks_cluster
from fairsched.spark.source.columns import column_names
from fairsched.spark.source.options import source_options
from fairsched.spark.source.streams import Range, read_rows
from fairsched.streams import StreamConnection, data_message

pytestmark = pytest.mark.timeout(900)
ROUNDS = 5
#: Messages that are read by chunks; over AMQP a tenth of them, which takes as long.
MESSAGES = 200_000
TENTH = MESSAGES // 10
#: Times the rows a second of AMQP, by the bytes of a message.
LEAST_SPEED = {100: 10.0, 1024: 3.0}
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(streams=True) as found:
        yield found


def client_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def broker_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def filled(node: Node, size: int) -> str:
    """A stream with messages of so many bytes."""
    name, message = f"bench-{size}", data_message(b"x" * size)
    with StreamConnection(node.stream_url) as connection:
        connection.create(name)
        publisher = connection.declare_publisher(name)
        for start in range(0, MESSAGES, 20_000):
            connection.publish(publisher, ((number, message) for number in range(start + 1, start + 20_001)))
            assert connection.wait_confirms(start + 20_000, 60)
    return name


@pytest.mark.parametrize("size", [100, 1024])
def test_stream_protocol_beside_amqp(benchmark: Any, node: Node, size: int) -> None:
    """Bodies and offsets, and all columns, of messages of 100 bytes and of 1 KiB."""
    name = filled(node, size)
    options = source_options({"url": node.url, "streams": name, "streamPort": str(node.stream_port)})
    cluster = chunks_cluster(options)
    [pid] = re.findall(r"\d+", node.evaluate("os:getpid()."))
    found: dict[str, list[float]] = {}

    def read(columns: list[str], part: Range, label: str) -> None:
        client, broker, begun = client_seconds(), broker_seconds(int(pid)), time.perf_counter()
        rows = sum(batch.num_rows for batch in read_rows(options, columns, part))
        assert rows == part.end
        found.setdefault(f"{label}_client_us", []).append((client_seconds() - client) / rows * 1e6)
        found.setdefault(f"{label}_broker_us", []).append((broker_seconds(int(pid)) - broker) / rows * 1e6)
        found.setdefault(f"{label}_rows_s", []).append(rows / (time.perf_counter() - begun))

    for _ in range(ROUNDS):
        for label, columns in (("two", ["offset", "body"]), ("all", column_names(options))):
            read(columns, Range(name, 0, MESSAGES, cluster), f"chunks_{label}")
            read(columns, Range(name, 0, TENTH), f"amqp_{label}")
    figures = {label: statistics.median(values) for label, values in found.items()}
    record(
        benchmark,
        {
            f"a stream of {size} B, its protocol : AMQP, rows/s": (
                figures["chunks_two_rows_s"] / figures["amqp_two_rows_s"], ">=", LEAST_SPEED[size],
            ),
            f"a stream of {size} B, its protocol : AMQP, broker's CPU a row": (
                figures["chunks_two_broker_us"] / figures["amqp_two_broker_us"], "<=", 0.1,
            ),
            f"a stream of {size} B, its protocol : AMQP, client's CPU a row": (
                figures["chunks_two_client_us"] / figures["amqp_two_client_us"], "<=", 0.6,
            ),
        },
        **figures,
    )  # fmt: skip
    benchmark.pedantic(read, args=(["offset", "body"], Range(name, 0, MESSAGES, cluster), "chunks_two"), rounds=1)
