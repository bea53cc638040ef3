"""A driver whose executors have nothing but a packed environment, and which itself plans in it.

Usage: packed.py ARCHIVE OPTIONS CHECKPOINT SINK, with PYSPARK_PYTHON=./env/bin/python; prints JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from spark.queries import drain, into_files, load
from spark.session import start

from fairsched import HashRing
from fairsched.spark import register, ring_partition


def whence(_rows: Any) -> Any:
    """Where an executor's Python is, and where that has its modules from."""
    import sys

    import pyarrow as pa

    import fairsched._core as core

    yield {"python": sys.executable, "engine": core.__file__, "arrow": pa.__file__, "path": sys.path}


def places(spark: Any, keys: list[str]) -> list[list[Any]]:
    """Where the executors' ring places keys, and where this process's does."""
    ring = HashRing({"a": 1, "b": 2}, points_per_weight=64)
    frame = spark.createDataFrame([Row(key=key) for key in keys]).repartition(4)
    found = frame.select("key", ring_partition("key", ring).alias("place")).collect()
    return [[row.key, row.place, ring.names.index(ring.route(row.key))] for row in found]


def main() -> None:
    archive, options, checkpoint, sink = sys.argv[1:]
    # From here on nothing leads to the source tree: Spark's processes inherit the environment.
    del os.environ["PYTHONPATH"]
    settings = {"spark.archives": f"{archive}#env", "spark.executor.memory": "900m"}
    spark = start("local-cluster[2,1,900]", **settings)
    print(json.dumps(spark.sparkContext.parallelize(range(4), 4).mapPartitions(whence).collect()), flush=True)
    print(json.dumps(places(spark, [str(number) for number in range(200)])), flush=True)
    register(spark)
    drain(load(spark, json.loads(options)), Path(checkpoint), into_files(Path(sink)))
    spark.stop()


if __name__ == "__main__":
    main()
