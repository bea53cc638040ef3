"""A driver on a cluster: a stream into a queue, and a queue into files, both until they are told to stop.

Usage: clustered.py MASTER FOLDER SPECIFICATION, a JSON object of options for "stream", "queue" and "sink". FOLDER/stop
is what stops it, when both have read what there is. With a fault in the options, the second query starts when the first
has reached it: Spark gives a planner ten seconds to start, whatever else is going on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.spark.faulty import FaultySource
from support.spark.queries import into_files, load
from support.spark.session import start
from support.waiting import eventually


def loaded(spark: Any, options: dict[str, str]) -> Any:
    return load(spark, options, "faulty" if "fault" in options else "rabbitmq")


def until(condition: Any, *queries: Any, seconds: float) -> None:
    """Wait, but no longer than the queries go on."""

    def met() -> bool:
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
        return bool(condition())

    eventually(met, seconds)


def main() -> None:
    master, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    spark = start(master, **{"spark.executor.memory": "600m", "spark.executor.cores": "1"})
    spark.dataSource.register(FaultySource)
    rows = loaded(spark, given["stream"]).select("body")
    writer = rows.writeStream.format("rabbitmq").options(**given["sink"])
    streams = writer.option("checkpointLocation", str(folder / "streams-checkpoint")).start()
    if "fault" in given["stream"]:
        until((folder / "stream" / "reached").exists, streams, seconds=300)
    sink = loaded(spark, given["queue"]).writeStream.foreachBatch(into_files(folder / "rows"))
    queues = sink.option("checkpointLocation", str(folder / "queues-checkpoint")).start()
    until((folder / "stop").exists, streams, queues, seconds=900)
    for query in (streams, queues):
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
