"""A driver that is to be killed: several queries, each of which waits at a place of its own.

Usage: killed.py SPECIFICATION, a JSON list of {"options": …, "checkpoint": …, "sink": …, "reached": …}; with
"dead", the options of a dead-letter route, also "step" and "batch": where that query stops.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.spark.faulty import FaultySource
from support.spark.queries import into_files, load
from support.spark.refusing import refusing, stopping, watch_reading
from support.spark.session import start
from support.waiting import eventually


def main() -> None:
    specification = json.loads(sys.argv[1])
    spark = start(f"local[{2 * len(specification)},4]")
    spark.dataSource.register(FaultySource)
    watch_reading()
    for one in specification:
        source = "faulty" if "fault" in one["options"] else "rabbitmq"
        load(spark, one["options"], source).writeStream.foreachBatch(sink_of(one)).option(
            "checkpointLocation", one["checkpoint"]
        ).start()
        # One after the other: Spark gives a worker ten seconds to start.
        eventually(Path(one["reached"]).exists, 120)
    spark.streams.awaitAnyTermination()


def sink_of(one: dict[str, Any]) -> Any:
    if "dead" not in one:
        return into_files(Path(one["sink"]))
    return refusing(Path(one["sink"]), one["dead"], stopping(one["step"], one["batch"], Path(one["reached"])))


if __name__ == "__main__":
    main()
