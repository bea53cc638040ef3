"""Columns as arguments of functions on DataFrames: any name works, and a wrong one is refused before the query runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from fairsched.spark import codel, fair_order, fairness_report, observe_fairness, virtual_finish

QUANTA = {"gold": 2, "free": 1}
#: Functions that have the name of a key column.
NAMED: dict[str, Callable[..., Any]] = {
    "fair_order": lambda frame, key: fair_order(frame, key, QUANTA),
    "fairness_report": lambda frame, key: fairness_report(frame, key, QUANTA),
    "observe_fairness": lambda frame, key: observe_fairness(frame, QUANTA, key=key, name=Observation("o")),
    "codel": lambda frame, key: codel(frame, key, "waited", 5, 100, at="id"),
    "virtual_finish": lambda frame, key: virtual_finish(frame, key, QUANTA, "id"),
}
ODD = ["rows", "cost", "quantum", "a.b", "a`b", "Queue", "vft", "key", "_at"]


def frame_of(spark: Any, name: str) -> Any:
    rows = [("gold", number, 1) for number in range(4)] + [("free", number, 1) for number in range(4)]
    return spark.createDataFrame(rows, ["queue", "id", "waited"]).withColumnRenamed("queue", name).coalesce(1)


@pytest.mark.parametrize("function", NAMED)
@pytest.mark.parametrize("name", ODD)
def test_a_column_may_have_any_name(spark: Any, function: str, name: str) -> None:
    frame = frame_of(spark, name)
    if function == "fairness_report" and name in ("rows", "cost", "quantum"):
        with pytest.raises(ValueError, match=f"key must not be '{name}', since the report has a column of that name"):
            NAMED[function](frame, name)
        return
    expected = 2 if function == "fairness_report" else 8
    for given in (name, name.upper(), name.lower()):
        assert len(NAMED[function](frame, given).collect()) == expected


@pytest.mark.parametrize("function", [name for name in NAMED if name != "virtual_finish"])
def test_a_column_that_is_none_is_refused_at_once(spark: Any, function: str) -> None:
    frame = frame_of(spark, "queue")
    with pytest.raises(ValueError, match="key names no column: 'tenant'; the DataFrame has queue, id, waited"):
        NAMED[function](frame, "tenant")
    with pytest.raises(TypeError, match=r"key must be the name of a column, got Column<.*df.withColumn"):
        NAMED[function](frame, F.col("queue"))
    twice = frame.withColumn("QUEUE2", F.lit("x")).withColumnRenamed("QUEUE2", "QUEUE")
    with pytest.raises(ValueError, match="key names several columns: 'Queue'"):
        NAMED[function](twice, "Queue")


def test_case_counts_where_the_session_says_so(spark: Any) -> None:
    frame = frame_of(spark, "queue")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(ValueError, match="key names no column: 'Queue'"):
            fair_order(frame, "Queue", QUANTA)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize(
    ("cost", "shown"), [(None, "null"), (float("nan"), "NaN"), (float("inf"), "Infinity"), (-1.0, "-1.0")]
)
def test_a_cost_that_is_none_fails_every_function_alike(spark: Any, cost: float | None, shown: str) -> None:
    frame = spark.createDataFrame([("gold", 1, 1.0), ("gold", 2, cost)], "queue string, id int, price double")
    for function in (
        lambda: fairness_report(frame, "queue", QUANTA, "price"),
        lambda: fairness_report(frame, "queue", QUANTA, F.col("price")),
        lambda: virtual_finish(frame, "queue", QUANTA, "id", "price"),
    ):
        with pytest.raises(SparkRuntimeException, match=f"a cost must be a number of at least 0, got {shown}"):
            function().collect()
    with pytest.raises(PythonException, match=r"column 'price' must have|got -1"):
        fair_order(frame.coalesce(1), "queue", QUANTA, "PRICE").collect()
