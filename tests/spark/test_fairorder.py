"""Rows in fair order: exactly the oracle's in a partition, by virtual finish times over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceDwrr
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import functions as F

from fairsched.spark import fairorder
from fairsched.spark.fairorder import Orderer, fair_order, virtual_finish

QUANTA = {"gold": 5, "silver": 3, "free": 1}


def oracle(rows: list[tuple[str, int]], quanta: dict[str, int]) -> list[int]:
    """Positions of the rows (slot, cost) in the order of service."""
    reference = ReferenceDwrr(quanta)
    for position, (slot, cost) in enumerate(rows):
        reference.push(slot, position, cost)
    return [reference.pop()[1] for _ in rows]


@given(
    rows=st.lists(st.tuples(st.sampled_from(sorted(QUANTA)), st.integers(1, 12)), max_size=120),
    cuts=st.lists(st.integers(0, 120), max_size=4),
    taken=st.integers(1, 40),
)
def test_batches_go_out_in_the_engines_order(rows: list[tuple[str, int]], cuts: list[int], taken: int) -> None:
    orderer = Orderer("queue", QUANTA, "cost")
    whole = pa.record_batch(
        {
            "queue": pa.array([slot for slot, _ in rows], pa.string()),
            "cost": pa.array([cost for _, cost in rows], pa.int32()),
            "id": pa.array(range(len(rows)), pa.int64()),
        }
    )
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for start, end in pairwise(edges):
        orderer.add(whole.slice(start, end - start))
    out: list[int] = []
    while orderer.waiting:
        part = orderer.take(taken)
        assert part.schema == whole.schema
        assert part.num_rows <= taken
        out.extend(part.column("id").to_pylist())
    assert out == oracle(rows, QUANTA)


@given(rows=st.lists(st.sampled_from(sorted(QUANTA)), max_size=100), window=st.integers(1, 20))
def test_a_window_keeps_the_order_of_each_key(rows: list[str], window: int) -> None:
    orderer = Orderer("queue", QUANTA, None)
    out: list[tuple[str, int]] = []
    for position, slot in enumerate(rows):
        orderer.add(pa.record_batch({"queue": pa.array([slot]), "id": pa.array([position])}))
        while orderer.waiting > window:
            out += [tuple(row.values()) for row in orderer.take(orderer.waiting - window).to_pylist()]
    while orderer.waiting:
        out += [tuple(row.values()) for row in orderer.take(7).to_pylist()]
    for slot in QUANTA:
        assert [at for name, at in out if name == slot] == [at for at, name in enumerate(rows) if name == slot]


def test_a_window_does_not_keep_the_batches_of_a_key_that_comes_out_slowly() -> None:
    body = b"x" * 100

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            slots = ["gold"] * 10_000
            slots[number * 7 % 10_000 :: 1000] = ["free"] * len(slots[number * 7 % 10_000 :: 1000])
            ids = range(number * 10_000, number * 10_000 + 10_000)
            yield pa.record_batch({"queue": slots, "id": ids, "body": pa.array([body] * 10_000)})
            yield pa.record_batch({"queue": pa.array([], pa.string()), "id": pa.array([], pa.int64()),
                                   "body": pa.array([], pa.binary())})  # fmt: skip

    before, most = pa.total_allocated_bytes(), 0
    out: dict[str, list[int]] = {"gold": [], "free": []}
    for batch in fairorder._ordering("queue", {"gold": 1_000_000, "free": 1}, None, 5000)(batches()):
        most = max(most, pa.total_allocated_bytes() - before)
        for slot, at in zip(batch.column("queue").to_pylist(), batch.column("id").to_pylist(), strict=True):
            out[slot].append(at)
    assert all(ids == sorted(ids) for ids in out.values())
    assert len(set(out["gold"]) | set(out["free"])) == 100 * 10_000
    assert most < 12 * 10_000 * len(body)  # of a hundred such batches


def test_a_partition_comes_out_in_fair_order(spark: Any) -> None:
    slots = sorted(QUANTA)
    rows = [(slots[i * 7 % 11 % 3], i % 4 + 1, i) for i in range(25_000)]
    frame = spark.createDataFrame(rows, "queue string, price int, id long").coalesce(1)
    ordered = fair_order(frame, "queue", QUANTA, "price")
    assert ordered.schema == frame.schema
    arrived = frame.collect()
    expected = oracle([(row.queue, row.price) for row in arrived], QUANTA)
    assert [row.id for row in ordered.collect()] == [arrived[at].id for at in expected]


def test_each_partition_is_fair_by_itself(spark: Any) -> None:
    frame = spark.range(0, 4000, 1, 4).select(
        F.when(F.col("id") % 1000 < 500, "free").otherwise("gold").alias("queue"), "id"
    )
    rows = fair_order(frame, "queue", QUANTA).select("*", F.spark_partition_id().alias("at")).collect()
    assert len(rows) == 4000
    for at in range(4):
        first = [row.queue for row in rows if row.at == at][:60]
        assert Counter(first) == {"gold": 50, "free": 10}


def test_a_window_bounds_what_waits(spark: Any) -> None:
    frame = spark.range(0, 30_000, 1, 1).select(
        F.when(F.col("id") % 2 == 0, "gold").otherwise("free").alias("queue"), "id"
    )
    rows = fair_order(frame, "queue", QUANTA, window=1000).collect()
    assert sorted(row.id for row in rows) == list(range(30_000))
    assert max(row.id for row in rows[:1000]) < 12_000  # no row waited for the last record batch


def test_integers_name_slots_too(spark: Any) -> None:
    frame = spark.range(0, 100, 1, 1).select((F.col("id") % 2).alias("tenant"), "id")
    rows = fair_order(frame, "tenant", {0: 3, 1: 1}).collect()
    assert [row.tenant for row in rows[:8]] == [0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("rows", "cost", "words"),
    [
        ([("gold", 1), ("lead", 1)], None, "no quantum is given for key 'lead'; quanta has"),
        ([("gold", 1), (None, 1)], None, "must name a slot in every row, got null"),
        ([("gold", 1), ("gold", 0)], "price", "got 0"),
        ([("gold", 1), ("gold", None)], "price", "must have a cost in every row, got null"),
    ],
)
def test_rows_that_cannot_be_served_fail_the_query(spark: Any, rows: list[Any], cost: str | None, words: str) -> None:
    frame = spark.createDataFrame(rows, "queue string, price int")
    with pytest.raises(PythonException, match=words):
        fair_order(frame, "queue", QUANTA, cost).collect()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"quanta": {}}, "at least one key"),
        ({"quanta": None}, "at least one key"),
        ({"quanta": {"a": 0}}, "got 0"),
        ({"quanta": {1.5: 1}}, "got 1.5"),
        ({"quanta": QUANTA, "window": 0}, "window must be a positive number of rows, got 0"),
    ],
)
def test_bad_arguments_are_refused_at_once(spark: Any, arguments: dict[str, Any], words: str) -> None:
    frame = spark.createDataFrame([("a",)], "queue string")
    with pytest.raises(ValueError, match=words):
        fair_order(frame, "queue", **arguments)


def test_virtual_finish_orders_all_partitions(spark: Any) -> None:
    frame = spark.createDataFrame(
        [("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 0, 1), ("b", 1, 1), ("b", 2, 4)],
        "queue string, at long, price int",
    ).repartition(3)
    by_count = virtual_finish(frame, "queue", {"a": 2, "b": 1}, "at").orderBy("vft", "queue").collect()
    assert [(row.queue, row.at, row.vft) for row in by_count] == [
        ("a", 0, 0.5), ("a", 1, 1.0), ("b", 0, 1.0), ("a", 2, 1.5), ("b", 1, 2.0), ("b", 2, 3.0),
    ]  # fmt: skip
    by_price = virtual_finish(frame, "queue", {"a": 2, "b": 1}, "at", "price").orderBy("queue", "at").collect()
    assert [row.vft for row in by_price] == [0.5, 1.5, 3.0, 1.0, 2.0, 6.0]


def test_virtual_finish_names_a_key_without_quantum(spark: Any) -> None:
    frame = spark.createDataFrame([("a", 0), ("b", 0)], "queue string, at long")
    with pytest.raises(SparkRuntimeException, match=r"no quantum is given for key b; quanta has \['a'\]"):
        virtual_finish(frame, "queue", {"a": 2}, "at").collect()


@pytest.mark.parametrize(("price", "shown"), [(None, "null"), (-3, "-3")])
def test_virtual_finish_names_a_cost_that_is_none(spark: Any, price: int | None, shown: str) -> None:
    frame = spark.createDataFrame([("a", 0, 1), ("a", 1, price)], "queue string, at long, price int")
    with pytest.raises(SparkRuntimeException, match=f"a cost must be a number of at least 0, got {shown}"):
        virtual_finish(frame, "queue", {"a": 2}, "at", "price").collect()
