"""A driver that is to be killed: several queries, each of which waits at a place of its own.

Usage: killed.py SPECIFICATION, a JSON list of {"options": …, "checkpoint": …, "sink": …, "reached": …}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.rabbitmq import eventually
from support.spark.faulty import FaultySource
from support.spark.queries import into_files, load
from support.spark.session import start


def main() -> None:
    specification = json.loads(sys.argv[1])
    spark = start(f"local[{2 * len(specification)},4]")
    spark.dataSource.register(FaultySource)
    for one in specification:
        load(spark, one["options"], "faulty").writeStream.foreachBatch(into_files(Path(one["sink"]))).option(
            "checkpointLocation", one["checkpoint"]
        ).start()
        # One after the other: Spark gives a worker ten seconds to start.
        eventually(Path(one["reached"]).exists, 120)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
