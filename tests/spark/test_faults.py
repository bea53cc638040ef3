"""Losses and repetitions when workers, executors and drivers die: nothing, and little.

Ten queues of 300 messages, quanta 4 to 40, batches of 1100, two partitions. The sink overwrites the files of a batch,
so it is idempotent by the number of the batch, and duplicates are those of the source.
"""

from __future__ import annotations

import itertools
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.declare import DeclareAll
from support.outcomes import Outcomes
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.spark.faulty import FaultySource, fault, reached
from support.spark.launched import end
from support.spark.queries import Rows, drain, into_files, load, query, rows_from_files
from support.spark.refusing import REASON, STEPS, is_refused, refusing
from support.spark.running import QUANTA, fill, options_of
from support.waiting import eventually

import fairsched
from fairsched.spark import register
from fairsched.spark.pipeline.home import link

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

#: What the scripts import, and the queries refer to by name.
SUPPORT = Path(__file__).parents[1] / "support"
#: Where partition 0 is stopped: before anything is published, after it, and when it is acknowledged, too.
STAGES = ("collected", "written", "published", "acknowledged")


def source(node: Node, names: list[str], folder: Path, fault: str) -> dict[str, str]:
    quanta = dict(zip(names, QUANTA, strict=True))
    return options_of(node, quanta, folder / "spool", maxMessagesPerTrigger=1100, numPartitions=2, fault=fault)


def place(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """A query for the scripts in `support/spark`."""
    return {"options": options, **{name: str(folder / name) for name in ("checkpoint", "sink", "reached")}}


def copies(rows: list[Any]) -> list[tuple[bytes, bool]]:
    """Body of each row, and whether it says that it may be a repetition."""
    return [(bytes(row.body), row.redelivered) for row in rows]


def share(rows: list[Any]) -> list[bytes]:
    """Bodies of the first partition of a batch: what a fault may repeat."""
    return [bytes(row.body) for row in rows if row.part == 0]


def check(
    outcomes: Outcomes,
    fault: str,
    stage: str,
    found: list[tuple[bytes, bool]],
    expected: set[bytes],
    shares: list[bytes],
) -> None:
    """Nothing is lost; only shares that were published and not acknowledged come once more, and say so."""
    bodies = [body for body, _ in found]
    outcomes.note(fault, f"Spark source, rows {stage}", (expected, bodies))
    assert set(bodies) == expected, stage
    assert shares
    assert Counter(bodies) - Counter(expected) == Counter(shares if stage == "published" else []), stage
    if stage in ("collected", "written"):
        assert any(redelivered for _, redelivered in found), stage
        return
    seen: set[bytes] = set()
    for body, redelivered in found:
        assert redelivered == (body in seen), (stage, body)
        seen.add(body)


@pytest.mark.parametrize("stage", STAGES)
def test_workers_that_end_in_three_batches(
    stage: str, spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path, outcomes: Outcomes
) -> None:
    names = queues(10)
    expected = fill(broker, names, 300)
    spark.dataSource.register(FaultySource)
    rows = Rows()
    options = source(broker, names, tmp_path, fault(stage, "exit", tmp_path, 1, 3))
    with query(load(spark, options, "faulty"), tmp_path / "checkpoint", rows) as running:

        def nothing_left() -> bool:
            running.processAllAvailable()
            return broker.left(*names) == 0

        # A queue may be empty because a dead worker's messages are still on their way back to it.
        eventually(nothing_left, 200)
        # What is acknowledged need not be shown yet.
        running.processAllAvailable()
    assert reached(tmp_path) == [f"{stage}/{number}" for number in (1, 2, 3)]
    again = [body for number in range(3) for body in share(rows.batches[number])]
    check(outcomes, "Python worker ended in three batches", stage, copies(rows.all), expected, again)


def test_drivers_that_are_killed(
    spark: Any, launch: Any, broker: Node, queues: DeclareAll, tmp_path: Path, outcomes: Outcomes
) -> None:
    register(spark)
    names: dict[str, list[str]] = {}
    expected: dict[str, set[bytes]] = {}
    places: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        (folder := tmp_path / stage).mkdir()
        names[stage] = queues(10)
        expected[stage] = fill(broker, names[stage], 300)
        places[stage] = place(folder, source(broker, names[stage], folder, fault(stage, "wait", folder, 2)))
    kill_all(launch, [*places.values()])
    for stage in STAGES:
        rows = restarted(spark, broker, places[stage], names[stage])
        assert reached(tmp_path / stage) == [f"{stage}/2"]
        again = share([row for row in rows if row.batch == 1])
        check(outcomes, "Spark driver killed", stage, copies(rows), expected[stage], again)
    assert broker.left(*itertools.chain.from_iterable(names.values())) == 0


@pytest.mark.rabbitmq("streams")
def test_a_driver_that_reads_streams_and_is_killed(
    spark: Any, launch: Any, broker: Node, queues: DeclareAll, tmp_path: Path, outcomes: Outcomes
) -> None:
    register(spark)
    (folder := tmp_path / "streams").mkdir()
    streams = queues(2, arguments={"x-queue-type": "stream"})
    streamed = fill(broker, streams, 2000)
    options = {"url": broker.url, "streams": ",".join(streams), "startingOffsets": "earliest",
               "maxMessagesPerTrigger": "2000", "fault": fault("yielded", "wait", folder, 2)}  # fmt: skip
    where = place(folder, options)
    kill_all(launch, [where])
    rows = restarted(spark, broker, where, [])
    outcomes.note("Spark driver killed", "Spark source, streams", (streamed, [bytes(row.body) for row in rows]))
    # Both streams are read side by side. The batch before the first rows only notes where they begin.
    assert set(reached(tmp_path / "streams")) == {"yielded/2"}
    assert Counter(row.batch for row in rows) == {1: 2000, 2: 2000}
    assert {bytes(row.body) for row in rows} == streamed


@pytest.mark.parametrize("kind", ["queues", pytest.param("streams", marks=pytest.mark.rabbitmq("streams"))])
def test_a_driver_that_is_killed_while_it_refuses_rows(
    kind: str, spark: Any, launch: Any, broker: Node, queues: DeclareAll, tmp_path: Path, outcomes: Outcomes
) -> None:
    """Between any two steps: each refused message arrives with its reason, each good one in its file."""
    register(spark)
    places: dict[str, dict[str, Any]] = {}
    expected: dict[str, set[bytes]] = {}
    for step in STEPS:
        (folder := tmp_path / step).mkdir()
        [dead] = queues(1)
        route = {"url": broker.url, "routingKey": dead, "confirmWindow": "1"}
        if kind == "queues":
            [name] = queues(1)
            options = options_of(broker, {name: 1}, folder / "spool", maxMessagesPerTrigger=3000)
        else:
            [name] = queues(1, arguments={"x-queue-type": "stream"})
            options = {"url": broker.url, "streams": name, "startingOffsets": "earliest",
                       "maxMessagesPerTrigger": "3000"}  # fmt: skip
        expected[step] = fill(broker, [name], 7500)
        # The first batch of streams only notes where they begin.
        places[step] = {**place(folder, options), "dead": route, "step": step, "batch": 1 if kind == "queues" else 2}
    route = places["publishing"]["dead"]
    last = places.pop("publishing")
    first_refused = 1000
    # A broker that confirms one message after the other, over a link with a delay, takes a while.
    with Proxy(broker.port, delay=0.001) as proxy:
        slow = {**last, "dead": {**route, "url": behind(proxy, broker.url)}}
        kill_all(launch, [*places.values(), slow], lambda: broker.count(route["routingKey"]) > first_refused)
    places["publishing"] = last
    assert first_refused < broker.count(route["routingKey"]) < 2 * first_refused, "it was not publishing"
    for step, where in places.items():
        sink = Path(where["sink"])
        drain(load(spark, where["options"]), Path(where["checkpoint"]), refusing(sink, where["dead"]))
        good = [bytes(row.body) for row in rows_from_files(spark, sink)]
        dead = where["dead"]["routingKey"]
        copies_of, reasons = letters(broker, dead)
        outcomes.note("Spark driver killed", f"dead_letter, {kind}, {step}", (expected[step], good + copies_of))
        refused = {body for body in expected[step] if is_refused(body)}
        assert Counter(good) == Counter(expected[step] - refused), step
        assert set(copies_of) == refused, step
        assert reasons == {REASON}, step
        # Only a batch that is run again publishes again.
        assert len(copies_of) == len(refused) or step in ("publishing", "published", "written"), step


def letters(broker: Node, queue: str) -> tuple[list[bytes], set[str]]:
    """Take all dead letters: bodies, and reasons."""
    bodies, reasons = [], set()
    with broker.connect() as channel:
        while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
            _, properties, body = found
            bodies.append(body)
            reasons.add(properties.headers["x-reason"])
    return bodies, reasons


def kill_all(launch: Any, places: list[dict[str, Any]], then: Callable[[], bool] = lambda: True) -> None:
    """Run queries in a driver, and kill it when each of them has reached its stage, and `then` is true."""
    driver = launch("killed", json.dumps(places))
    reach = [Path(one["reached"]) for one in places]
    eventually(lambda: driver.poll() is not None or (all(path.exists() for path in reach) and then()), 300)
    assert driver.poll() is None
    end(driver)


def restarted(spark: Any, broker: Node, place: dict[str, Any], names: list[str]) -> list[Any]:
    """Run a query again, without its fault, and return the rows of both drivers."""
    options = {name: value for name, value in place["options"].items() if name != "fault"}

    def run() -> None:
        drain(load(spark, options), Path(place["checkpoint"]), into_files(Path(place["sink"])))

    run()
    if names and broker.left(*names):
        run()  # What went back to the queue while the first run was planning is for the next one.
    return rows_from_files(spark, Path(place["sink"]))


def archive(folder: Path) -> Path:
    """The package with its compiled modules, as executors get it."""
    path = folder / "lib.tar.gz"
    package = Path(fairsched.__file__).parent
    with tarfile.open(path, "w:gz") as tar:
        for place, name in ((package, "fairsched"), (SUPPORT, "support")):
            tar.add(place, name, filter=lambda one: None if "__pycache__" in one.name else one)
    return path


def test_executors_that_are_killed_and_have_us_from_an_archive(
    spark: Any, launch: Any, broker: Node, queues: DeclareAll, tmp_path: Path, outcomes: Outcomes
) -> None:
    places, names, expected = [], {}, {}
    for stage in STAGES:
        (folder := tmp_path / stage).mkdir()
        names[stage] = queues(10)
        expected[stage] = fill(broker, names[stage], 300)
        places.append(place(folder, source(broker, names[stage], folder, fault(stage, "kill executor", folder, 2))))
    driver = launch("cluster", str(archive(tmp_path)), json.dumps(places), SPARK_HOME=str(link(tmp_path / "home")))
    printed, _ = driver.communicate(timeout=800)
    assert driver.returncode == 0, printed
    first, *rest = [json.loads(line) for line in printed.splitlines() if line.startswith(("[", '"'))]
    assert rest == ["drained"] * 4
    assert all("/fslib/fairsched/_core" in path and name == "a" for path, name in first), first
    for stage in STAGES:
        rows = rows_from_files(spark, tmp_path / stage / "sink")
        assert reached(tmp_path / stage) == [f"{stage}/2"]
        # What went back to the queues was not in the plan, and is still there.
        found = [*copies(rows), *taken(broker, names[stage])]
        again = share([row for row in rows if row.batch == 1])
        check(outcomes, "Spark executor killed", stage, found, expected[stage], again)


def taken(broker: Node, names: list[str]) -> list[tuple[bytes, bool]]:
    """Take what is left in queues until nothing is."""
    found: list[tuple[bytes, bool]] = []

    def emptied() -> bool:
        with broker.connect() as channel:
            for name in names:
                while (one := channel.basic_get(name, auto_ack=True))[0] is not None:
                    found.append((one[2], one[0].redelivered))
        return broker.left(*names) == 0

    eventually(emptied, 60)
    return found
