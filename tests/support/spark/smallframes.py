"""Each function on columns and frames over a few rows: what executors make of them, and what is to come out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairsched import CoDel
from fairsched.routing import HashRing
from fairsched.simulator import Arrivals, Broker, ConsumerSpec, Queue, Scenario, simulate
from fairsched.spark import codel, fair_order, fairness_report, ring_partition, sweep, virtual_finish

#: Name, what was found, what was expected.
Case = tuple[str, Any, Any]

QUANTA = {"gold": 3, "free": 1}


def cases(spark: Any) -> Iterator[Case]:
    """Run every function on the session's executors; what is expected is computed here, or by hand."""
    for case in (_placed, _ordered, _finished, _marked, _reported, _swept):
        yield case.__name__[1:], *case(spark)


def _placed(spark: Any) -> tuple[Any, Any]:
    ring = HashRing({"a": 1, "b": 2}, points_per_weight=64)
    keys = [str(number) for number in range(200)]
    frame = spark.createDataFrame([(key,) for key in keys], "key string").repartition(4)
    found = frame.select("key", ring_partition("key", ring).alias("place")).collect()
    return {row.key: row.place for row in found}, {key: ring.names.index(ring.route(key)) for key in keys}


def _ordered(spark: Any) -> tuple[Any, Any]:
    rows = [("gold", number) for number in range(12)] + [("free", number) for number in range(12)]
    frame = spark.createDataFrame(rows, "queue string, number int").coalesce(1)
    gold, free = iter(rows[:12]), iter(rows[12:])
    expected = [next(gold if queue == "gold" else free) for queue in ["gold", "gold", "gold", "free"] * 4]
    return [tuple(row) for row in fair_order(frame, "queue", QUANTA).collect()], [*expected, *free]


def _finished(spark: Any) -> tuple[Any, Any]:
    rows = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    frame = spark.createDataFrame(rows, "queue string, at long").repartition(3)
    found = virtual_finish(frame, "queue", {"a": 2, "b": 1}, "at").orderBy("queue", "at").collect()
    return [row.vft for row in found], [0.5, 1.0, 1.5, 1.0, 2.0, 3.0]


def _marked(spark: Any) -> tuple[Any, Any]:
    """A row each 10 ms, which had waited 150 ms where 100 ms is the target."""
    law = CoDel(0.1, 0.1)
    expected = [law.should_return(1e6 + (10 * at - 150) / 1000, 1e6 + 10 * at / 1000, 2**31) for at in range(300)]
    frame = spark.createDataFrame(
        [("stale", 1e9 + 10 * at, 150.0) for at in range(300)], "queue string, at double, age double"
    ).coalesce(1)
    return [row.shed for row in codel(frame, "queue", "age", 100, 100, at="at").orderBy("at").collect()], expected


def _reported(spark: Any) -> tuple[Any, Any]:
    frame = spark.createDataFrame([("gold",)] * 30 + [("free",)] * 10, "queue string").repartition(3)
    found = fairness_report(frame, "queue", QUANTA).orderBy("queue").collect()
    return [[row.queue, row.rows, row.share, row.expected, row.jain] for row in found], [
        ["free", 10, 0.25, 0.25, 1.0],
        ["gold", 30, 0.75, 0.75, 1.0],
    ]


def _swept(spark: Any) -> tuple[Any, Any]:
    base = Scenario(
        brokers=[Broker(delay="50ms")],
        queues=[Queue("gold", quantum=3, arrivals=Arrivals.poisson(400)), Queue("free")],
        consumers=[ConsumerSpec(prefetch=10, service="2ms")],
        duration="2s",
        seed=7,
    )
    grid = [base.replaced({"consumers.*.prefetch": size}) for size in range(1, 5)]
    found = sweep(spark, grid, num_partitions=4).orderBy("scenario").collect()
    return [[row.served, row.jain] for row in found], [[one.served, one.jain] for one in map(simulate, grid)]
