"""An archive of the classes that Spark loads: a JVM maps what another one has found, parsed and verified.

It halves the processor time of a driver with a small query (20 and 11 s). Making it takes that of two such drivers, so
it stays in `build`. A JVM with another class path, as with a configuration folder, does without it.

Source: "Class Data Sharing" in the manual of `java`, -XX:ArchiveClassesAtExit.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from support.spark.home import BRIEF, find_java, shared
from support.spark.queries import drain, into_files, load
from support.spark.session import start

from fairsched.spark.pipeline.home import link


def make() -> Path:
    """Make the home that all tests share and its archive, unless they are there; return the home."""
    place = shared()
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_there(place / "home", place / "classes.jsa"):
            shutil.rmtree(place / "home", ignore_errors=True)
            link(place / "home")
            _run(place)
    return place / "home"


def _is_there(home: Path, archive: Path) -> bool:
    """Whether both were made of the Spark that is installed now."""
    jars = home / "jars"
    return jars.exists() and archive.exists() and archive.stat().st_mtime > jars.stat().st_mtime


def _run(place: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "JAVA_HOME": find_java(), "SPARK_HOME": str(place / "home"),
                       "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": paths}  # fmt: skip
        done = subprocess.run(
            [sys.executable, __file__, str(place / "new.jsa")], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    os.replace(place / "new.jsa", place / "classes.jsa")


class Numbers(DataSource):
    """Ten numbers, as a stream."""

    def schema(self) -> str:
        return "number LONG"

    def streamReader(self, schema: Any) -> Reader:
        return Reader()


class Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"end": 10}

    def partitions(self, *_: Any) -> list[InputPartition]:
        return [InputPartition(first) for first in (0, 5)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((partition.value + number,) for number in range(5))


def main() -> None:
    """Do what tests do, in a JVM that leaves its classes where it is told."""
    folder = Path.cwd()
    options = f"{BRIEF} -XX:ArchiveClassesAtExit={sys.argv[1]} -Xlog:disable"
    plugin = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
              "spark.connect.grpc.binding.port": "0"}  # fmt: skip
    spark = start("local[2]", **plugin, **{"spark.driver.extraJavaOptions": options})
    spark.dataSource.register(Numbers)
    frame = load(spark, {}, "Numbers").selectExpr("number", "cast(number as STRING) AS text", "now() AS at")
    drain(frame.mapInArrow(lambda batches: batches, frame.schema), folder / "checkpoint", into_files(folder / "sink"))
    spark.read.parquet(str(folder / "sink")).groupBy("batch").count().orderBy("batch").collect()
    spark.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    # The JVM ends when no process is left that could tell it anything.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
