"""A driver of one query that goes on until it is told to stop, and appends the bodies that it sees to a file.

Usage: soaked.py OPTIONS FOLDER; the file is FOLDER/seen, and FOLDER/stop is what stops it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from integration.rabbitmq import eventually
from spark.queries import load, query
from spark.session import start

from fairsched.spark import register


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    spark = start("local[2]")
    register(spark)

    def append(frame: Any, _number: int) -> None:
        with (folder / "seen").open("ab") as file:
            file.writelines(bytes(row.body) + b"\n" for row in frame.select("body").collect())

    with query(load(spark, options), folder / "checkpoint", append, processingTime="500 milliseconds") as running:
        eventually(lambda: (folder / "stop").exists() or not running.isActive, 1800)
        if running.exception() is not None:
            raise running.exception()
        print(running.lastProgress["batchId"], flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
