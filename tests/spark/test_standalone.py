"""A standalone cluster of which a worker, the executors or the driver are killed while batches run on it.

A stream is read into a queue by the sink, and a queue into files that are idempotent by the number of the batch. In the
second batch the task of each waits, so both are in the middle of one when the killing begins: that of the stream has
given its rows, and some may be published; that of the queue has published its segment and acknowledged nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rabbitmq import Node
from support.spark.faulty import fault, parent_of
from support.spark.launched import SLOW_START, end
from support.spark.running import options_of, unique
from support.spark.standalone import Standalone
from support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.rabbitmq("streams")]

MESSAGES, BATCH = 800, 400


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    found = Standalone(tmp_path_factory.mktemp("cluster"), environment)
    try:
        found.start()
        yield found
    finally:
        found.close()


class Job:
    """A stream and a queue with messages, and drivers that read them, one after the other."""

    def __init__(self, launch: Any, cluster: Standalone, broker: Node, folder: Path, names: list[str]) -> None:
        self.stream, self.queue, self.sink = names
        self.folder, self.cluster, self.broker = folder, cluster, broker
        self._launch = launch
        for name in ("stream", "queue"):
            (folder / name).mkdir()
        reading = {"maxMessagesPerTrigger": BATCH, "pollTimeout": "1s"}
        self._options = {
            "stream": options_of(broker, {}, None, startingOffsets="earliest", streams=self.stream, **reading),
            "queue": options_of(broker, {self.queue: 1}, folder / "spool", **reading),
            "sink": {"url": broker.url, "routingKey": self.sink},
        }
        for name in ("queues", "ackMode"):
            del self._options["stream"][name]
        self._faults = {
            "stream": fault("yielded", "wait", folder / "stream", 2),
            "queue": fault("published", "wait", folder / "queue", 2),
        }
        self._starts = 0
        self.start()

    def start(self, *, waiting: bool = True) -> None:
        """Start a driver whose tasks wait in their second batches, or do not."""
        self._waiting = waiting
        options = {name: dict(given) for name, given in self._options.items()}
        if waiting:
            for name, value in self._faults.items():
                options[name]["fault"] = value
        self._starts += 1
        self._log = self.folder / f"driver-{self._starts}.log"
        with self._log.open("wb") as log:
            arguments = self.cluster.url, str(self.folder), json.dumps(options)
            self.driver: subprocess.Popen[str] = self._launch("clustered", *arguments, stderr=log.fileno())

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait; start the driver again if Spark was too slow for itself, and fail if it ended for another reason."""

        def met() -> bool:
            if condition():
                return True
            if self.driver.poll() is not None:
                said = self._log.read_text()
                assert SLOW_START in said, said[-4000:]
                assert self._starts < 5, "a planner was never up in time"
                self.start(waiting=self._waiting)
            return False

        eventually(met, 300, what)

    def reach(self) -> None:
        """Wait until the tasks do."""
        for name in ("stream", "queue"):
            self.until((self.folder / name / "reached").exists, f"the second batch of the {name}")

    def executor(self, name: str) -> int:
        """The process that runs the task of the stream or queue."""
        return int((self.folder / name / "executor").read_text())

    def go_on(self, name: str) -> None:
        (self.folder / name / "go").touch()

    def finish(self) -> None:
        """Wait until all rows are there, and let the driver end."""
        self.until(lambda: len({*self.rows().column("body").to_pylist()}) == MESSAGES, "rows of the queue")
        self.until(lambda: self.broker.count(self.sink) >= MESSAGES, "messages of the stream")
        self.until(lambda: self.broker.left(self.queue) == 0, "the queue is empty")
        (self.folder / "stop").touch()
        self.until(lambda: self.driver.poll() == 0, "the driver ends")

    def rows(self) -> pa.Table:
        """Return the contents of the files; nothing while one of them is just replaced."""
        try:
            return pq.read_table(self.folder / "rows", columns=["body", "redelivered", "batch"])
        except (OSError, pa.ArrowInvalid):
            return pa.table({"body": []})

    def sent(self) -> Counter[tuple[bytes, str]]:
        """Bodies and ids of what the sink published."""
        found: Counter[tuple[bytes, str]] = Counter()
        with self.broker.connect() as channel:
            while (one := channel.basic_get(self.sink, auto_ack=True))[0] is not None:
                found[one[2], one[1].message_id] += 1
        return found


@pytest.fixture
def job(launch: Any, cluster: Standalone, broker: Node, queues: Any, tmp_path: Path) -> Job:
    [stream] = queues(1, arguments={"x-queue-type": "stream"})
    names = [stream, *queues(2)]
    for name in names[:2]:
        broker.publish(name, unique(name, MESSAGES), delivery_mode=2)
    return Job(launch, cluster, broker, tmp_path, names)


def check(job: Job) -> None:
    """Nothing is lost; the queue's segment comes once more, and the stream's copies have one id.

    As the table in docs/howto/spark.md promises.
    """
    found = job.rows().to_pylist()
    expected = Counter(unique(job.queue, MESSAGES))
    segment = [row["body"] for row in found if row["batch"] == 1]
    assert len(segment) == BATCH
    assert Counter(row["body"] for row in found) == expected + Counter(segment)
    copies = Counter(row["body"] for row in found if row["redelivered"])
    assert copies == Counter(segment)
    sent = job.sent()
    assert sorted(body for body, _id in sent) == sorted(unique(job.stream, MESSAGES))
    assert len({name for _body, name in sent}) == MESSAGES
    assert {name.split("-")[-3] for (_body, name), count in sent.items() if count > 1} <= {"2"}


def test_a_worker_that_is_killed(job: Job, cluster: Standalone) -> None:
    job.reach()
    executor = job.executor("queue")
    try:
        cluster.kill_worker(parent_of(executor))
        # The executor ends by itself; until then its task holds messages.
        eventually(lambda: not Path(f"/proc/{executor}").exists(), 60, "the executor ends with its worker")
        job.go_on("stream")
        job.finish()
    finally:
        cluster.fill_up()
    check(job)


def test_executors_that_are_killed(job: Job) -> None:
    job.reach()
    assert job.executor("stream") != job.executor("queue")
    for name in ("stream", "queue"):
        os.kill(job.executor(name), signal.SIGKILL)
    job.finish()
    check(job)


def test_a_driver_that_is_killed(job: Job) -> None:
    job.reach()
    assert job.driver.poll() is None
    end(job.driver)
    job.start(waiting=False)
    job.finish()
    check(job)
