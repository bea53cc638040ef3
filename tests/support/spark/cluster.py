"""A driver whose executors are processes of their own, have fairsched from an archive, and are killed in their tasks.

Usage: cluster.py ARCHIVE SPECIFICATION, a JSON list of {"options": …, "checkpoint": …, "sink": …}; prints JSON lines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.spark.faulty import FaultySource
from support.spark.queries import drain, into_files, load
from support.spark.session import start


def whence(_rows: Any) -> Any:
    """Return where an executor has the compiled engine from, and what it computes."""
    import fairsched._core as core

    yield core.__file__, core.Dwrr({"a": 1}).names[0]


def main() -> None:
    archive, specification = sys.argv[1], json.loads(sys.argv[2])
    settings = {"spark.archives": f"{archive}#fslib", "spark.executorEnv.PYTHONPATH": "./fslib"}
    spark = start("local-cluster[2,1,900]", **settings, **{"spark.executor.memory": "900m"})
    print(json.dumps(spark.sparkContext.parallelize(range(4), 4).mapPartitions(whence).collect()), flush=True)
    spark.dataSource.register(FaultySource)
    for one in specification:
        drain(load(spark, one["options"], "faulty"), Path(one["checkpoint"]), into_files(Path(one["sink"])))
        print(json.dumps("drained"), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
