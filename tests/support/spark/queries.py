"""Streaming queries for tests: rows by batch in memory, or in files that survive the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def load(spark: SparkSession, options: dict[str, str], name: str = "rabbitmq") -> DataFrame:
    """The rows of a source, and the partition each of them is in."""
    return spark.readStream.format(name).options(**options).load().withColumn("part", F.spark_partition_id())


class Rows:
    """Collects the rows of each batch; a batch that is run again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.then: Callable[[int], None] = lambda _number: None

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        assert self.batches.setdefault(number, rows) == rows
        self.then(number)

    @property
    def all(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(row.body) for row in self.all]


@contextlib.contextmanager
def query(frame: DataFrame, checkpoint: Path, sink: Callable[[DataFrame, int], None], **trigger: Any) -> Iterator[Any]:
    """Run a query over `sink`, and stop it."""
    running = (
        frame.writeStream.foreachBatch(sink)
        .trigger(**(trigger or {"processingTime": "0 seconds"}))
        .option("checkpointLocation", checkpoint.as_uri())
        .start()
    )
    try:
        yield running
    finally:
        running.stop()


def drain(frame: DataFrame, checkpoint: Path, sink: Callable[[DataFrame, int], None]) -> Any:
    """Run a query until there is nothing more, and return it."""
    with query(frame, checkpoint, sink, availableNow=True) as running:
        assert running.awaitTermination(300)
    return running


def into_files(folder: Path) -> Callable[[DataFrame, int], None]:
    """A sink that is idempotent by the number of the batch, as the documentation advises."""

    def write(frame: DataFrame, number: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/batch={number}")

    return write


def from_files(spark: SparkSession, folder: Path) -> list[bytes]:
    """Bodies of all batches in a folder."""
    return [bytes(row.body) for row in spark.read.parquet(str(folder)).select("body").collect()]


def rows_from_files(spark: SparkSession, folder: Path) -> list[Any]:
    """Rows of all batches in a folder, in the order of the batches, whose numbers are a column."""
    return list(spark.read.parquet(str(folder)).orderBy("batch").collect())
