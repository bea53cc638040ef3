"""`fairsched pipeline` from the command to its first committed batch, beside the same from Spark's own home.

An embedded broker holds 50 messages in each of three queues; Spark is `local[2]`, as in docs/howto/pipeline.md.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from interleave import medians, record
from support.rabbitmq import EmbeddedNode
from support.spark.home import find_java
from support.waiting import eventually

pytestmark = pytest.mark.timeout(900)
QUEUES = ("gold", "silver", "free")
FILE = """
[source]
queues = { gold = 10, silver = 3, free = 1 }
spoolLocation = "SPOOL"
[partition]
key = "routing_key"
members = { "shard-0" = 1, "shard-1" = 1 }
[transform]
function = "orders:forward"
[sink]
format = "parquet"
path = "table"
partitionBy = ["queue"]
checkpointLocation = "checkpoint"
trigger = "10s"
[spark]
"spark.master" = "local[2]"
"""
FUNCTION = "def forward(batch):\n    return batch\n"


@pytest.fixture
def broker() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as made:
        made.declare(*QUEUES)
        yield made


def first_batch(broker: EmbeddedNode, folder: Path, **variables: str) -> tuple[int, float]:
    """Nanoseconds until the first batch is committed, and seconds of processor time of all processes until then."""
    folder.mkdir()
    (folder / "pipeline.toml").write_text(FILE.replace("SPOOL", str(folder / "spool")))
    (folder / "orders.py").write_text(FUNCTION)
    for queue in QUEUES:
        broker.publish(queue, [b"%d" % number for number in range(50)])
    environment = {**os.environ, "FAIRSCHED_URL": broker.url, "JAVA_HOME": find_java(), **variables}
    started = time.perf_counter_ns()
    command = psutil.Popen(
        [sys.executable, "-m", "fairsched.cli", "pipeline", "pipeline.toml"],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually((folder / "checkpoint" / "commits" / "0").exists, 150, "the first batch is committed")
        elapsed = time.perf_counter_ns() - started
        used = sum(processor_time(one) for one in [command, *command.children(recursive=True)])
    finally:
        command.terminate()
        command.wait(60)
    return elapsed, used


def processor_time(process: psutil.Process) -> float:
    """Seconds of a process and of its children that have ended; 0.0 of one that has ended since it was listed."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


def test_first_batch(benchmark: Any, broker: EmbeddedNode, tmp_path: Path) -> None:
    numbers = itertools.count()
    processor: dict[str, list[float]] = {"links": [], "own": []}

    def timed(name: str, **variables: str) -> Callable[[], int]:
        def run() -> int:
            elapsed, used = first_batch(broker, tmp_path / str(next(numbers)), **variables)
            processor[name].append(used)
            return elapsed

        return run

    links = timed("links", XDG_CACHE_HOME=str(tmp_path / "cache"))
    # Whoever sets up Spark gets it as it is.
    own = timed("own", SPARK_HOME=str(Path(pyspark.__file__).parent))
    found = benchmark.pedantic(medians, args=(5,), kwargs={"links": links, "own": own}, rounds=1)
    record(
        benchmark,
        {"`fairsched pipeline` to its first batch / from Spark's home": (found["links"] / found["own"], "<=", 0.75)},
        seconds=found["links"], own_seconds=found["own"],
        processor=sorted(processor["links"])[3], own_processor=sorted(processor["own"])[3],
    )  # fmt: skip
