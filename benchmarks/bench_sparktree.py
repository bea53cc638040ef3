"""What a user of the Spark source pays: processor time of the whole process tree, by default options.

Beside it stands what one would write without the source: plain pika in `mapInArrow`, two queues' consumers at a time.
The JVM, Spark's daemons, all Python workers and every process that ended are counted, in a Spark session of its own
with Spark's defaults, local[2]. 200 000 messages of 200 bytes in ten queues.

* The running query: a query that has been started, and finds the messages when it is triggered again.
* The whole run: `availableNow` with its start, for which Spark starts a Python that imports pyspark.

This file runs itself as a program: one process has one Spark session.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interleave import record

pytestmark = pytest.mark.timeout(1800)
QUEUES = [f"bench-tree-{number}" for number in range(10)]
TOTAL, BODY = 200_000, b"x" * 200
EACH, ROUNDS = TOTAL // len(QUEUES), 3
COLUMNS = ["body", "queue", "routing_key", "exchange", "message_id", "redelivered"]
SCHEMA = "body BINARY, queue STRING, routing_key STRING, exchange STRING, message_id STRING, redelivered BOOLEAN"


def test_source_beside_plain_pika_in_the_whole_tree(benchmark: Any) -> None:
    """Microseconds a message, of all processes."""
    # Users' packages are compiled to bytecode when they are installed.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, __file__], check=True, stdout=subprocess.PIPE, text=True, env=settings)
    cost: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    record(
        benchmark,
        {
            "Spark, all processes : pika in mapInArrow, running query": (cost["running"] / cost["plain"], "<=", 1 / 3),
            "Spark, all processes : pika in mapInArrow, with its start": (cost["whole"] / cost["plain"], "<=", 1),
        },
        **{f"{kind}_us": taken for kind, taken in cost.items()},
    )
    benchmark.pedantic(lambda: None, rounds=1)


# The program --------------------------------------------------------------------------------------------------------


def plain(url: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for mapInArrow that reads the queues named in its rows, in batches of 10 000 messages."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pika
        import pyarrow as pa

        def made(rows: list[Any]) -> Any:
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            return pa.RecordBatch.from_arrays(columns, names=COLUMNS)

        for name in (name for batch in batches for name in batch.column(0).to_pylist()):
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=10_000)
                rows: list[Any] = []
                left = EACH
                for method, properties, body in channel.consume(name):
                    rows.append(
                        (body, name, method.routing_key, method.exchange, properties.message_id, method.redelivered)
                    )
                    left -= 1
                    if len(rows) == 10_000 or not left:
                        yield made(rows)
                        channel.basic_ack(method.delivery_tag, multiple=True)
                        rows = []
                    if not left:
                        break

    return read


class Tree:
    """The processor time of a JVM and its descendants, of those that ended as well."""

    def __init__(self) -> None:
        import psutil

        [self._root] = [one for one in psutil.Process().children() if "java" in one.name()]

    def seconds(self) -> float:
        """User and system time so far."""
        import psutil

        found = 0.0
        for one in [self._root, *self._root.children(recursive=True)]:
            try:
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            found += times.user + times.system + times.children_user + times.children_system
        return found


class Measurement:
    """One broker, one session; each method returns microseconds a message."""

    def __init__(self, node: Any, spark: Any, folder: Path) -> None:
        self._node, self._spark, self._folder = node, spark, folder
        self._tree = Tree()
        self._number = 0
        node.declare(*QUEUES)
        self._running = self._query(processingTime="10 seconds")

    def _query(self, **trigger: Any) -> Any:
        self._number += 1
        place = self._folder / str(self._number)
        frame = (
            self._spark.readStream.format("rabbitmq")
            .options(url=self._node.url, queues=",".join(QUEUES), spoolLocation=str(place / "spool"))
            .load()
        )
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(place / "checkpoint"))
        return writer.trigger(**trigger).start()

    def _fill(self) -> None:
        for name in QUEUES:
            self._node.publish(name, [BODY] * EACH, delivery_mode=2, message_id="0123456789abcdef")

    def _measured(self, action: Callable[[], None]) -> float:
        before = self._tree.seconds()
        action()
        return (self._tree.seconds() - before) / TOTAL * 1e6

    def running(self) -> float:
        """The query that runs finds the messages."""
        return self._measured(self._run)

    def _run(self) -> None:
        seen = {one["batchId"] for one in self._running.recentProgress}
        self._fill()
        until, rows = time.monotonic() + 120, 0
        while rows < TOTAL:
            new = [one for one in self._running.recentProgress if one["batchId"] not in seen]
            rows = sum({one["batchId"]: one["numInputRows"] for one in new}.values())
            if time.monotonic() > until:
                raise TimeoutError(f"{rows} of {TOTAL} rows in 120 s: {self._running.exception()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop the running query."""
        self._running.stop()

    def whole(self) -> float:
        """A query is started, reads all, and ends."""
        self._fill()

        def run() -> None:
            query = self._query(availableNow=True)
            query.awaitTermination()
            assert sum(one["numInputRows"] for one in query.recentProgress) == TOTAL

        return self._measured(run)

    def plain(self) -> float:
        """Pika reads the queues, in two tasks at a time."""
        self._fill()
        frame = self._spark.createDataFrame([(name,) for name in QUEUES], "name STRING").repartition(2)
        found = frame.mapInArrow(plain(self._node.url), SCHEMA)
        return self._measured(lambda: found.write.format("noop").mode("overwrite").save())


def main() -> None:
    """Print the medians as JSON."""
    here = Path(__file__).parent
    paths = [str(here.parent / "tests"), str(here.parent / "src")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    from support.rabbitmq import Node
    from support.spark.home import find_java

    os.environ.update(JAVA_HOME=find_java(), PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession

    from fairsched.spark import register

    with Node() as node, tempfile.TemporaryDirectory() as folder:
        quiet = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", "spark.ui.enabled": "false"}
        spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
        register(spark)
        found: dict[str, list[float]] = {"plain": [], "running": [], "whole": []}
        # The queries would take one another's messages.
        for number in range(ROUNDS + 1):
            one = Measurement(node, spark, Path(folder, str(number)))
            one.running()  # its workers have imported nothing yet
            found["running"].append(one.running())
            one.stop()
            found["plain"].append(one.plain())
            found["whole"].append(one.whole())
            print({kind: taken[-1] for kind, taken in found.items()}, file=sys.stderr)
        spark.stop()
    print(json.dumps({kind: statistics.median(taken[1:]) for kind, taken in found.items()}))


if __name__ == "__main__":
    main()
