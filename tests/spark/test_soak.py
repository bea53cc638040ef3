"""Minutes of small batches, which stand for an hour: no process of ours grows, and nothing is lost or left.

A batch is half a second, so this is some hundreds of batches and the work of planning, reading, spooling and committing
is done as often as in an hour of batches of six seconds. What grows with each batch or message shows all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.growth import Sample, growth, held
from support.rabbitmq import Node
from support.spark.processes import MEGABYTE, family
from support.spark.running import options_of
from support.waiting import eventually

#: Seconds before the first sample that counts, and until the last one.
WARM_UP, DURATION = 90.0, 60 * float(os.environ.get("SOAK_MINUTES", "3.5"))
#: Messages in each round, and seconds from one to the next: 200 a second.
ROUND, PAUSE = 50, 0.25


def sample(driver: psutil.Process, port: int, folder: Path) -> Sample:
    """Return what each of the processes holds now."""
    found: Sample = {"broker connections": 0, "jvm heap: MB": int((folder / "heap").read_text()) / MEGABYTE}
    for kind, processes in family(driver).items():
        found[f"{kind}: processes"] = len(processes)
        for one in processes:
            found.update(held(f"{kind} {one.pid}", one))
        for one in processes if kind != "jvm" else []:
            ends = [end.raddr.port for end in one.net_connections("tcp") if end.raddr]
            found["broker connections"] += ends.count(port)
    found["spool files"] = sum(len(files) for _folder, _folders, files in os.walk(folder / "spool"))
    return found


def samples(driver: subprocess.Popen[str], port: int, folder: Path, seconds: float) -> Iterator[Sample]:
    """About a sample a second for so many seconds, but those in which a process ended while it was looked at."""
    process = psutil.Process(driver.pid)
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert driver.poll() is None
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            yield sample(process, port, folder)
        pause.wait(1.0)


class Publisher:
    """Sends rounds of messages in a thread until it is told to stop."""

    def __init__(self, node: Node, names: list[str]) -> None:
        self.sent: Counter[bytes] = Counter()
        self._node, self._names = node, names
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(PAUSE):
            name = self._names[number % len(self._names)]
            bodies = [f"{name}/{number}/{index}".ljust(500, ".").encode() for index in range(ROUND)]
            self._node.publish(name, bodies, delivery_mode=2)
            self.sent.update(bodies)
            number += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


def check(grown: Mapping[str, float]) -> None:
    """Fail if something of ours grew, or the JVM that is the driver's other half.

    The JVM takes memory from the system as it likes, so only what is alive in its heap counts, and its pools take and
    leave a thread or a file. A third has some eighty batches: one thing kept of each would be far more.
    """
    for kind in ("driver", "planner", "workers"):
        assert grown[f"{kind}: MB"] <= 0.5, grown
        assert grown[f"{kind}: files"] <= 0, grown
        assert grown[f"{kind}: threads"] <= 0, grown
        assert grown[f"{kind}: processes"] <= 1, grown
    assert grown["jvm heap: MB"] <= 2, grown
    assert grown["jvm: files"] <= 4, grown
    assert grown["jvm: threads"] <= 4, grown
    assert grown["jvm: processes"] <= 0, grown
    assert grown["broker connections"] <= 0, grown
    assert grown["spool files"] <= 1, grown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_and_nothing_is_lost(
    launch: Any, broker: Node, queues: Callable[..., list[str]], tmp_path: Path, record_property: Any
) -> None:
    names = queues(3)
    spool, seen = tmp_path / "spool", tmp_path / "seen"
    options = options_of(broker, dict.fromkeys(names, 1), spool, pollTimeout="200ms", numPartitions=2)
    # Arrow's own pool takes memory in huge pages: each is a step of 2 MB, whenever a batch is first that large.
    driver = launch("soaked", json.dumps(options), str(tmp_path), ARROW_DEFAULT_MEMORY_POOL="system")
    publisher = Publisher(broker, names)
    try:
        eventually(seen.exists, 240)
        warm = [one for one in samples(driver, broker.port, tmp_path, WARM_UP) if one["planner: processes"]]
        assert warm, "no planner among the driver's processes"
        found = list(samples(driver, broker.port, tmp_path, DURATION - WARM_UP))
    finally:
        publisher.stop()
    eventually(lambda: seen.read_bytes().count(b"\n") >= publisher.sent.total(), 60, "all messages are seen")
    (tmp_path / "stop").touch()
    said, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0
    grown = growth(found)
    figures = {
        "batches": int(said.split()[-1]),
        "messages": publisher.sent.total(),
        "growth": grown,
        "samples": found[:: len(found) // 12],
    }
    record_property("soak", figures)
    print(json.dumps(figures, indent=1))
    assert Counter(seen.read_bytes().splitlines()) == publisher.sent
    eventually(lambda: sum(broker.count(name) for name in names) == 0)
    # Only the last batch, which the next run would commit, is still there.
    [epoch] = spool.iterdir()
    assert len(list(epoch.glob("[0-9]*"))) == 1
    check(grown)
