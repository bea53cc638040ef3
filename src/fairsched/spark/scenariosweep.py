"""Simulate a grid of scenarios, one row each, in parallel on Spark."""

from __future__ import annotations

import decimal
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairsched.simulator import Distribution, Result, Scenario
from fairsched.simulator import simulate as _simulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["sweep"]

_SCHEMA = (
    "scenario bigint, name string, seed decimal(20,0), seconds double, served bigint, returned bigint, "
    "throughput double, utilisation double, jain double, wait_p50 double, wait_p99 double, "
    "total_p50 double, total_p99 double, shares map<string,double>, errors map<string,double>, result string"
)


def sweep(
    spark: SparkSession,
    scenarios: Iterable[Scenario],
    simulate: Callable[[Scenario], Result] = _simulate,
    num_partitions: int | None = None,
) -> DataFrame:
    """Simulate many scenarios, and return the results as rows.

    Parameters
    ----------
    spark : SparkSession
    scenarios : iterable of Scenario
        Such as ``[base.replaced({"consumers.*.prefetch": size}) for size in range(1, 61)]``.
    simulate : callable
        Called with each scenario in an executor; `fairsched.simulator.simulate` by default.
    num_partitions : int, optional
        Number of tasks. By default as many as Spark runs at once (a small query finds that out), at most one per
        scenario. The rows do not depend on it.

    Returns
    -------
    DataFrame
        One row per scenario: ``scenario`` (its index in `scenarios`), ``name``, ``seed``, ``seconds``, ``served``,
        ``returned``, ``throughput`` (per second), ``utilisation`` (of all consumers' time), ``jain``, percentiles of
        ``wait`` (in the consumer's buffer) and ``total`` (from entering the queue until handled) in seconds, null if no
        message was handled, ``shares`` and ``errors`` by queue, and ``result`` (everything but the timeline, as JSON).

    Raises
    ------
    TypeError
        If an item of `scenarios` is not a Scenario.
    ValueError
        If there are no scenarios, or `num_partitions` is not positive.

    Notes
    -----
    Each scenario has its own seed, so the rows do not depend on the executor. Each use of the DataFrame simulates
    again: cache it or write it. Executors need the same version of fairsched.
    """
    chosen = list(scenarios)
    for scenario in chosen:
        if not isinstance(scenario, Scenario):
            raise TypeError(f"scenarios must be fairsched.simulator.Scenario objects, got {scenario!r}")
    if not chosen:
        raise ValueError("scenarios must be one or more, got none")
    if num_partitions is None:
        num_partitions = _tasks(spark, len(chosen))
    if not isinstance(num_partitions, int) or isinstance(num_partitions, bool) or num_partitions < 1:
        raise ValueError(f"num_partitions must be a positive integer, got {num_partitions!r}")
    rows = [(number, pickle.dumps(scenario)) for number, scenario in enumerate(chosen)]
    packed = spark.createDataFrame(rows, "scenario bigint, packed binary").repartitionById(num_partitions, _spread())
    return packed.mapInArrow(_simulating(simulate), _SCHEMA)


def _tasks(spark: SparkSession, rows: int) -> int:
    """Return the number of tasks into which Spark divides `rows` rows; Spark Connect does not tell its parallelism."""
    from pyspark.sql import functions as F

    return spark.range(rows).select(F.spark_partition_id()).distinct().count()


def _spread() -> Any:
    from pyspark.sql import functions as F

    return F.col("scenario").cast("int")


def _simulating(
    simulate: Callable[[Scenario], Result],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that an executor runs on its scenarios."""
    schema = pa.schema(
        [("scenario", pa.int64()), ("name", pa.string()), ("seed", pa.decimal128(20, 0)), ("seconds", pa.float64())]
        + [(name, pa.int64()) for name in ("served", "returned")]
        + [(name, pa.float64()) for name in ("throughput", "utilisation", "jain")]
        + [(name, pa.float64()) for name in ("wait_p50", "wait_p99", "total_p50", "total_p99")]
        + [(name, pa.map_(pa.string(), pa.float64())) for name in ("shares", "errors")]
        + [("result", pa.string())]
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                found = {"scenario": row["scenario"], **_row(simulate(pickle.loads(row["packed"])))}
                yield pa.RecordBatch.from_pylist([found], schema=schema)

    return run


def _row(result: Result) -> dict[str, Any]:
    present = sum(consumer.present for consumer in result.consumers)
    busy = sum(consumer.utilisation * consumer.present for consumer in result.consumers)
    waits = Distribution.merged(queue.wait for queue in result.queues)
    totals = Distribution.merged(queue.total for queue in result.queues)
    return {
        "name": result.scenario.name,
        "seed": decimal.Decimal(result.scenario.seed),
        "seconds": result.seconds,
        "served": result.served,
        "returned": sum(queue.returned for queue in result.queues),
        "throughput": result.throughput,
        "utilisation": busy / present if present else 0.0,
        "jain": result.jain,
        "wait_p50": _percentile(waits, 50),
        "wait_p99": _percentile(waits, 99),
        "total_p50": _percentile(totals, 50),
        "total_p99": _percentile(totals, 99),
        "shares": [(queue.name, queue.share) for queue in result.queues],
        "errors": [(queue.name, queue.error) for queue in result.queues],
        "result": json.dumps(result.to_dict(timeline=False)),
    }


def _percentile(values: Distribution, percent: float) -> float | None:
    return values.percentile(percent) if values.count else None
