"""Functions on DataFrames beside Spark's own: placing rows on a ring, and putting them in order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from interleave import medians, record
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from support.spark.home import find_java
from support.spark.session import start

from fairsched.routing import HashRing
from fairsched.spark import ring_partition
from fairsched.spark.fairorder import Orderer

ROWS = 500_000
FEW = 20_000
MEMBERS = [f"shard-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", find_java())
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = start("local[2]")
        yield session
        session.stop()


def drained(frame: Any) -> Callable[[], None]:
    """Run a query whose rows go nowhere."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def test_ring_beside_builtin_and_python_udf(benchmark: Any, session: Any) -> None:
    """Rows of about 200 bytes carried along, 256 points a member; the Python UDF on fewer rows, by the row."""
    from uhashring import HashRing as Uhashring

    rows = session.range(ROWS).select(
        F.concat(F.lit("user-"), "id").alias("key"), F.rpad(F.hex("id"), 200, "x").alias("body")
    ).persist()  # fmt: skip
    rows.count()
    ring = HashRing(dict.fromkeys(MEMBERS, 1), points_per_weight=256)
    peer = Uhashring(MEMBERS, vnodes=256, replicas=1)
    number = {name: index for index, name in enumerate(MEMBERS)}
    by_hand = F.udf(lambda key: number[peer.get_node(key)], "int")
    # What crossing into Python and back costs, with nothing done there.
    crossing = F.arrow_udf(lambda keys: pa.array(np.zeros(len(keys), np.int32)), IntegerType())
    few = rows.limit(FEW).repartition(2).persist()
    few.count()
    took = medians(
        5,
        ring=drained(rows.withColumn("place", ring_partition("key", ring))),
        crossing=drained(rows.withColumn("place", crossing("key"))),
        builtin=drained(rows.withColumn("place", F.pmod(F.xxhash64("key"), F.lit(8)))),
        ring_few=drained(few.withColumn("place", ring_partition("key", ring))),
        uhashring=drained(few.withColumn("place", by_hand("key"))),
        nothing=drained(few),
    )
    record(
        benchmark,
        {
            "ring as an Arrow UDF : xxhash64 + pmod, rows per second": (took["builtin"] / took["ring"], ">=", 0.9),
            "ring as an Arrow UDF : one that does nothing, rows per second": (
                took["crossing"] / took["ring"], ">=", 0.9,
            ),
            "uhashring in a Python UDF : ring as an Arrow UDF, one row": (
                (took["uhashring"] - took["nothing"]) / FEW / (took["ring"] / ROWS), ">=", 20,
            ),
        },
        ring_rows_per_s=ROWS / took["ring"],
        crossing_rows_per_s=ROWS / took["crossing"],
        builtin_rows_per_s=ROWS / took["builtin"],
        uhashring_rows_per_s=FEW / took["uhashring"],
    )  # fmt: skip
    benchmark(lambda: None)


def order_seconds(rows: int) -> float:
    """CPU seconds of the kernel for `rows` rows of ten queues, in record batches of ten thousand."""
    names = pa.array([f"q{number}" for number in range(10)])
    chance = np.random.default_rng(1)
    body = pa.array([b"x" * 100] * 10_000)
    batches = [
        pa.record_batch({"queue": names.take(pa.array(chance.integers(0, 10, 10_000))), "body": body})
        for _ in range(min(rows, 1_000_000) // 10_000)
    ]
    orderer = Orderer("queue", {f"q{number}": 4 * (number + 1) for number in range(10)}, None)
    taken = 0
    begin = time.process_time()
    for number in range(rows // 10_000):
        orderer.add(batches[number % len(batches)])
    while orderer.waiting:
        taken += orderer.take(10_000).num_rows
    assert taken == rows
    return time.process_time() - begin


def test_fair_order_kernel(benchmark: Any) -> None:
    """CPU time: Arrow's own threads count, too."""
    sizes = {10_000: 100, 1_000_000: 3, 10_000_000: 1}
    order_seconds(10_000)
    cost = {rows: min(order_seconds(rows) for _ in range(rounds)) / rows for rows, rounds in sizes.items()}
    record(
        benchmark,
        {
            "fair_order's kernel, 1 000 000 rows, M rows per CPU second : 1": (1e-6 / cost[1_000_000], ">=", 1),
            "fair_order's kernel, a row of 10 000 000 : of 10 000": (cost[10_000_000] / cost[10_000], "<=", 1.5),
        },
        **{f"ns_a_row_of_{rows}": 1e9 * seconds for rows, seconds in cost.items()},
    )
    benchmark(lambda: None)
