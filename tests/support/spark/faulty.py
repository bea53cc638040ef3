"""The data source with a hook in its tasks: they end, wait, or kill their executor where a test says so.

The option "fault" is JSON: the stage, the action, a folder for what is said between test and task, and the numbers of
the first and the last batch concerned. Only first attempts are: at partition 0 of queues, at every one of streams.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import StructType
from support.waiting import eventually

from fairsched.spark.datasource import RabbitMQDataSource
from fairsched.spark.source.options import source_options
from fairsched.spark.source.partition import PartitionReader
from fairsched.spark.source.queues import QueuesReader
from fairsched.spark.source.store import LocalStore
from fairsched.spark.source.streams import StreamsReader


def fault(stage: str, action: str, folder: Path, first: int = 1, last: int | None = None) -> str:
    """The option's value; batches count from 1, and without a last one it is the first alone."""
    batches = [first, first if last is None else last]
    return json.dumps({"stage": stage, "action": action, "folder": str(folder), "batches": batches})


def reached(folder: Path) -> list[str]:
    """Stage and batch of every fault that happened: a test in which none does shows nothing."""
    return (folder / "reached").read_text().split()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def interrupt(fault: dict[str, Any], stage: str, seq: int) -> None:
    """Do to this task what the test wants, if this is the place, and leave a note that it was done."""
    first, last = fault["batches"]
    context = TaskContext.get()
    if stage != fault["stage"] or not first <= seq <= last or (context is not None and context.attemptNumber()):
        return
    folder = Path(fault["folder"])
    if context is not None:
        # The worker is a child of the daemon, the daemon of the executor.
        (folder / "executor").write_text(str(parent_of(os.getppid())))
    with (folder / "reached").open("a") as file:
        file.write(f"{stage}/{seq}\n")
    if fault["action"] == "exit":
        os._exit(7)
    if fault["action"] == "kill executor":
        os.kill(parent_of(os.getppid()), signal.SIGKILL)
    eventually((folder / "go").exists, 120, f"{folder}/go comes")


class Watched(PartitionReader):
    """A partition reader to which something happens."""

    def __init__(self, *arguments: Any, fault: dict[str, Any]) -> None:
        super().__init__(*arguments)
        self._fault = fault
        if fault["stage"] == "written":
            self._watch_links(self._spool._store)

    def _watch_links(self, store: LocalStore) -> None:
        link = store._link

        def watched_link(beside: Path, path: Path) -> bool:
            if path.suffix == ".arrow":
                self.reached("written")
            return link(beside, path)

        # Of this store alone: Spark uses a worker again for tasks that are none of this reader's.
        store._link = watched_link

    def _collect(self) -> Any:
        self._connected()
        self.reached("connected")
        return super()._collect()

    def reached(self, stage: str) -> None:
        if self._part.index == 0:
            interrupt(self._fault, stage, self._part.seq)


class WatchedReader(QueuesReader):
    """A planner that notes its looks at the queues, and readers that are watched."""

    def __init__(self, options: Any, schema: StructType, fault: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self._fault = fault
        self.partition_reader = partial(Watched, fault=fault)

    def _look(self) -> dict[str, int]:
        if self._fault["action"] == "count":
            with (Path(self._fault["folder"]) / "looks").open("a") as file:
                file.write(f"{time.monotonic()}\n")
        return super()._look()


class WatchedStreams(StreamsReader):
    """A reader of streams that is interrupted after it has given its first rows."""

    fault: dict[str, Any]

    def read(self, partition: Any) -> Iterator[Any]:
        for number, batch in enumerate(super().read(partition)):
            yield batch
            if number == 0:
                # The batch before the first rows only notes where the streams begin.
                interrupt(self.fault, "yielded", int(TaskContext.get().getLocalProperty("streaming.sql.batchId")))


class FaultySource(RabbitMQDataSource):
    """The data source "faulty"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({key: value for key, value in options.items() if key.lower() != "fault"})
        self._fault = json.loads(options["fault"])

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamReader(self, schema: StructType) -> Any:
        options = source_options(self.options)
        if options.streams:
            reader = WatchedStreams(options, schema)
            reader.fault = self._fault
            return reader
        return WatchedReader(options, schema, self._fault)
