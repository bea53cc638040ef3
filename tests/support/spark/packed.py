"""A driver whose executors have nothing but a packed environment, and which itself plans in it.

Usage: packed.py ARCHIVE OPTIONS CHECKPOINT SINK, with PYSPARK_PYTHON=./env/bin/python; prints JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support.spark.queries import drain, into_files, load
from support.spark.session import start
from support.spark.smallframes import cases


def whence(_rows: Any) -> Any:
    """Return where an executor's Python is, and where that has its modules from."""
    import sys

    import pyarrow as pa

    import fairsched._core as core
    import pyspark_fairsched

    yield {
        "python": sys.executable, "engine": core.__file__, "found by name": pyspark_fairsched.__file__,
        "arrow": pa.__file__, "path": sys.path,
    }  # fmt: skip


def main() -> None:
    archive, options, checkpoint, sink = sys.argv[1:]
    # From here on nothing leads to the source tree: Spark's processes inherit the environment.
    del os.environ["PYTHONPATH"]
    settings = {"spark.archives": f"{archive}#env", "spark.executor.memory": "900m"}
    spark = start("local-cluster[2,1,900]", **settings)
    print(json.dumps(spark.sparkContext.parallelize(range(4), 4).mapPartitions(whence).collect()), flush=True)
    print(json.dumps(list(cases(spark))), flush=True)
    # Nothing is registered: Spark's processes find the format in the environment, where the wheel put it.
    drain(load(spark, json.loads(options)), Path(checkpoint), into_files(Path(sink)))
    spark.stop()


if __name__ == "__main__":
    main()
