"""Reports of fairness: equal to those in plain Python, and in a streaming query's progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual
from support.waiting import eventually

from fairsched import fairness
from fairsched.spark.fairnessreport import fairness_report, observe_fairness

QUANTA = {"gold": 40, "silver": 12, "free": 4, "never": 8}


def served(spark: Any, counts: dict[str, int]) -> Any:
    rows = [(queue, i % 5 + 1) for queue, count in counts.items() for i in range(count)]
    return spark.createDataFrame(rows, "queue string, price int").repartition(3)


def test_a_report_by_hand(spark: Any) -> None:
    found = fairness_report(served(spark, {"a": 30, "b": 10}), "queue", {"a": 2, "b": 1, "c": 1})
    # Jain's index of 15, 10 and 0 rows a quantum: 25 squared by 3 * (225 + 100).
    expected = [("a", 2, 30, 30, 0.75, 0.5, 1.5), ("b", 1, 10, 10, 0.25, 0.25, 1.0), ("c", 1, 0, 0, 0.0, 0.25, 0.0)]
    frame = spark.createDataFrame([(*row, 625 / 975) for row in expected], found.schema)
    assertDataFrameEqual(found, frame, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "counts",
    [{"gold": 400, "silver": 100, "free": 60}, {"gold": 1}, {}, {"gold": 40, "silver": 12, "free": 4, "never": 8}],
)
def test_a_report_agrees_with_plain_python(spark: Any, counts: dict[str, int]) -> None:
    rows = {row.queue: row for row in fairness_report(served(spark, counts), "queue", QUANTA).collect()}
    expected = fairness.shares(counts, QUANTA)
    assert set(rows) == set(QUANTA)
    for share in expected:
        row = rows[share.name]
        assert (row.quantum, row.rows, row.cost) == (share.quantum, share.served, share.served)
        assert row.share == pytest.approx(share.share, abs=1e-12)
        assert row.expected == pytest.approx(share.ideal, abs=1e-12)
        assert row.ratio == pytest.approx(share.share / share.ideal, abs=1e-9)
        assert row.jain == pytest.approx(fairness.weighted_jain(counts, QUANTA), abs=1e-9)


def test_costs_count_where_they_are_given(spark: Any) -> None:
    frame = served(spark, {"gold": 10, "free": 5})
    rows = {row.queue: row for row in fairness_report(frame, "queue", QUANTA, "price").collect()}
    assert (rows["gold"].rows, rows["gold"].cost) == (10, 30)
    assert rows["gold"].share == pytest.approx(30 / 45)


def test_a_report_runs_no_python_in_the_executors(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fairness_report(served(spark, {"gold": 3}), "queue", QUANTA).explain(extended=True)
    assert "Python" not in capsys.readouterr().out.replace("PythonRDD", "")


def test_a_report_reads_what_was_served_once(spark: Any) -> None:
    read = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    frame = served(spark, {"gold": 30, "free": 10})
    assert len(fairness_report(frame.mapInArrow(counted, frame.schema), "queue", QUANTA, "price").collect()) == 4
    assert read.value == 40


def test_a_batch_query_observes_counts(spark: Any) -> None:
    seen = Observation("shares")
    frame = observe_fairness(served(spark, {"gold": 7, "free": 2, "never": 1}), ["gold", "free"], name=seen)
    assert frame.count() == 10
    assert seen.get == {"gold": 7, "free": 2, "_other": 1}


def test_a_queue_may_be_named_as_the_others_are(spark: Any) -> None:
    seen = Observation("names")
    frame = observe_fairness(served(spark, {"gold": 7, "_other": 2, "never": 1}), ["gold", "_other"], name=seen)
    assert frame.count() == 10
    assert seen.get == {"gold": 7, "_other": 2, "__other": 1}


def test_a_streaming_query_has_counts_in_its_progress(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).option("numPartitions", 2).load()
    named = stream.select(F.when(F.col("value") % 3 == 0, "gold").when(F.col("value") % 3 == 1, "free").alias("queue"))
    query = (
        observe_fairness(named, ["gold", "free"]).writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    try:
        eventually(lambda: [p for p in query.recentProgress if p.numInputRows], 60, "a first batch", every=0.1)
        progress = [p for p in query.recentProgress if p.numInputRows]
    finally:
        query.stop()
    counts = progress[0].observedMetrics["fairness"].asDict()
    assert counts == {"gold": 20, "free": 20, "_other": 20}


@pytest.mark.parametrize("queues", [[], ["a", "a"], "gold"])
def test_queues_to_observe_must_differ(spark: Any, queues: list[str] | str) -> None:
    with pytest.raises(ValueError, match="different names"):
        observe_fairness(spark.range(1), queues)
