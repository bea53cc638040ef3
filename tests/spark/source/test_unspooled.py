"""ackMode=auto: acknowledged, then shown. What is lost with a task, and that nothing is shown twice."""

from __future__ import annotations

from typing import Any

import pytest
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.running import Driver, bodies, fill, options_of
from support.waiting import eventually

from fairsched.errors import ConnectionFailed
from fairsched.spark.source import partition
from fairsched.spark.source.queues import QueuesReader


def drive(broker: Node, names: list[str], reader: type[QueuesReader] = QueuesReader, **more: object) -> Driver:
    return Driver(options_of(broker, dict.fromkeys(names, 1), None, planningInterval="0s", **more), reader)


def test_everything_is_read_once_without_a_spool(broker: Node, queues: DeclareAll) -> None:
    names = queues(3)
    expected = fill(broker, names, 100)
    one = drive(broker, names, maxMessagesPerTrigger=120, numPartitions=2)
    rows = [row for batch in one.batches() for row in batch]
    one.close()
    assert len(rows) == 300
    assert set(bodies(rows)) == expected
    assert not any(row["redelivered"] for row in rows)
    assert [broker.count(name) for name in names] == [0, 0, 0]


def test_a_task_that_dies_loses_what_it_was_shown_last_and_no_more(
    broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_MESSAGES", 30)
    [name] = queues(1)
    fill(broker, [name], 100)
    one = drive(broker, [name])
    [part] = one.reader.partitions(one.offset, one.plan())
    begun = one.reader.read(part)
    first = [row["body"] for row in next(begun).to_pylist()]
    begun.close()
    assert len(first) == 30
    eventually(lambda: broker.count(name) == 70)
    # Another attempt is given other messages.
    again = [row["body"] for batch in one.reader.read(part) for row in batch.to_pylist()]
    one.close()
    assert not {*first} & {*again}
    assert len(again) == 70


def test_what_may_not_have_been_acknowledged_is_not_shown(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    expected = fill(broker, [name], 50)

    class Cut(partition.PartitionReader):
        def reached(self, stage: str) -> None:
            if stage == "published":
                broker.close_connections()

    class Reader(QueuesReader):
        partition_reader = Cut

    one = drive(broker, [name], Reader)
    [part] = one.reader.partitions(one.offset, one.plan())
    with pytest.raises(ConnectionFailed):
        list(one.reader.read(part))
    one.close()
    eventually(lambda: broker.count(name) == 50)
    other = drive(broker, [name])
    assert set(bodies([row for batch in other.batches() for row in batch])) == expected
    other.close()


def test_a_query_needs_no_spool(broker: Node, queues: DeclareAll, spark: Any, tmp_path: Any) -> None:
    from fairsched.spark import register

    names = queues(2)
    expected = fill(broker, names, 200)
    register(spark)
    rows = spark.readStream.format("rabbitmq").options(**options_of(broker, dict.fromkeys(names, 1), None)).load()
    written = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = [bytes(row.body) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == sorted(expected)
