"""What is lost and what is repeated when workers, executors and drivers die: nothing, and little.

Ten queues of 300 messages, quanta 4 to 40, batches of 1100, two partitions. The sink overwrites the files of a batch,
so it is idempotent by the number of the batch, and duplicates are those of the source.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.rabbitmq import Node, eventually
from spark.faulty import FaultySource, fault
from spark.launched import end, local_cluster_home
from spark.queries import Rows, drain, from_files, into_files, load, query
from spark.running import QUANTA, fill, options_of

import fairsched
from fairsched.spark import register

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Declare = Callable[..., list[str]]

#: Where partition 0 is stopped, and the messages of it that come twice.
STAGES = {"collected": False, "written": False, "published": True, "acknowledged": False}


def drained(node: Node, names: list[str]) -> bool:
    return sum(node.count(name) for name in names) == 0


def source(node: Node, names: list[str], folder: Path, **more: object) -> dict[str, str]:
    quanta = dict(zip(names, QUANTA, strict=True))
    return options_of(node, quanta, folder / "spool", maxMessagesPerTrigger=1100, numPartitions=2, **more)


@pytest.mark.parametrize("stage", STAGES)
def test_workers_that_end_in_every_batch(stage: str, spark: Any, broker: Node, queues: Declare, tmp_path: Path) -> None:
    names = queues(10)
    expected = fill(broker, names, 300)
    spark.dataSource.register(FaultySource)
    rows = Rows()
    with query(load(spark, source(broker, names, tmp_path, fault=fault(stage, "exit")), "faulty"),
               tmp_path / "checkpoint", rows):  # fmt: skip
        eventually(lambda: set(rows.bodies) == expected and drained(broker, names), 200)
    counts = Counter(rows.bodies)
    twice = {body for body, count in counts.items() if count > 1}
    if not STAGES[stage]:
        assert twice == set()
        return
    # Each time the first partition's messages of a batch were published and not acknowledged; they came once more.
    first = {bytes(row.body) for batch in rows.batches.values() for row in batch if row.part == 0}
    assert twice <= first
    assert twice
    seen: set[bytes] = set()
    for row in rows.all:
        assert bytes(row.body) not in seen or row.redelivered
        seen.add(bytes(row.body))


def test_drivers_that_are_killed(spark: Any, launch: Any, broker: Node, queues: Declare, tmp_path: Path) -> None:
    register(spark)
    names, expected, specification = {}, {}, []
    for stage in STAGES:
        folder = tmp_path / stage
        folder.mkdir()
        names[stage] = queues(10)
        expected[stage] = fill(broker, names[stage], 300)
        options = source(broker, names[stage], folder, fault=fault(stage, "wait", folder, 2))
        specification.append(options)
    stream = queues(1, arguments={"x-queue-type": "stream"})
    streamed = fill(broker, stream, 2000)
    (tmp_path / "stream").mkdir()
    options = {"url": broker.url, "streams": stream[0], "startingOffsets": "earliest", "maxMessagesPerTrigger": "1000",
               "fault": fault("", "wait", tmp_path / "stream")}  # fmt: skip
    specification.append(options)
    folders = [tmp_path / stage for stage in (*STAGES, "stream")]
    places = [
        {
            "options": options,
            "checkpoint": str(folder / "checkpoint"),
            "sink": str(folder / "sink"),
            "reached": str(folder / "reached"),
        }
        for options, folder in zip(specification, folders, strict=True)
    ]
    driver = launch("killed", json.dumps(places))
    eventually(lambda: driver.poll() is not None or all((one / "reached").exists() for one in folders), 200)
    assert driver.poll() is None
    end(driver)
    for stage, options in zip((*STAGES, "stream"), specification, strict=True):
        folder = tmp_path / stage
        plain = {name: value for name, value in options.items() if name != "fault"}
        all_there = streamed if stage == "stream" else expected[stage]

        def run(plain: dict[str, str] = plain, folder: Path = folder) -> list[bytes]:
            drain(load(spark, plain), folder / "checkpoint", into_files(folder / "sink"))
            return from_files(spark, folder / "sink")

        found = run()
        # What went back to the queue while the first run was planning is for the next one.
        if set(found) != all_there or (stage != "stream" and not drained(broker, names[stage])):
            found = run()
        assert set(found) == all_there, stage
        share = 1100 if STAGES.get(stage) else 0
        assert len(found) - len(all_there) <= share, stage
        if stage == "published":
            assert len(found) > len(all_there)


def archive(folder: Path) -> Path:
    """The package with its compiled modules, as executors get it."""
    path = folder / "lib.tar.gz"
    package = Path(fairsched.__file__).parent
    with tarfile.open(path, "w:gz") as tar:
        for place, name in ((package, "fairsched"), (Path(__file__).parent, "spark")):
            tar.add(place, name, filter=lambda one: None if "__pycache__" in one.name else one)
    return path


def test_executors_that_are_killed_and_have_us_from_an_archive(
    spark: Any, launch: Any, broker: Node, queues: Declare, tmp_path: Path
) -> None:
    places, names, expected = [], {}, {}
    for stage in ("written", "published", "acknowledged"):
        folder = tmp_path / stage
        folder.mkdir()
        names[stage] = queues(10)
        expected[stage] = fill(broker, names[stage], 300)
        options = source(broker, names[stage], folder, fault=fault(stage, "kill executor", folder, 2))
        places.append({"options": options, "checkpoint": str(folder / "checkpoint"), "sink": str(folder / "sink")})
    driver = launch("cluster", str(archive(tmp_path)), json.dumps(places), SPARK_HOME=str(local_cluster_home(tmp_path)))
    printed, _ = driver.communicate(timeout=800)
    assert driver.returncode == 0, printed
    first, *rest = [json.loads(line) for line in printed.splitlines() if line.startswith(("[", '"'))]
    assert rest == ["drained"] * 3
    assert all("/fslib/fairsched/_core" in path and name == "a" for path, name in first), first
    for stage, mine in names.items():
        found = from_files(spark, tmp_path / stage / "sink")
        queued = sum(broker.count(name) for name in mine)
        assert len(set(found)) + queued >= 3000, stage
        assert set(found) <= expected[stage]
        again = len(found) + queued - 3000
        assert (0 < again <= 1100) if stage == "published" else again == 0, (stage, again)
