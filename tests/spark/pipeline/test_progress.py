"""The counts of a pipeline: every batch once, and those that could not be counted are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from support.waiting import eventually

from fairsched.spark.fairnessreport import observe_fairness
from fairsched.spark.pipeline.progress import PipelineProgress


@pytest.mark.parametrize("kept", [100, 2])
def test_batches_whose_progress_is_gone_are_known(spark: Any, tmp_path: Path, kept: int) -> None:
    name = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(name, str(kept))
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    named = observe_fairness(stream.select(F.lit("gold").alias("queue")), ["gold"], name="shares")
    query = named.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    progress = PipelineProgress({"gold": 1})
    try:
        for more in (1, 6):
            least = more + (query.lastProgress.batchId if query.lastProgress is not None else 0)
            eventually(lambda least=least: (last := query.lastProgress) and last.batchId >= least, 60, f"batch {least}")
            progress.add(query.recentProgress, "shares", "ages")
        progress.add(query.recentProgress, "shares", "ages")
    finally:
        query.stop()
        spark.conf.unset(name)
    report = progress.report(1.0)
    counted = report["total"] // 10
    assert (report["batches"], report["judged_batches"]) == (counted, 0)  # this source says nothing of a backlog
    assert counted == len(progress.ages)
    assert (progress.missed > 0) == (kept == 2)
    assert progress.missed + counted == progress.ages[-1].batch - progress.ages[0].batch + 1
