"""CoDel over rows: what it marks is what the law says, per key, across record batches."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from fairsched.spark.shedding import codel

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def by_hand(count: int, step: float, interval: float) -> list[bool]:
    """RFC 8289, section 5, where every message has waited too long: which of them are shed."""
    shed, first_above, due, drops = [False] * count, interval, 0.0, 0
    for number in range(1, count):
        now = number * step
        if drops == 0:
            if now >= first_above:
                shed[number], drops, due = True, 1, now + interval
        elif now >= due:
            drops += 1
            shed[number], due = True, due + interval / math.sqrt(drops)
    return shed


def marked(spark: Any, rows: Any) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for row in codel(rows, "queue", "age", 100, 100).orderBy("id").collect():
        found.setdefault(row.queue, []).append(row.shed)
    return found


def frame(spark: Any, ages: dict[str, float], count: int) -> Any:
    names = F.array(*[F.lit(name) for name in ages])
    whole = spark.range(0, count * len(ages), 1, 1).select(
        "id", F.element_at(names, (F.col("id") % len(ages) + 1).cast("int")).alias("queue"),
        (F.lit(START) + F.make_dt_interval(secs=F.floor(F.col("id") / len(ages)) / 100)).alias("received_at"),
    )  # fmt: skip
    table = F.create_map(*[F.lit(part) for pair in ages.items() for part in pair])
    return whole.withColumn("age", F.element_at(table, F.col("queue")).cast("double"))


def test_below_the_target_nothing_is_shed_above_it_what_the_law_says(spark: Any) -> None:
    found = marked(spark, frame(spark, {"fresh": 50.0, "stale": 150.0}, 15_000))  # two record batches and a half
    assert not any(found["fresh"])
    expected = by_hand(15_000, 10, 100)
    assert sum(expected) > 100
    assert found["stale"] == expected


def test_a_missing_age_is_none(spark: Any) -> None:
    rows = frame(spark, {"stale": 150.0}, 200).withColumn("age", F.lit(None).cast("double"))
    assert not any(marked(spark, rows)["stale"])


def test_milliseconds_say_when_as_well_as_a_timestamp(spark: Any) -> None:
    rows = frame(spark, {"stale": 150.0}, 500)
    numbered = rows.withColumn("received_at", F.unix_millis("received_at"))
    assert marked(spark, numbered) == marked(spark, rows)
    assert codel(rows, "queue", "age", 100, 100).columns == [*rows.columns, "shed"]


def test_parameters_are_checked_before_the_query_runs(spark: Any) -> None:
    with pytest.raises(ValueError, match="target must be positive"):
        codel(frame(spark, {"a": 1.0}, 1), "queue", "age", 0, 100)


@pytest.mark.parametrize("name", ["shed", "Shed", "_at", "_WAITED"])
def test_columns_may_have_any_name(spark: Any, name: str) -> None:
    rows = frame(spark, {"stale": 150.0}, 500)
    named = rows.withColumn(name, F.col("id") % 2 == 0)
    assert marked(spark, named) == marked(spark, rows)
    kept = [] if name.lower() == "shed" else [name]
    assert codel(named, "queue", "age", 100, 100).columns == [*rows.columns, *kept, "shed"]


def test_when_may_be_part_of_a_struct(spark: Any) -> None:
    rows = frame(spark, {"stale": 150.0}, 500)
    nested = rows.withColumn("meta", F.struct("received_at"))
    found = codel(nested, "queue", "age", 100, 100, at="meta.RECEIVED_AT").orderBy("id").collect()
    assert [row.shed for row in found] == marked(spark, rows)["stale"]


def test_a_row_that_does_not_say_when_is_named(spark: Any) -> None:
    rows = frame(spark, {"stale": 150.0}, 10).withColumn("received_at", F.when(F.col("id") != 7, F.col("received_at")))
    with pytest.raises(PythonException, match="column 'received_at' must have the time of each row, got null"):
        codel(rows, "queue", "age", 100, 100).collect()
