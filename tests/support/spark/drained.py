"""A driver that drains queries, one after the other.

Usage: drained.py SPECIFICATION, a JSON list of {"options": …, "checkpoint": …, "sink": …}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.spark.faulty import FaultySource
from support.spark.queries import drain, into_files, load
from support.spark.session import start

from fairsched.spark import register


def main() -> None:
    spark = start("local[2,4]")
    register(spark)
    spark.dataSource.register(FaultySource)
    for one in json.loads(sys.argv[1]):
        name = "faulty" if "fault" in one["options"] else "rabbitmq"
        drain(load(spark, one["options"], name), Path(one["checkpoint"]), into_files(Path(one["sink"])))
    spark.stop()


if __name__ == "__main__":
    main()
