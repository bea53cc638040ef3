"""Queries on Spark: shares, order, replays and clean-up, with nothing going wrong."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from oracles.dwrr import ReferenceDwrr
from pyspark.errors import AnalysisException
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.failing import failure
from support.spark.faulty import FaultySource, fault, reached
from support.spark.queries import Rows, drain, load, query
from support.spark.running import QUANTA, fill, options_of, unique
from support.waiting import eventually

from fairsched.spark import register

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)
    spark.dataSource.register(FaultySource)


def in_reference_order(names: list[str], quanta: dict[str, int]) -> list[str]:
    """Queues in the order in which the reference serves messages that arrived queue by queue."""
    oracle = ReferenceDwrr({name: quanta[name] for name in dict.fromkeys(names)})
    for name in dict.fromkeys(names):
        for _ in range(names.count(name)):
            oracle.push(name, 0)
    return [slot for slot, _token in iter(oracle.pop, None)]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_backlog_is_drained_in_weighted_shares(
    kind: str, spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    names = queues(10, arguments={"x-queue-type": kind})
    expected = fill(broker, names, 300)
    quanta = dict(zip(names, QUANTA, strict=True))
    options = options_of(broker, quanta, tmp_path / "spool", maxMessagesPerTrigger=1100, numPartitions=2)
    rows = Rows()
    done = drain(load(spark, options), tmp_path / "checkpoint", rows)
    assert Counter(row.queue for row in rows.batches[0]) == dict(zip(names, range(20, 201, 20), strict=True))
    assert [len(rows.batches[number]) for number in range(3)] == [1100, 1100, 800]
    assert len(rows.bodies) == 3000
    assert set(rows.bodies) == expected
    assert not any(row.redelivered for row in rows.all)
    eventually(lambda: sum(broker.count(name) for name in names) == 0)
    for batch in rows.batches.values():
        assert {row.part for row in batch} == {0, 1}
        for part in (0, 1):
            found = [row.queue for row in batch if row.part == part]
            arrived = sorted(found, key=list(dict.fromkeys(found)).index)
            assert Counter(found) == Counter(in_reference_order(arrived, quanta))
            assert found == in_reference_order(arrived, quanta)
    for name in names:
        assert [bytes(row.body) for row in rows.all if row.queue == name] == unique(name, 300)
    # Only the last batch, which the next run would commit, is still there.
    [epoch] = (tmp_path / "spool").iterdir()
    assert sorted(path.name for path in epoch.iterdir()) == ["0000000003", "epoch"]
    progress = json.loads(done.recentProgress[0].json)["sources"][0]
    assert progress["latestOffset"]["depths"] == dict.fromkeys(names, 300)
    assert progress["endOffset"]["plan"] == dict(zip(names, range(20, 201, 20), strict=True))


def test_three_actions_see_the_same_messages_once(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    names = queues(4)
    fill(broker, names, 100)
    seen: list[tuple[int, int, int]] = []

    def sink(frame: Any, _number: int) -> None:
        seen.append((frame.count(), frame.filter("length(body) > 0").count(), frame.select("body").distinct().count()))

    options = options_of(broker, dict.fromkeys(names, 1), tmp_path / "spool", maxMessagesPerTrigger=200)
    drain(load(spark, options), tmp_path / "checkpoint", sink)
    assert seen == [(200, 200, 200)] * 2
    assert sum(broker.count(name) for name in names) == 0


def test_an_uncommitted_batch_is_replayed_whatever_the_options_say_then(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    names = queues(4)
    expected = fill(broker, names, 100)
    rows, again = Rows(), Rows()

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("the sink is full")

    rows.then = fail
    quanta = dict(zip(names, (1, 2, 3, 4), strict=True))
    options = options_of(broker, quanta, tmp_path / "spool", maxMessagesPerTrigger=100, numPartitions=2)
    failure(load(spark, options), tmp_path / "checkpoint", "the sink is full", rows)
    turned = dict(zip(names, (4, 3, 2, 1), strict=True))
    options = options_of(broker, turned, tmp_path / "spool", maxMessagesPerTrigger=90, numPartitions=4)
    drain(load(spark, options), tmp_path / "checkpoint", again)
    assert again.batches[1] == rows.batches[1]
    assert Counter(row.queue for row in again.batches[1]) == dict(zip(names, (10, 20, 30, 40), strict=True))
    found = [bytes(row.body) for row in rows.batches[0]] + again.bodies
    assert len(found) == len(expected)
    assert set(found) == expected
    # And without its checkpoint the spool belongs to another query.
    shutil.rmtree(tmp_path / "checkpoint")
    fill(broker, names, 10)
    refused = failure(load(spark, options), tmp_path / "checkpoint", r"holds epoch [0-9a-f]{32}")
    assert broker.url not in refused
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
    lenient = Rows()
    drain(load(spark, {**options, "failOnDataLoss": "false"}), tmp_path / "checkpoint", lenient)
    assert len(lenient.bodies) == 40


def test_available_now_ends_while_a_producer_goes_on(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    [name] = queues(1)
    fill(broker, [name], 400)
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            broker.publish(name, [b"late"] * 20)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        rows = Rows()
        options = options_of(broker, {name: 1}, tmp_path / "spool", maxMessagesPerTrigger=150)
        done = drain(load(spark, options), tmp_path / "checkpoint", rows)
    finally:
        over.set()
        producer.join()
    depth = json.loads(done.recentProgress[0].json)["sources"][0]["latestOffset"]["depths"][name]
    assert 400 <= len(rows.all) <= depth
    assert set(unique(name, 400)) <= set(rows.bodies)


def test_an_idle_query_leaves_the_broker_alone(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    [name] = queues(1)
    options = options_of(broker, {name: 1}, tmp_path / "spool", fault=fault("", "count", tmp_path))
    rows, looks = Rows(), tmp_path / "looks"

    def times() -> list[float]:
        return [float(line) for line in looks.read_text().split("\n")[:-1]] if looks.exists() else []

    with query(load(spark, options, "faulty"), tmp_path / "checkpoint", rows):
        eventually(lambda: len(times()) > 2, 60)
        # Spark may begin with a batch of nothing.
        before = list(rows.batches)
        assert before in ([], [0])
        eventually(lambda: times()[-1] - times()[2] >= 10, 60, "ten seconds of looks")
        assert list(rows.batches) == before
        assert rows.all == []
        found = times()
        fill(broker, [name], 5)
        eventually(lambda: len(rows.all) == 5, 60)
    assert len([one for one in found[2:] if one - found[2] <= 10]) <= 60


@pytest.mark.parametrize("stage", ["connected", "collected"])
def test_a_query_outlives_its_broker(stage: str, spark: Any, mortal: Node, tmp_path: Path) -> None:
    name = "outlived"
    mortal.declare(name)
    expected = fill(mortal, [name], 100) | set(unique(name, 100, 100))
    rows = Rows()
    options = options_of(
        mortal, {name: 1}, tmp_path / "spool", connectRetries=30, fault=fault(stage, "wait", tmp_path, 2)
    )
    with query(load(spark, options, "faulty"), tmp_path / "checkpoint", rows) as running:
        eventually(lambda: len(rows.all) == 100, 60)
        # Between batches: the planner's connection is gone.
        mortal.restart()
        mortal.publish(name, unique(name, 100, 100), delivery_mode=2)
        # While consuming: the task's connection is gone, and with it what it has in its hands.
        eventually((tmp_path / "reached").exists, 60)
        mortal.restart()
        (tmp_path / "go").touch()
        eventually(lambda: set(rows.bodies) == expected and mortal.left(name) == 0, 90)
        running.processAllAvailable()
    assert set(rows.bodies) == expected
    assert reached(tmp_path) == [f"{stage}/2"]
    again = Counter(rows.bodies) - Counter(expected)
    before, share = (Counter(bytes(row.body) for row in rows.batches[number]) for number in (0, 1))
    assert share
    # What the task had collected is published, so it comes twice; a broker that is killed may forget acknowledgements.
    held = share if stage == "collected" else Counter()
    assert held <= again <= held + before


@pytest.mark.rabbitmq("streams")
def test_streams_are_read_exactly_once_although_workers_die(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path
) -> None:
    names = queues(2, arguments={"x-queue-type": "stream"})
    expected = fill(broker, names, 2000)
    options = {
        "url": broker.url, "streams": ",".join(names), "startingOffsets": "earliest", "maxMessagesPerTrigger": "2000",
        "fault": fault("yielded", "exit", tmp_path, 1, 2),
    }  # fmt: skip
    rows = Rows()
    with query(load(spark, options, "faulty"), tmp_path / "checkpoint", rows) as running:
        running.processAllAvailable()
    # Each of the two streams, in each of the two batches.
    assert sorted(reached(tmp_path)) == ["yielded/1"] * 2 + ["yielded/2"] * 2
    assert len(rows.bodies) == 4000
    assert set(rows.bodies) == expected


# What users see -----------------------------------------------------------------------------------------------------


def test_mistakes_show_when_the_query_is_made(spark: Any, broker: Node, tmp_path: Path) -> None:
    options = options_of(broker, {"a": 1}, tmp_path / "spool")
    with pytest.raises(AnalysisException, match="no such option: maxmesages"):
        load(spark, {**options, "maxMesages": "5"})
    with pytest.raises(AnalysisException, match="option url is missing"):
        load(spark, {"queues": "a"})


def test_batch_reads_and_views(spark: Any, broker: Node, queues: DeclareAll) -> None:
    [name, empty] = queues(2)
    expected = fill(broker, [name], 30)
    spark.sql(f"CREATE TEMPORARY VIEW browsed USING rabbitmq OPTIONS (url '{broker.url}', queues '{name},{empty}')")
    assert {bytes(row.body) for row in spark.sql("SELECT body FROM browsed").collect()} == expected
    eventually(lambda: broker.count(name) == 30)
    reader = spark.read.format("rabbitmq").option("url", broker.url).option("queues", name).schema("queue STRING")
    assert [row.asDict() for row in reader.load().limit(2).collect()] == [{"queue": name}] * 2
    nothing = spark.read.format("rabbitmq").option("url", broker.url).option("queues", empty).load()
    assert nothing.count() == 0


def test_the_format_is_found_by_itself(spark: Any, broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    fill(broker, [name], 3)
    # What is registered in one session is not known to another: the package's name is enough.
    other = spark.newSession()
    assert other.read.format("rabbitmq").option("url", broker.url).option("queues", name).load().count() == 3


# The sink -----------------------------------------------------------------------------------------------------------


def test_everything_is_confirmed(spark: Any, broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    frame = spark.range(30_000).selectExpr("rpad(cast(id AS STRING), 200, 'x') AS body")
    frame.write.format("rabbitmq").mode("append").option("url", broker.url).option("routingKey", name).save()
    assert broker.count(name) == 30_000
    with pytest.raises(Exception, match="no queue takes a message with routing key 'nowhere'") as caught:
        frame.limit(10).write.format("rabbitmq").mode("append").options(url=broker.url, routingKey="nowhere").save()
    assert "guest:guest" not in str(caught.value)
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        frame.write.format("rabbitmq").mode("overwrite").option("url", broker.url).save()


def test_a_task_that_is_tried_again_uses_the_same_ids(
    spark: Any, broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = queues(1)
    url = broker.url

    def die_once(batches: Any) -> Any:
        """Give some batches, and end when something of them is published."""
        import os

        import pika
        from pyspark import TaskContext
        from support.waiting import eventually

        for number, batch in enumerate(batches):
            yield batch
            if number == 5 and TaskContext.get().attemptNumber() == 0:
                with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                    channel = connection.channel()
                    eventually(
                        lambda channel=channel: channel.queue_declare(name, passive=True).method.message_count, 60
                    )
                os._exit(7)

    # A batch goes on to the writer when later ones push it through the buffers between the processes.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "250")
    try:
        frame = spark.range(0, 2000, 1, 1).selectExpr("rpad(cast(id AS STRING), 500, ' ') AS body")
        frame = frame.mapInArrow(die_once, "body STRING")
        frame.write.format("rabbitmq").mode("append").option("url", url).option("routingKey", name).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    seen: dict[bytes, set[str]] = {}
    total = 0
    with broker.connect() as channel:
        while (found := channel.basic_get(name, auto_ack=True))[0] is not None:
            seen.setdefault(found[2].rstrip(), set()).add(found[1].message_id)
            total += 1
    assert set(seen) == {b"%d" % number for number in range(2000)}
    assert total > 2000
    assert all(len(ids) == 1 for ids in seen.values())


def test_a_stream_goes_from_queue_to_queue(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    [source, *targets] = queues(3)
    expected = fill(broker, [source], 200)
    options = options_of(broker, {source: 1}, tmp_path / "spool", maxMessagesPerTrigger=100)
    frame = spark.readStream.format("rabbitmq").options(**options).load()
    running = (
        frame.selectExpr("body", "cast(body AS STRING) AS key")
        .writeStream.format("rabbitmq")
        .options(url=broker.url, hashRing=",".join(targets))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert running.awaitTermination(120)
    found: dict[str, bytes] = {}
    with broker.connect() as channel:
        for name in targets:
            while (one := channel.basic_get(name, auto_ack=True))[0] is not None:
                found[one[1].message_id] = one[2]
    assert set(found.values()) == expected
    assert {one.rpartition("-")[0] for one in found} == {f"{running.id}-{batch}-0" for batch in range(2)}
