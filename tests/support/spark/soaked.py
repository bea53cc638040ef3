"""A driver of one query that goes on until it is told to stop, and appends the bodies that it sees to a file.

Usage: soaked.py OPTIONS FOLDER; the file is FOLDER/seen, and FOLDER/stop is what stops it. FOLDER/heap says how many
bytes of the JVM's heap were alive when it was last looked at, every few seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from support.spark.queries import load, query
from support.spark.session import start
from support.waiting import eventually

from fairsched.spark import register

#: Seconds between two looks at the heap.
PAUSE = 5.0
#: What Spark remembers of batches for its pages and progress reaches its bound within a minute, not within an hour.
BRIEF = {
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.minBatchesToRetain": "20",
}


class Heap:
    """Says in a file, every few seconds, how much of the JVM's heap is alive."""

    def __init__(self, spark: Any, path: Path) -> None:
        self._jvm, self._path, self._next = spark.sparkContext._jvm, path, 0.0

    def look(self) -> None:
        if time.monotonic() >= self._next:
            beside = self._path.with_suffix(".new")
            beside.write_text(str(min(self._alive() for _ in range(2))))
            os.replace(beside, self._path)
            self._next = time.monotonic() + PAUSE

    def _alive(self) -> int:
        # The query goes on, so what it has taken since is counted too: the lesser of two has less of that.
        self._jvm.System.gc()
        runtime = self._jvm.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    spark = start("local[2]", **BRIEF)
    register(spark)
    heap = Heap(spark, folder / "heap")

    def over() -> bool:
        heap.look()
        return (folder / "stop").exists() or not running.isActive

    def append(frame: Any, _number: int) -> None:
        with (folder / "seen").open("ab") as file:
            file.writelines(bytes(row.body) + b"\n" for row in frame.select("body").collect())

    with query(load(spark, options), folder / "checkpoint", append, processingTime="500 milliseconds") as running:
        eventually(over, 1800)
        if running.exception() is not None:
            raise running.exception()
        print(running.lastProgress["batchId"], flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
