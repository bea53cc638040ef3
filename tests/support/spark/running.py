"""Running the source as Spark does, without Spark; and running queries on Spark."""

from __future__ import annotations

import contextlib
import json
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType
from support.rabbitmq import Node

from fairsched.spark.source.columns import COLUMNS, column_names
from fairsched.spark.source.options import SourceOptions, source_options
from fairsched.spark.source.queues import QueuesReader

#: Ten queues and quanta 4, 8, …, 40: a batch of 1100 is shared exactly.
QUANTA = [4 * number for number in range(1, 11)]


def unique(queue: str, count: int, first: int = 0) -> list[bytes]:
    """Bodies that occur once among all queues."""
    return [f"{queue}/{number}".encode() for number in range(first, first + count)]


def fill(node: Node, queues: list[str], count: int, **properties: Any) -> set[bytes]:
    """Publish messages to each queue and return their bodies."""
    for queue in queues:
        node.publish(queue, unique(queue, count), delivery_mode=2, **properties)
    return {body for queue in queues for body in unique(queue, count)}


def options_of(node: Node, quanta: dict[str, int], spool: Path | str | None, **more: object) -> dict[str, str]:
    """Options of a source over queues; without a spool, messages are acknowledged before they are shown."""
    kept = {"ackMode": "auto"} if spool is None else {"spoolLocation": str(spool)}
    found = {"url": node.url, "queues": json.dumps(quanta), "pollTimeout": "1s", **kept}
    return {**found, **{name: str(value) for name, value in more.items()}}


def schema_of(options: SourceOptions) -> StructType:
    """The source's schema, without a JVM to parse it."""
    import pyarrow as pa

    return from_arrow_schema(pa.schema([(name, COLUMNS[name]) for name in column_names(options)]))


class Driver:
    """Calls a reader in the order in which Spark does, and remembers what it would log."""

    def __init__(self, options: dict[str, str], reader: type[QueuesReader] = QueuesReader) -> None:
        self.options = source_options(options)
        self.reader = reader(self.options, schema_of(self.options))
        self.offset = self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any] | None:
        """Plan a batch; None if there is nothing to read."""
        end = self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        return None if end == self.offset else json.loads(json.dumps(end))

    def read(self, end: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Read a planned batch, each partition in turn."""
        reader = type(self.reader)(self.options, schema_of(self.options))
        return [
            [row for batch in reader.read(part) for row in batch.to_pylist()]
            for part in self.reader.partitions(self.offset, end)
        ]

    def batches(self, limit: ReadLimit | None = None) -> Iterator[list[dict[str, Any]]]:
        """Plan, read and commit batches until there is nothing more."""
        while (end := self.plan(limit)) is not None:
            if self.offset["seq"]:
                self.reader.commit(self.offset)
            rows = [row for part in self.read(end) for row in part]
            self.offset = end
            yield rows

    def close(self) -> None:
        self.reader.stop()


@contextlib.contextmanager
def no_larger_files(size: int) -> Iterator[None]:
    """Let the system refuse to write more into a file, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def counts(rows: list[dict[str, Any]], name: str = "queue") -> Counter[str]:
    return Counter(row[name] for row in rows)


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


def rows_limit(count: int) -> ReadLimit:
    return ReadMaxRows(count)
