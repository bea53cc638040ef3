"""Memory and files of Spark's workers that read one large partition: the driver of a query measures its own.

Usage: measured.py SMALL LARGE FOLDER, options of a source of a few messages and of the large one; prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
from support.spark.processes import family, peak
from support.spark.session import start

from fairsched.spark import register


def drain(spark: Any, options: dict[str, str], folder: Path) -> list[int]:
    """Read what there is into nothing, and return how many rows each batch had."""
    rows = spark.readStream.format("rabbitmq").options(**options).load()
    running = (
        rows.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )
    assert running.awaitTermination(240)
    return [one.numInputRows for one in running.recentProgress]


def workers() -> dict[int, psutil.Process]:
    return {one.pid: one for one in family(psutil.Process())["workers"]}


def main() -> None:
    small, large, folder = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    spark = start("local[1]")
    register(spark)
    # The worker that has read a few messages has all its modules, and waits for the next task.
    drain(spark, small, folder / "small")
    idle = {pid: one.memory_info().rss for pid, one in workers().items()}
    batches = drain(spark, large, folder / "large")
    # One that came since is compared with the least of those that were there.
    above = {pid: peak(pid) - idle.get(pid, min(idle.values())) for pid in workers()}
    print(json.dumps({"batches": batches, "idle": idle, "above": above}))
    spark.stop()


if __name__ == "__main__":
    main()
