"""The streams source and batch reads, called as Spark calls them, on a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark import running
from support.spark.running import Driver, bodies, counts, schema_of, unique
from support.streamprotocol import store_offset
from support.waiting import eventually

from fairsched.errors import ConnectionFailed, FairschedError
from fairsched.spark.broker import open_session
from fairsched.spark.source import streamrange, streams
from fairsched.spark.source.batch import BatchReader
from fairsched.spark.source.columns import Decoder
from fairsched.spark.source.options import source_options
from fairsched.spark.source.streamrange import StreamTruncated, bounds, seen_bounds
from fairsched.spark.source.streams import Range, StreamsReader, ranges

STREAM = {"x-queue-type": "stream"}


def options_of(node: Node, streams: list[str], **more: object) -> dict[str, str]:
    found = {"url": node.url, "streams": ",".join(streams), "planningInterval": "0s", "pollTimeout": "2s"}
    return {**found, **{name: str(value) for name, value in more.items()}}


def published(node: Node, name: str, bodies: list[bytes], first: int = 0) -> None:
    """Publish to a stream and return when all is there: its writer runs behind the transaction."""
    node.publish(name, bodies)
    broker = source_options(options_of(node, [name])).broker
    eventually(lambda: bounds(broker, [name], "last")[name] >= first + len(bodies))


def fill(node: Node, names: list[str], count: int) -> set[bytes]:
    for name in names:
        published(node, name, unique(name, count))
    return {body for name in names for body in unique(name, count)}


class StreamDriver(Driver):
    """Drives the streams source; the first batch is empty and says where reading begins."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options, StreamsReader)

    def all(self, limit: Any = None) -> list[list[dict[str, Any]]]:
        found = []
        while (end := self.plan(limit)) is not None:
            found.append([row for part in self.read(end) for row in part])
            self.offset = end
        return found


@pytest.mark.rabbitmq("streams")
def test_weighted_ranges_of_offsets_are_read_exactly_once(broker: Node, queues: DeclareAll) -> None:
    names = queues(2, arguments=STREAM)
    fill(broker, names, 300)
    one = StreamDriver(
        {**options_of(broker, [], startingOffsets="earliest", maxMessagesPerTrigger=100),
         "streams": json.dumps({names[0]: 3, names[1]: 1})}
    )  # fmt: skip
    empty, *batches = one.all()
    assert empty == []
    assert [len(rows) for rows in batches] == [100] * 6
    assert counts(batches[0]) == {names[0]: 75, names[1]: 25}
    rows = [row for batch in batches for row in batch]
    for name in names:
        mine = [row for row in rows if row["queue"] == name]
        assert bodies(mine) == unique(name, 300)
        assert [row["offset"] for row in mine] == list(range(300))
    assert one.reader.reportLatestOffset() == {
        "source": f"streams {names[0]} (3), {names[1]} (1) at 127.0.0.1:{broker.port}",
        "streams": dict.fromkeys(names, 300),
        "behind": dict.fromkeys(names, 0),
    }
    # The same offsets give the same rows, to another instance as well.
    assert one.read(one.offset)[0][0]["offset"] > 0
    again = StreamDriver(options_of(broker, names))
    assert again.read(one.offset) == one.read(one.offset)


@pytest.mark.rabbitmq("streams")
def test_latest_is_written_down_before_anything_is_read(broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 50)
    one = StreamDriver(options_of(broker, names))
    one.offset = one.plan()
    assert one.offset["streams"] == {names[0]: 50}
    published(broker, names[0], unique(names[0], 5, 50), 50)
    later = StreamDriver(options_of(broker, names))
    later.offset = one.offset
    [rows] = later.all()
    assert bodies(rows) == unique(names[0], 5, 50)


@pytest.mark.rabbitmq("streams")
def test_empty_streams_and_given_offsets(broker: Node, queues: DeclareAll) -> None:
    names = queues(2, arguments=STREAM)
    one = StreamDriver(options_of(broker, names, startingOffsets="earliest"))
    assert one.all() == [[]]
    fill(broker, names, 20)
    given = StreamDriver(options_of(broker, names, startingOffsets=json.dumps({names[0]: 15, names[1]: 20})))
    assert [sorted(bodies(rows)) for rows in given.all(ReadAllAvailable())] == [[], sorted(unique(names[0], 5, 15))]
    with pytest.raises(FairschedError, match=f"must have an offset for {names[1]}"):
        StreamDriver(options_of(broker, names, startingOffsets=json.dumps({names[0]: 15}))).plan()


@pytest.mark.rabbitmq("streams")
def test_available_now_stops_where_the_streams_ended(broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 30)
    one = StreamDriver(options_of(broker, names, startingOffsets="earliest", maxMessagesPerTrigger=20))
    one.reader.prepareForTriggerAvailableNow()
    published(broker, names[0], [b"late"] * 10, 30)
    assert [len(rows) for rows in one.all()] == [0, 20, 10]


@pytest.mark.rabbitmq("streams")
def test_long_ranges_are_read_in_pieces(broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT_MESSAGES", 64)
    names = queues(1, arguments=STREAM)
    fill(broker, names, 500)
    one = StreamDriver(
        options_of(broker, names, startingOffsets="earliest", queueAssignment="split-large", numPartitions=3)
    )
    one.offset = one.plan()
    end = one.plan()
    parts = one.read(end)
    assert [len(part) for part in parts] == [166, 167, 167]
    assert bodies([row for part in parts for row in part]) == unique(names[0], 500)


@pytest.mark.rabbitmq("streams")
def test_what_retention_took_is_an_error_unless_it_may_be_lost(broker: Node, queues: DeclareAll) -> None:
    arguments = {**STREAM, "x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 10_000}
    names = queues(1, arguments=arguments)
    one = StreamDriver(options_of(broker, names, startingOffsets="earliest", pollTimeout="500ms"))
    one.offset = one.plan()
    first = {**one.offset, "from": {names[0]: 0}, "streams": {names[0]: 100}}
    broker.publish(names[0], [b"x" * 500] * 100)

    def truncated() -> bool:
        broker.publish(names[0], [b"x" * 500] * 50)
        fresh = StreamDriver(options_of(broker, names, startingOffsets="earliest"))
        return bool(fresh.plan()["streams"][names[0]] > 20)

    eventually(truncated, 60, "retention removes a segment")
    # It may take the rest, too, and a loss shows only in a message that is there.
    before = bounds(one.options.broker, names, "last")[names[0]]
    broker.publish(names[0], [b"x"])
    eventually(lambda: bounds(one.options.broker, names, "last")[names[0]] > before)
    with pytest.raises(StreamTruncated, match=f"offsets 0 to .* of stream '{names[0]}' are gone"):
        one.read(first)
    lenient = StreamDriver(options_of(broker, names, failOnDataLoss="false", pollTimeout="500ms"))
    assert all(row["offset"] > 20 for part in lenient.read(first) for row in part)


@pytest.mark.rabbitmq("streams")
def test_a_gap_is_crossed_at_once(broker: Node, queues: DeclareAll) -> None:
    """However few messages a batch may have."""
    arguments = {**STREAM, "x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 10_000}
    names = queues(1, arguments=arguments)
    options = options_of(
        broker, names, startingOffsets="earliest", failOnDataLoss="false", maxMessagesPerTrigger=1, pollTimeout="500ms"
    )
    one = StreamDriver(options)
    one.offset = one.plan()
    assert one.offset["streams"] == {names[0]: 0}

    def truncated() -> bool:
        broker.publish(names[0], [b"x" * 500] * 50)
        return bounds(one.options.broker, names, "first")[names[0]] > 20

    eventually(truncated, 60, "retention removes a segment")
    end = one.plan()
    assert end["from"][names[0]] > 20
    assert [len(rows) for rows in one.read(end)] == [1]
    strict = StreamDriver({**options, "failOnDataLoss": "true"})
    strict.offset = {**end, "streams": {names[0]: 0}}
    with pytest.raises(StreamTruncated, match=r"offsets 0 to .* are gone"):
        strict.read(strict.plan())


@pytest.mark.rabbitmq("streams")
@pytest.mark.parametrize("strict", ["true", "false"])
def test_silence_is_no_loss(strict: str, broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 10)
    options = source_options(options_of(broker, names, failOnDataLoss=strict, pollTimeout="100ms", connectRetries=1))
    rows = streams.read_rows(options, ["body"], Range(names[0], 0, 15))
    assert next(rows).column("body").to_pylist() == unique(names[0], 10)
    with pytest.raises(ConnectionFailed, match=f"no messages of stream '{names[0]}' from offset 10 on"):
        next(rows)


@pytest.mark.rabbitmq("streams")
@pytest.mark.parametrize("body", [0, 1000, 150_000])
def test_a_range_has_one_consumer_and_pieces_of_bounded_size(
    body: int, broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamrange, "_WINDOW", 10)
    opened: list[Any] = []
    monkeypatch.setattr(streamrange, "open_session", lambda broker: opened.append(open_session(broker)) or opened[-1])
    [name] = queues(1, arguments=STREAM)
    sent = [b"%d" % number + b"x" * body for number in range(100)]
    published(broker, name, sent)
    options = source_options(options_of(broker, [name]))
    pieces = streamrange.read_range(
        options.broker, name, 3, 97, idle=options.poll_timeout, strict=True, most=7, most_bytes=500_000
    )
    decoder = Decoder(["body"])
    found = [decoder.batch(piece.deliveries, {}).column("body").to_pylist() for piece in pieces]
    assert [one for piece in found for one in piece] == sent[3:97]
    assert {len(piece) for piece in found[:-1]} == ({4} if body == 150_000 else {7})
    assert len(opened) == 1


@pytest.mark.rabbitmq("streams")
def test_a_lost_connection_costs_no_row_and_repeats_none(
    broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEGMENT_MESSAGES", 40)
    monkeypatch.setattr(streamrange, "_WINDOW", 20)
    [name] = queues(1, arguments=STREAM)
    fill(broker, [name], 200)
    found: list[int] = []
    for rows in streams.read_rows(source_options(options_of(broker, [name])), ["offset"], Range(name, 0, 200)):
        found += rows.column("offset").to_pylist()
        if len(found) in (40, 120):
            broker.close_connections()
    assert found == list(range(200))


@pytest.fixture(scope="module")
def speaking() -> Iterator[Node]:
    """A node that speaks the stream protocol."""
    node = Node(streams=True)
    try:
        node.start()
        yield node
    finally:
        node.close()


@pytest.mark.rabbitmq("streams")
def test_offsets_that_are_no_messages_are_no_loss(speaking: Node) -> None:
    name = "tracked"
    speaking.declare(name, arguments=STREAM)
    published(speaking, name, unique(name, 10))
    options = source_options(options_of(speaking, [name]))
    for number in range(3):
        store_offset(speaking.stream_port, name, "somebody", number)

    sent = 10

    def stored() -> bool:
        nonlocal sent
        sent += 1
        speaking.publish(name, [b"more"])
        return bounds(options.broker, [name], "last")[name] == sent + 3

    eventually(stored)
    end = bounds(options.broker, [name], "last")[name]
    [rows] = streams.read_rows(options, ["offset"], Range(name, 0, end))
    offsets = rows.column("offset").to_pylist()
    gone = sorted({*range(end)} - {*offsets})
    assert len(gone) == 3
    # Where a range begins or ends there, too.
    for low in (gone[0], gone[1]):
        parts = [Range(name, low - 5, low), Range(name, low, end)]
        pieces = [piece for part in parts for piece in streams.read_rows(options, ["offset"], part)]
        assert [one for piece in pieces for one in piece.column("offset").to_pylist()] == [
            one for one in offsets if one >= low - 5
        ]


@pytest.mark.rabbitmq("streams")
def test_a_stream_that_retention_emptied_is_as_it_was(broker: Node, queues: DeclareAll) -> None:
    arguments = {**STREAM, "x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 10_000}
    names = queues(1, arguments=arguments)
    one = StreamDriver(options_of(broker, names, pollTimeout="300ms"))

    def empty() -> bool:
        return not seen_bounds(one.options.broker, names, "last", 0.25) and broker.count(names[0]) > 0

    def emptied() -> bool:
        # A message larger than the bound begins a segment, and is taken with the one before it; a little later, and the
        # count of messages later still.
        broker.publish(names[0], [b"x" * 40_000])
        return any(empty() for _ in range(30))

    broker.publish(names[0], [b"x" * 500] * 10)
    eventually(lambda: bounds(one.options.broker, names, "last") == {names[0]: 10})
    one.offset = one.plan()
    eventually(emptied, 60, "retention takes all messages")
    assert one.plan() is None


@pytest.mark.rabbitmq("streams")
def test_a_stream_made_anew_is_an_error(broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 10)
    one = StreamDriver(options_of(broker, names))
    one.offset = one.plan()
    broker.delete(*names)
    broker.declare(*names, arguments=STREAM)
    fill(broker, names, 3)
    with pytest.raises(StreamTruncated, match="offsets 3 to 9"):
        one.plan()
    one.reader.prepareForTriggerAvailableNow()
    with pytest.raises(StreamTruncated, match="offsets 3 to 9"):
        one.plan()


@pytest.mark.rabbitmq("streams")
def test_the_end_of_a_stream_is_found_while_producers_never_pause(broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 5)
    over = threading.Event()

    def produce() -> None:
        with broker.connect() as channel:
            while not over.wait(0.05):
                channel.basic_publish("", names[0], b"x")

    found: list[int] = []
    options = source_options(options_of(broker, names))
    finder = threading.Thread(target=lambda: found.append(bounds(options.broker, names, "last")[names[0]]), daemon=True)
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        finder.start()
        eventually(lambda: found, 15, "the end of a stream that grows")
    finally:
        over.set()
        producer.join()
    assert found[0] >= 5


@pytest.mark.rabbitmq("streams")
def test_an_end_that_a_slow_broker_did_not_tell_is_no_loss(
    broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 10)
    one = StreamDriver(options_of(broker, names))
    one.offset = one.plan()
    monkeypatch.setattr(one.reader, "_find_ends", lambda: {names[0]: 4})
    assert one.plan() is None


@pytest.mark.rabbitmq("streams")
def test_latest_is_the_end_however_slow_the_broker(
    broker: Node, queues: DeclareAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 10)
    # With less patience than any broker needs, this finds every stream empty.
    monkeypatch.setattr(streamrange.bounds, "__defaults__", (0.0,))
    assert StreamDriver(options_of(broker, names)).plan()["streams"] == {names[0]: 10}


@pytest.mark.rabbitmq("streams")
def test_a_query_goes_on_with_fewer_streams(broker: Node, queues: DeclareAll) -> None:
    names = queues(2, arguments=STREAM)
    fill(broker, names, 5)
    both = StreamDriver(options_of(broker, names))
    both.offset = both.plan()
    one = StreamDriver(options_of(broker, names[:1]))
    one.offset = both.offset
    published(broker, names[0], unique(names[0], 5, 5), 5)
    [rows] = one.all()
    assert bodies(rows) == unique(names[0], 5, 5)


def test_ranges_are_split_only_when_allowed() -> None:
    options = {"url": "amqp://h", "streams": "a,b", "numPartitions": "4"}
    starts, ends = {"a": 10, "b": 0}, {"a": 310, "b": 100}
    assert ranges(starts, ends, source_options(options)) == [Range("a", 10, 310), Range("b", 0, 100)]
    split = ranges(starts, ends, source_options({**options, "queueAssignment": "split-large"}))
    assert split == [Range("a", 10, 110), Range("a", 110, 210), Range("a", 210, 310), Range("b", 0, 100)]
    bare = {"url": "amqp://h", "streams": "a,b"}
    assert ranges(starts, ends, source_options({**bare, "minPartitions": "4"})) == split
    short = ranges(starts, ends, source_options({**bare, "maxRecordsPerPartition": "150"}))
    assert short == [Range("a", 10, 160), Range("a", 160, 310), Range("b", 0, 100)]
    # Neither leaves anything out, or reads it twice.
    both = ranges(starts, ends, source_options({**bare, "maxRecordsPerPartition": "7", "minPartitions": "3"}))
    assert max(one.end - one.start for one in both) <= 7
    for name in "ab":
        offsets = [at for one in both if one.stream == name for at in range(one.start, one.end)]
        assert offsets == [*range(starts[name], ends[name])]


@pytest.mark.rabbitmq("streams")
def test_a_stream_is_read_from_a_moment_on(broker: Node, queues: DeclareAll) -> None:
    names = queues(2, arguments=STREAM)
    fill(broker, names, 20)
    # A chunk has a time in milliseconds, of which the broker is asked for whole seconds.
    between = int(time.time()) + 1
    eventually(lambda: time.time() > between + 0.1, 10)
    published(broker, names[0], unique(names[0], 7, 20), 20)
    found = StreamDriver(options_of(broker, names, startingTimestamp=between * 1000, pollTimeout="500ms"))
    found.offset = found.plan()
    # One has later messages, the other one ended before.
    assert found.offset["streams"] == dict(zip(names, (20, 20), strict=True))
    assert bodies([row for batch in found.all() for row in batch]) == unique(names[0], 7, 20)
    published(broker, names[1], [b"later"], 20)
    assert [bodies(rows) for rows in found.all()] == [[b"later"]]
    for moment, first in (0, 0), ((between + 86_400) * 1000, 27):
        one = StreamDriver(options_of(broker, names[:1], startingTimestamp=moment, pollTimeout="500ms"))
        assert one.plan()["streams"] == {names[0]: first}
    [rows] = batch(options_of(broker, names[:1], startingTimestamp=between * 1000))
    assert bodies(rows) == unique(names[0], 7, 20)


# Batch queries ------------------------------------------------------------------------------------------------------


def batch(options: dict[str, str]) -> list[list[dict[str, Any]]]:
    checked = source_options(options)
    reader = BatchReader(checked, schema_of(checked))
    return [[row for found in reader.read(part) for row in found.to_pylist()] for part in reader.partitions()]


def test_queues_are_browsed_and_keep_their_messages(broker: Node, queues: DeclareAll) -> None:
    names = queues(2)
    expected = running.fill(broker, names, 30)
    options = {"url": broker.url, "queues": json.dumps({names[0]: 2, names[1]: 1})}
    rows = [row for part in batch(options) for row in part]
    assert set(bodies(rows)) == expected
    eventually(lambda: [broker.count(name) for name in names] == [30, 30])
    few = batch({**options, "maxMessages": "9", "numPartitions": "1"})
    assert [counts(part) for part in few] == [{names[0]: 6, names[1]: 3}]
    assert all(row["redelivered"] for row in few[0])


def test_browsed_rows_may_be_split_and_stay_with_their_queue(broker: Node, queues: DeclareAll) -> None:
    names = queues(2)
    running.fill(broker, names, 10)
    options = {"url": broker.url, "queues": ",".join(names), "pollTimeout": "300ms", "numPartitions": "2"}
    assert sorted(list(counts(part).items()) for part in batch(options)) == [[(name, 10)] for name in names]
    eventually(lambda: [broker.count(name) for name in names] == [10, 10])
    parts = batch({**options, "queueAssignment": "split", "rowOrder": "queue", "maxMessages": "8"})
    assert [[row["queue"] for row in part] for part in parts] == [[names[0], names[0], names[1], names[1]]] * 2


def test_empty_queues_have_no_rows(broker: Node, queues: DeclareAll) -> None:
    names = queues(2)
    assert batch({"url": broker.url, "queues": ",".join(names)}) == []


@pytest.mark.rabbitmq("streams")
def test_streams_are_read_between_offsets(broker: Node, queues: DeclareAll) -> None:
    names = queues(1, arguments=STREAM)
    fill(broker, names, 40)
    [whole] = batch(options_of(broker, names))
    assert bodies(whole) == unique(names[0], 40)
    offsets = {"startingOffsets": json.dumps({names[0]: 5}), "endingOffsets": json.dumps({names[0]: 8})}
    [some] = batch(options_of(broker, names, **offsets))
    assert bodies(some) == unique(names[0], 3, 5)
