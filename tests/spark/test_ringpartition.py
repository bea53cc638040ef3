"""Keys on a ring, from Spark: the same places as one by one in Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from fairsched.routing import HashRing
from fairsched.spark.ringpartition import repartition_by_ring, ring_partition

EIGHT = HashRing({f"shard-{i}": 1 for i in range(8)}, points_per_weight=256)
NINE = HashRing({f"shard-{i}": 1 for i in range(9)}, points_per_weight=256)


def places(rows: Any, ring: HashRing = EIGHT) -> list[tuple[Any, int]]:
    return [tuple(row) for row in rows.select("key", ring_partition("key", ring)).collect()]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("string", ["", "a", "naïve", None, "x" * 1000, "user-42"]),
        ("binary", [b"", b"\x00\xff", None, b"user-42"]),
        ("long", [0, -1, 2**63 - 1, None, 42]),
        ("int", [0, -1, 2**31 - 1, None, 42]),
    ],
)
def test_a_column_is_placed_as_its_keys_are_one_by_one(spark: Any, kind: str, keys: list[Any]) -> None:
    rows = spark.createDataFrame([(key,) for key in keys], f"key {kind}")
    for key, place in places(rows):
        assert EIGHT.names[place] == EIGHT.route(None if key is None else bytes(key) if kind == "binary" else key)


def test_a_sliced_column_is_placed_from_its_offset(spark: Any) -> None:
    keys = [None if i % 7 == 0 else f"key-{i}" for i in range(1000)]
    for column in (pa.array(keys), pa.array(keys, pa.large_string())):
        sliced = column.slice(333, 400)
        assert [EIGHT.names[i] for i in EIGHT.route_many(sliced)] == [EIGHT.route(key) for key in keys[333:733]]
    # In a query: a limit and a filter leave Arrow arrays that begin anywhere.
    rows = spark.createDataFrame([(key,) for key in keys], "key string").where("key is not null").limit(500)
    assert all(EIGHT.names[place] == EIGHT.route(key) for key, place in places(rows))


def test_a_million_keys_spread_and_few_move_when_a_member_joins(spark: Any) -> None:
    rows = spark.range(1_000_000).select(F.concat(F.lit("user-"), "id").alias("key"))
    both = rows.select(ring_partition("key", EIGHT).alias("old"), ring_partition("key", NINE).alias("new"))
    counted = {(row.old, row.new): row["count"] for row in both.groupBy("old", "new").count().collect()}
    assert sum(counted.values()) == 1_000_000
    loads = Counter()
    for (old, _), count in counted.items():
        loads[old] += count
    assert max(loads.values()) / (1_000_000 / 8) <= 1.25
    moved = {pair: count for pair, count in counted.items() if pair[0] != pair[1]}
    assert {new for _, new in moved} == {8}  # only to the new one
    assert sum(moved.values()) / 1_000_000 <= 1.3 / 9


def test_every_member_has_its_partition(spark: Any) -> None:
    rows = spark.range(5000).select(F.concat(F.lit("k"), "id").alias("key"), "id")
    placed = repartition_by_ring(rows, "key", EIGHT)
    assert placed.rdd.getNumPartitions() == 8
    assert placed.columns == ["key", "id"]
    found = placed.select("key", "id", F.spark_partition_id().alias("at")).collect()
    assert sorted(row.id for row in found) == list(range(5000))
    assert all(EIGHT.names[row.at] == EIGHT.route(row.key) for row in found)


@pytest.mark.parametrize(
    ("ring", "error", "words"),
    [
        ("shards", TypeError, "must be a fairsched.routing.HashRing, got 'shards'"),
        (HashRing({}), ValueError, "at least one member"),
        (HashRing({"a": 1}, load_factor=1.25), ValueError, "must not have a load_factor, got 1.25"),
    ],
)
def test_what_is_no_ring_to_place_by_is_refused(spark: Any, ring: Any, error: type[Exception], words: str) -> None:
    rows = spark.range(1).select(F.col("id").alias("key"))
    with pytest.raises(error, match=words):
        ring_partition("key", ring)
    with pytest.raises(error, match=words):
        repartition_by_ring(rows, "key", ring)
