"""The queues source, called as Spark calls it, on a real broker."""

from __future__ import annotations

import json
import multiprocessing
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.running import QUANTA, Driver, bodies, counts, fill, no_larger_files, options_of, unique
from support.waiting import eventually

from fairsched.errors import ConfigurationError, ConnectionFailed, FairschedError, QueueNotFound, RequestRefused
from fairsched.spark.source import batch as batches
from fairsched.spark.source import partition
from fairsched.spark.source.options import source_options
from fairsched.spark.source.queues import QueuesReader
from fairsched.spark.source.spool import BatchGone, Spool, SpoolLost, SpoolNotWritable


def test_a_partition_of_many_segments_is_read_once_and_replayed(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_MESSAGES", 70)
    names = queues(3)
    expected = fill(broker, names, 200)
    one = driver(dict(zip(names, (1, 2, 3), strict=True)), numPartitions=2)
    end = one.plan()
    first = one.read(end)
    rows = [row for part in first for row in part]
    assert set(bodies(rows)) == expected
    assert len(rows) == 600
    assert not any(row["redelivered"] for row in rows)
    assert one.read(end) == first
    for name in names:
        assert [body for body in bodies(rows) if body.startswith(name.encode() + b"/")] == unique(name, 200)
        assert broker.count(name) == 0


def test_an_attempt_goes_on_where_another_one_died(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_MESSAGES", 50)
    names = queues(2)
    expected = fill(broker, names, 100)
    one = driver(names, numPartitions=1)
    end = one.plan()
    [part] = one.reader.partitions(one.offset, end)
    # As limit() does: the generator is closed after the second segment.
    begun = one.reader.read(part)
    seen = [row for _ in range(2) for row in next(begun).to_pylist()]
    begun.close()
    rows = one.read(end)[0]
    assert rows[:100] == seen
    assert set(bodies(rows)) == expected
    assert len(rows) == 200


@pytest.mark.parametrize("body", [0, 1000, 150_000])
def test_memory_is_bounded_by_bytes_too(
    body: int, broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_BYTES", 400_000)
    [name] = queues(1)
    broker.publish(name, [b"%d" % number + b"x" * body for number in range(10)], delivery_mode=2)
    one = driver([name])
    end = one.plan()
    [part] = one.reader.partitions(one.offset, end)
    sizes = [batch.num_rows for batch in one.reader.read(part)]
    assert sizes == ([3, 1, 2, 2, 2] if body == 150_000 else [10])


def test_memory_is_bounded_by_headers_too(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_BYTES", 250_000)
    [name] = queues(1)
    broker.publish(name, [b"%d" % number for number in range(10)], delivery_mode=2, headers={"a": "x" * 100_000})
    one = driver([name], maxBytesPerTrigger=500_000)
    [part] = one.reader.partitions(one.offset, one.plan())
    sizes = [batch.num_rows for batch in one.reader.read(part)]
    assert sizes == [3, 1]
    assert broker.count(name) == 6


@pytest.mark.parametrize(("body", "pieces"), [(0, [10]), (1000, [10]), (150_000, [3, 3, 3, 1])])
def test_a_batch_query_holds_a_piece_at_a_time(
    body: int, pieces: list[int], broker: Node, queues: DeclareAll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SEGMENT_BYTES", 400_000)
    [name] = queues(1)
    sent = [b"%d" % number + b"x" * body for number in range(10)]
    broker.publish(name, sent, delivery_mode=2)
    options = source_options(options_of(broker, {name: 1}, tmp_path))
    found = list(batches.browse(options, ["body"], {name: 10}))
    assert [piece.num_rows for piece in found] == pieces
    assert [row for piece in found for row in piece.column("body").to_pylist()] == sent
    assert broker.count(name) == 10
    # In pieces of messages, too, and no more than there is.
    monkeypatch.setattr(batches, "SEGMENT_MESSAGES", 4)
    found = list(batches.browse(options, ["body"], {name: 12}))
    assert [row for piece in found for row in piece.column("body").to_pylist()] == sent
    assert max(piece.num_rows for piece in found) <= 4
    eventually(lambda: broker.count(name) == 10)


def test_large_messages_of_a_quorum_queue_do_not_reach_its_delivery_limit(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_BYTES", 1_000_000)
    [name] = queues(1, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    sent = [b"%d" % number + b"x" * 100_000 for number in range(60)]
    broker.publish(name, sent, delivery_mode=2)
    one = driver([name])
    rows = one.read(one.plan())[0]
    assert bodies(rows) == sent
    eventually(lambda: broker.count(name) == 0)


def test_available_now_reads_what_a_batch_had_no_bytes_for(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    sent = {name: [b"%s-%d" % (name.encode(), number) + b"x" * 1000 for number in range(50)] for name in names}
    for name in names:
        broker.publish(name, sent[name], delivery_mode=2)
    one = driver(names, maxBytesPerTrigger=20_000)
    one.reader.prepareForTriggerAvailableNow()
    broker.publish(names[0], [b"late"], delivery_mode=2)
    batches = list(one.batches())
    assert {body for rows in batches for body in bodies(rows)} == {body for name in names for body in sent[name]}
    assert all(sum(map(len, bodies(rows))) <= 24_000 for rows in batches)
    assert broker.count(names[0]) == 1


def test_a_partition_that_lasts_too_long_ends_with_a_segment(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_MESSAGES", 50)
    monkeypatch.setattr(partition, "LONGEST", 0.0)
    names = queues(2)
    expected = fill(broker, names, 100)
    one = driver(names, numPartitions=1)
    end = one.plan()
    [first] = one.read(end)
    assert counts(first, "queue") == dict.fromkeys(names, 25)
    assert [first] == one.read(end)
    one.offset = end
    batches = [first, *one.batches()]
    assert [len(rows) for rows in batches] == [50, 50, 50, 50]
    assert {body for rows in batches for body in bodies(rows)} == expected


def test_what_the_broker_refuses_for_good_is_not_tried_again(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    [name] = queues(1)
    with broker.connect() as owner:
        owner.queue_declare(f"{name}-own", exclusive=True)
        with pytest.raises(RequestRefused, match="RESOURCE_LOCKED"):
            driver([f"{name}-own"], connectRetries=3).plan()
    with pytest.raises(QueueNotFound, match=r"no queue .*the source creates no queues: declare it, or remove it"):
        driver([f"{name}-none"], connectRetries=3).plan()
    stranger = broker.url.replace("//", "//nobody:wrong@", 1) if "@" not in broker.url else None
    stranger = stranger or re.sub("//[^@]*@", "//nobody:wrong@", broker.url)
    with pytest.raises(RequestRefused, match="ACCESS_REFUSED"):
        driver([name], connectRetries=3, url=stranger).plan()
    assert "trying again" not in caplog.text


def test_a_batch_of_a_deleted_queue_names_the_remedy(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    gone, kept = queues(2)
    expected = fill(broker, [kept], 10)
    fill(broker, [gone], 10)
    one = driver([gone, kept], numPartitions=1)
    end = one.plan()
    broker.delete(gone)
    with pytest.raises(QueueNotFound, match=r"checkpoint has a batch \(number 1\).*Declare it again.*failOnDataLoss"):
        one.read(end)
    broker.declare(gone)
    [rows] = one.read(end)
    assert set(bodies(rows)) == expected


def test_where_data_may_be_lost_a_deleted_queue_stops_no_batch(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    gone, kept, empty = queues(3)
    expected = fill(broker, [kept], 10)
    fill(broker, [gone, empty], 10)
    one = driver([gone, kept, empty], numPartitions=1, failOnDataLoss="false")
    end = one.plan()
    broker.delete(gone, empty)
    [rows] = one.read(end)
    assert set(bodies(rows)) == expected
    assert {record.args[0] for record in caplog.records if "was deleted" in record.message} == {gone, empty}


@pytest.mark.parametrize("ends", [True, False])
def test_a_single_active_consumer_elsewhere_is_named(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    [free] = queues(1)
    held = f"{free}-held"
    broker.declare(held, arguments={"x-single-active-consumer": True})
    expected = fill(broker, [free], 10)
    with broker.connect() as channel:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(held, lambda *_: None)
        fill(broker, [held], 10)
        one = driver([free, held], numPartitions=2, pollTimeout="300ms")
        if ends:
            one.reader.prepareForTriggerAvailableNow()
            end = one.plan(ReadMaxRows(1000))
            with pytest.raises(RequestRefused, match=rf"queue '{held}' has 9 messages and delivers none: another"):
                one.read(end)
        else:
            end = one.plan()
            rows = [row for part in one.read(end) for row in part]
            assert set(bodies(rows)) == expected
            assert "another consumer is its single active consumer; the query reads it when" in caplog.text
    broker.delete(held)


def test_bytes_of_a_batch_are_bounded_once_sizes_are_known(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    small, large = queues(2)
    broker.publish(small, [b"x" * 100] * 300)
    broker.publish(large, [b"x" * 900] * 300)
    one = driver([small, large], numPartitions=2, maxBytesPerTrigger=20_000)
    found = [sum(map(len, bodies(rows))) for rows in one.batches()]
    assert sum(found) == 300_000
    # Of the first batch nothing is known. Names and properties count, too.
    assert max(found) <= 20_000
    sizes = one.offset["sizes"]
    assert sizes == one.offset["largest"]
    assert 100 < sizes[small] < 200
    assert sizes[large] == sizes[small] + 800


@pytest.mark.slow
def test_bytes_of_a_batch_are_bounded_by_default(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    large = b"x" * (15 << 20)
    for _ in range(20):
        broker.publish(name, [large])
    # Not that a batch ends where a busy broker has sent nothing for a while.
    one = driver([name], pollTimeout="20s")
    found = [len(rows) for rows in one.batches()]
    assert sum(found) == 20
    # A batch ends before the message that would exceed the bound.
    assert found == [17, 3]
    assert one.offset["budget"] == 256 << 20


def test_a_full_spool_loses_nothing(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    broker.publish(name, [b"%03d" % number + b"x" * 10_000 for number in range(50)])
    one = driver([name])
    end = one.plan()
    with no_larger_files(100_000), pytest.raises(SpoolNotWritable, match=r"spoolLocation .* free some space"):
        one.read(end)
    eventually(lambda: broker.count(name) == 50)
    [rows] = one.read(end)
    assert [row["body"][:3] for row in rows] == [b"%03d" % number for number in range(50)]
    assert broker.count(name) == 0


def test_no_key_is_hidden_by_a_flood_of_another(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    for tenant, count in (("loud", 300), ("quiet", 30), ("paying", 30)):
        broker.publish(name, [f"{tenant}/{number}".encode() for number in range(count)], headers={"tenant": tenant})
    one = driver([name], fairKey="header:tenant", keyQuanta='{"paying": 2}', fairLookahead=20, maxMessagesPerTrigger=40)
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(one.batches()):
        rows += batch
        if number == 0:
            assert counts(batch, "key") == {"loud": 10, "quiet": 10, "paying": 20}
    assert counts(rows, "key") == {"loud": 300, "quiet": 30, "paying": 30}
    assert len(set(bodies(rows))) == 360
    for tenant in ("loud", "quiet", "paying"):
        mine = [int(body.split(b"/")[1]) for body in bodies(rows) if body.startswith(tenant.encode())]
        assert mine == sorted(mine)


def test_looking_ahead_asks_an_empty_queue_for_nothing(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    fill(broker, names, 30, headers={"tenant": "a"})
    one = driver(names, numPartitions=1, fairKey="header:tenant", fairLookahead=2, maxMessagesPerTrigger=20)
    end = one.plan()
    with broker.connect() as channel:
        channel.queue_purge(names[1])

    class Watched(partition.PartitionReader):
        def _ask(self, found: Any, wanted: Any) -> None:
            asked.append(dict(wanted))
            super()._ask(found, wanted)

    asked: list[dict[str, int]] = []
    [part] = one.reader.partitions(one.offset, end)
    rows = [row for batch in Watched(one.options, ["body", "queue"], part.value).read() for row in batch.to_pylist()]
    assert counts(rows) == {names[0]: 10}
    # First the share, then as much again; the second segment is to have the share of the other queue.
    assert asked == [{names[0]: 10, names[1]: 0}, {names[0]: 10, names[1]: 0}, {names[1]: 0}, {names[1]: 0}]
    eventually(lambda: broker.count(names[0]) == 20)


def test_rows_may_stay_with_their_queue(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    names = queues(3)
    fill(broker, names, 5)
    [rows] = list(driver(names, numPartitions=1, rowOrder="queue").batches())
    assert bodies(rows) == [body for name in names for body in unique(name, 5)]


def test_a_partition_ends_when_another_consumer_took_the_messages(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    fill(broker, names, 20)
    one = driver(names, numPartitions=1)
    end = one.plan()
    with broker.connect() as channel:
        channel.queue_purge(names[0])
    [rows] = one.read(end)
    assert bodies(rows) == unique(names[1], 20)
    assert one.read(end) == [rows]


def test_two_attempts_at_a_partition_give_the_same_rows(broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        for trial in range(20):
            names = queues(2)
            expected = fill(broker, names, 150)
            options = options_of(
                broker, dict.fromkeys(names, 1), tmp_path / str(trial), pollTimeout="300ms", numPartitions=2
            )
            one = Driver(options)
            end = one.plan()
            [part, _] = one.reader.partitions(one.offset, end)
            one.close()
            barrier = tmp_path / f"barrier-{trial}"
            tasks = [pool.apply_async(attempt, (options, part, barrier, number)) for number in range(2)]
            first, second = (task.get(timeout=60) for task in tasks)
            assert first == second
            left = len(expected) - len(first)
            eventually(lambda left=left, names=names: sum(broker.count(name) for name in names) == left)
            assert len(set(first)) == len(first)


def attempt(options: dict[str, str], part: Any, barrier: Path, number: int) -> list[bytes]:
    """Read a partition, starting when the other attempt does."""
    one = Driver(options)
    (barrier.parent / f"{barrier.name}-{number}").touch()
    eventually(lambda: all((barrier.parent / f"{barrier.name}-{other}").exists() for other in range(2)))
    return [row["body"] for batch in one.reader.read(part) for row in batch.to_pylist()]


def test_a_late_attempt_acknowledges_nothing(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], tmp_path: Path
) -> None:
    [name] = queues(1)
    fill(broker, [name], 10)

    class Late(partition.PartitionReader):
        def reached(self, stage: str) -> None:
            if stage == "collected":
                Spool(str(tmp_path / "spool"), self._part.epoch).close_until(self._part.seq)

    class Reader(QueuesReader):
        partition_reader = Late

    one = driver([name], Reader)
    end = one.plan()
    [part] = one.reader.partitions(one.offset, end)
    with pytest.raises(BatchGone):
        list(one.reader.read(part))
    eventually(lambda: broker.count(name) == 10)


def test_shares_are_exact_in_the_long_run(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    names, most, batches = queues(10), 7, 44
    fill(broker, names, 60)
    quanta = dict(zip(names, range(1, 11), strict=True))
    one = driver(quanta, maxMessagesPerTrigger=most, numPartitions=2)
    served = dict.fromkeys(names, 0)
    for number in range(1, batches + 1):
        if number == batches // 2:
            # What a queue is owed stands in the offset: a query that is started anew goes on with it.
            begun, one = one, driver(quanta, maxMessagesPerTrigger=most, numPartitions=1)
            one.offset = json.loads(json.dumps(begun.offset))
        end = one.plan()
        for part in one.read(end):
            for name, count in counts(part).items():
                served[name] += count
        one.offset = end
        for name, quantum in quanta.items():
            assert abs(served[name] - quantum * number * most / 55) <= 1, (number, served)


def test_available_now_reads_what_there_was(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    names = queues(2)
    fill(broker, names, 300)
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            broker.publish(names[0], [b"late"] * 50)

    producer = threading.Thread(target=produce)
    one = driver(names, maxMessagesPerTrigger=100)
    one.reader.prepareForTriggerAvailableNow()
    producer.start()
    try:
        # What comes while the look at the queues is taken is there before it began, or is left for later.
        eventually(lambda: broker.count(names[0]) >= 350)
        assert sum(len(rows) for rows in one.batches()) == 600
        assert one.offset["seq"] == 6
    finally:
        over.set()
        producer.join()


def test_available_now_counts_what_an_earlier_run_left(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    fill(broker, names, 50)
    before = driver(names, maxMessagesPerTrigger=40, numPartitions=2)
    end = before.plan()
    # One of the two partitions is published, the other is not.
    list(before.reader.read(before.reader.partitions(before.offset, end)[0]))
    after = driver(names, maxMessagesPerTrigger=40)
    after.reader.prepareForTriggerAvailableNow()
    replayed = [row for part in after.read(end) for row in part]
    after.offset = end
    fill(broker, names, 50)
    rows = [row for batch in after.batches() for row in batch]
    assert (len(replayed), len(rows)) == (40, 60)


def test_nothing_is_a_batch_too(queues: DeclareAll, driver: Callable[..., Driver], tmp_path: Path) -> None:
    one = driver(queues(1))
    assert one.plan() is None
    assert one.read(one.offset) == []
    one.reader.commit(one.offset)
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_batch_waits_for_enough_messages_but_not_forever(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    fill(broker, [name], 10)
    one = driver([name], minMessagesPerTrigger=11, maxTriggerDelay="1h")
    assert one.plan() is None
    broker.publish(name, [b"one more"])
    assert len(next(one.batches())) == 11
    fill(broker, [name], 3)
    assert one.plan() is None
    assert one.plan(ReadAllAvailable()) is not None
    impatient = driver([name], minMessagesPerTrigger=11, maxTriggerDelay="0s", failOnDataLoss="false")
    assert impatient.plan() is not None
    hurried = driver([name], minMessagesPerTrigger=11, failOnDataLoss="false")
    hurried.reader.prepareForTriggerAvailableNow()
    assert hurried.plan() is not None


def test_no_limit_reads_everything(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    names = queues(2)
    fill(broker, names, 40)
    one = driver(names, maxMessagesPerTrigger=10, maxBytesPerTrigger=100)
    assert len(next(one.batches(ReadAllAvailable()))) == 80


def test_the_plan_of_an_unfinished_batch_outlives_its_options(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(4)
    fill(broker, names, 50)
    before = driver(dict(zip(names, (1, 2, 3, 4), strict=True)), numPartitions=2, maxMessagesPerTrigger=100)
    end = before.plan()
    first = before.read(end)
    after = driver(dict(zip(names, (4, 3, 2, 1), strict=True)), numPartitions=4, maxMessagesPerTrigger=7)
    assert after.read(end) == first
    assert {name: count for part in first for name, count in counts(part).items()} == end["plan"]


def test_progress_shows_depths_and_ages(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    fill(broker, [name], 10, headers={"sent": int(time.time() * 1000) - 60_000})
    one = driver([name], enqueueTimeHeader="sent", maxMessagesPerTrigger=4)
    batches = one.batches()
    next(batches)
    next(batches)
    report = json.loads(json.dumps(one.reader.reportLatestOffset()))
    assert report["depths"] == {name: 6}
    assert report["behind"] == {name: 2}
    one.reader.commit(one.offset)
    assert 60_000 <= one.reader.reportLatestOffset()["ages"][name] < 90_000


def test_a_spool_of_another_checkpoint_is_refused_by_its_epoch(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    fill(broker, [name], 10)
    one = driver([name], maxMessagesPerTrigger=5)
    [rows] = one.read(one.plan())
    assert len(rows) == 5
    other = driver([name])
    with pytest.raises(SpoolLost, match=r"holds epoch [0-9a-f]{32}"):
        other.plan()
    assert driver([name], failOnDataLoss="false").plan() is not None


def test_what_is_missing_is_said(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver], tmp_path: Path
) -> None:
    with pytest.raises(QueueNotFound, match="no queue 'no-such-queue'"):
        driver(["no-such-queue"]).plan()
    with pytest.raises(ConfigurationError, match="spoolLocation is missing"):
        Driver({"url": broker.url, "queues": "a"})
    refused = {"url": "amqp://app:hush@127.0.0.1:1/%2F", "queues": "a", "connectRetries": "0"}
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: .*refused") as caught:
        Driver({**refused, "spoolLocation": str(tmp_path)}).plan()
    assert "hush" not in str(caught.value)
    wrong = {"url": broker.url.replace("guest:guest", "guest:hush"), "queues": "a", "connectRetries": "0"}
    with pytest.raises(ConnectionFailed, match=r"ACCESS_REFUSED|Authentication") as caught:
        Driver({**wrong, "spoolLocation": str(tmp_path)}).plan()
    assert "hush" not in str(caught.value)


def test_the_planner_outlives_its_connection(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    fill(broker, [name], 10)
    one = driver([name], maxMessagesPerTrigger=5)
    assert one.plan() is not None
    broker.close_connections()
    assert one.plan() is not None


def test_ten_queues_share_exactly(broker: Node, queues: DeclareAll, driver: Callable[..., Driver]) -> None:
    names = queues(10)
    fill(broker, names, 250)
    one = driver(dict(zip(names, QUANTA, strict=True)), maxMessagesPerTrigger=1100)
    assert counts(next(one.batches())) == dict(zip(names, range(20, 201, 20), strict=True))


def test_a_replay_that_lacks_columns_fails_and_loses_nothing(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    [name] = queues(1)
    fill(broker, [name], 3, headers={"a": "b"})
    plain = driver([name])
    end = plain.plan()
    first = plain.read(end)
    with pytest.raises(FairschedError, match=r"was stored without the column headers, .*with the options it had"):
        driver([name], includeHeaders="true").read(end)
    assert plain.read(end) == first


def test_consumers_have_the_arguments_that_are_given(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    expected = fill(broker, names, 5)
    one = driver(names, consumerArguments='{"x-priority": "high"}', connectRetries=0)
    with pytest.raises(ConnectionFailed, match=r"invalid arg .*x-priority.*integer"):
        one.read(one.plan())
    two = driver(names, consumerArguments='{"x-priority": -1}', failOnDataLoss="false")
    assert {body for part in two.read(two.plan()) for body in bodies(part)} == expected


def test_partitions_are_cut_when_they_have_too_many_messages(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    names = queues(2)
    expected = fill(broker, names, 30)
    one = driver(names, maxRecordsPerPartition=20, numPartitions=1)
    parts = one.read(one.plan())
    assert [len(part) for part in parts] == [20, 20, 20]
    assert {body for part in parts for body in bodies(part)} == expected
