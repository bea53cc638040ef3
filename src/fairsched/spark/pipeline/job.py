"""A prebuilt job: queues, a ring, your function, a sink; checkpointed, with the shares in its progress."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairsched.errors import ConfigurationError
from fairsched.routing._ring import HashRing
from fairsched.spark.fairnessreport import observe_fairness
from fairsched.spark.pipeline.settings import PipelineSettings
from fairsched.spark.ringpartition import repartition_by_ring

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["AGES", "SHARES", "load_function", "start_pipeline"]

#: Keys of a batch's counts by queue, and of its message ages, in the progress of the query.
SHARES, AGES = "fairsched_shares", "fairsched_ages"


def start_pipeline(spark: SparkSession, settings: PipelineSettings) -> StreamingQuery:
    """Start a pipeline.

    Parameters
    ----------
    spark : SparkSession
    settings : PipelineSettings
        Settings from `read_pipeline`, or created directly.

    Returns
    -------
    StreamingQuery
        The running query. Its progress has counts by queue in ``observedMetrics[SHARES]`` and, in ``[AGES]``, quantiles
        of the seconds between a message's timestamp, if it has one, and its delivery (for a stream: the batch).

    Raises
    ------
    ConfigurationError
        If the function cannot be imported.
    """
    from fairsched.spark import register

    register(spark)
    rows = spark.readStream.format("rabbitmq").options(**settings.source).load()
    rows = _observe_ages(observe_fairness(rows, settings.quanta, name=SHARES))
    if settings.key is not None:
        ring = HashRing(settings.members, points_per_weight=settings.points)
        rows = repartition_by_ring(rows, settings.key, ring)
    if settings.function is not None:
        rows = rows.mapInArrow(_batchwise(load_function(settings.function)), settings.schema or rows.schema)
    writer = rows.writeStream.format(settings.sink_format).options(**settings.sink)
    writer = writer.option("checkpointLocation", settings.checkpoint).outputMode("append")
    if settings.partition_by:
        writer = writer.partitionBy(*settings.partition_by)
    if settings.trigger == "available-now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger} seconds").start()


def _observe_ages(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    # Rows of a stream have no time of reading, so that a batch read again is the same: use the batch's own time.
    seen = F.col("received_at") if "received_at" in rows.columns else F.current_timestamp()
    age = F.unix_micros("_seen") / 1e6 - F.unix_micros("enqueued_at") / 1e6
    quantiles = F.percentile_approx(age, [0.5, 0.99, 1.0])
    names = ("p50", "p99", "max")
    named = [quantiles[place].alias(name) for place, name in enumerate(names)]
    return rows.withColumn("_seen", seen).observe(AGES, *named).drop("_seen")


def load_function(reference: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Import the function that ``module:function`` names.

    Raises
    ------
    ConfigurationError
        If there is no such module or function, it is not callable, or importing the module fails.
    """
    module_name, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"function {reference!r} cannot be imported: {error}") from error
    except Exception as error:
        # The user's module may raise anything on import.
        raise ConfigurationError(f"function {reference!r} cannot be imported: {error!r}") from error
    if not callable(function):
        raise ConfigurationError(f"function {reference!r} does not exist or is not callable, got {function!r}")
    found: Callable[[pa.RecordBatch], pa.RecordBatch] = function
    return found


def _batchwise(function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Any:
    """Return the function that Spark runs for a function from record batch to record batch."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            result = function(batch)
            if not isinstance(result, pa.RecordBatch):
                raise TypeError(f"a pipeline's function must return a pyarrow.RecordBatch, got {type(result).__name__}")
            yield result

    return run
