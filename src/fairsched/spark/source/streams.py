"""The streaming source over RabbitMQ streams: batches are ranges of offsets, which can be read again."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fairsched.spark.source.chunkrange import NoStreamPort, chunks_cluster, read_chunks, with_partitions
from fairsched.spark.source.columns import Decoder
from fairsched.spark.source.offsets import StreamOffset
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.partition import SEGMENT_BYTES, SEGMENT_MESSAGES
from fairsched.spark.source.plan import allocate, partitions_worth
from fairsched.spark.source.requested_schema import RequestedSchema
from fairsched.spark.source.starts import starting_offsets
from fairsched.spark.source.streamrange import bounds, check_known, missing, read_range, seen_bounds

_log = logging.getLogger(__name__)

#: Seconds after which the planner looks again where streams begin, and for which it watches one that is empty.
_FIRST_INTERVAL, _QUIET = 10.0, 0.25


@dataclass(frozen=True)
class Range:
    """Offsets from `start` up to, not including, `end`.

    `cluster` names the cluster whose stream port is used; with an empty name they are read over AMQP.
    """

    stream: str
    start: int
    end: int
    cluster: str = ""


def ranges(starts: dict[str, int], ends: dict[str, int], options: SourceOptions, cluster: str = "") -> list[Range]:
    """Return a range per stream, or several of equal length, by queueAssignment or minPartitions.

    No range is longer than maxRecordsPerPartition.
    """
    found = []
    lengths = {name: max(0, ends[name] - start) for name, start in starts.items()}
    wanted = options.min_partitions or 0
    if not wanted and options.queue_assignment != "affinity":
        wanted = options.num_partitions or partitions_worth(lengths, {})
    most = options.max_records_per_partition
    total = sum(lengths.values())
    for name, start in starts.items():
        length = ends[name] - start
        pieces = max(1, round(wanted * length / max(1, total)), -(-length // most) if most else 1)
        cuts = [start + length * number // pieces for number in range(pieces + 1)]
        found += [Range(name, low, high, cluster) for low, high in itertools.pairwise(cuts) if low < high]
    return found


def read_rows(options: SourceOptions, names: Sequence[str], part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, some thousand at a time."""
    decoder = Decoder(names, options.fair_key, options.enqueue_time_header)
    if part.cluster:
        try:
            pieces = read_chunks(
                options, part.cluster, part.stream, part.start, part.end, most=SEGMENT_MESSAGES,
                most_bytes=SEGMENT_BYTES,
            )  # fmt: skip
            yield from (decoder.rows(found.deliveries, found.queues) for found in pieces)
            return
        except NoStreamPort as error:
            _log.warning("offsets %d to %d are read over AMQP: %s", part.start, part.end - 1, error)
    for found in read_range(
        options.broker, part.stream, part.start, part.end, idle=options.poll_timeout, strict=options.fail_on_data_loss,
        most=SEGMENT_MESSAGES, most_bytes=SEGMENT_BYTES,
    ):  # fmt: skip
        yield decoder.rows(found.deliveries, found.queues)


class StreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges of offsets, weighted among streams, and reads them.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    schema : StructType
        The query's schema.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = RequestedSchema(schema, options)
        self._ends: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._looked = self._look_again = float("-inf")
        self._since = time.monotonic()
        self._target: dict[str, int] | None = None
        self._cluster: str | None = None
        self._partitioned = float("-inf")

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset; the first batch determines where that is."""
        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current ends of the streams."""
        # Messages beyond these ends are not read in this run.
        self._look_up()
        self._target = self._find_ends(self._options.poll_timeout)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the latest offset that the progress shows: source, known ends, and the distance to them."""
        return {"source": self._options.description, "streams": self._ends, "behind": self._left}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Plan the next batch; `start` itself if there is nothing to read."""
        self._look_up()
        options, begin = self._options, StreamOffset.from_json(start)
        if begin.ends is None:
            # An empty batch writes down what "latest" means, so that a restart does not take it for something later.
            found = starting_offsets(options, "latest", self._chunks_cluster)
            return StreamOffset(found, found).to_json()
        starts = dict(begin.ends)
        new = [name for name in options.quanta if name not in starts]
        if new:
            starts.update(bounds(options.broker, new, "first", options.poll_timeout))
        self._skip_gaps(starts)
        ready = self._ready(starts, limit)
        least = options.min_messages_per_trigger if self._target is None else 1
        total = sum(ready.values())
        if not total or (total < least and time.monotonic() - self._since < options.max_trigger_delay):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        shares, carried = allocate(ready, options.quanta, most, begin.carried)
        ends = {name: starts[name] + shares.get(name, 0) for name in options.quanta}
        self._left = {name: self._ends[name] - end for name, end in ends.items()}
        self._since = time.monotonic()
        return StreamOffset(ends, {name: starts[name] for name in ends}, carried).to_json()

    def _chunks_cluster(self) -> str:
        """Return the cluster whose stream port is used; asked once."""
        if self._cluster is None:
            self._cluster = chunks_cluster(self._options)
        return self._cluster

    def _look_up(self) -> None:
        """Look up the streams of a super stream, once in a while: those that are added are read from their first."""
        now = time.monotonic()
        if self._target is None and now >= self._partitioned + _FIRST_INTERVAL:
            self._options = with_partitions(self._options)
            self._partitioned = now

    def _skip_gaps(self, starts: dict[str, int]) -> None:
        """Let streams begin with their first message, if that may be; asked once in a while.

        What retention took could be millions of offsets, of which a batch crosses as many as it may have messages. That
        it is an error otherwise, the task says that finds the gap.
        """
        options, now = self._options, time.monotonic()
        if options.fail_on_data_loss or now < self._look_again:
            return
        firsts = seen_bounds(options.broker, list(starts), "first", _QUIET)
        for name, first in firsts.items():
            if first > starts[name]:
                missing(name, starts[name], first, strict=False)
                starts[name] = first
        self._look_again = time.monotonic() + _FIRST_INTERVAL

    def _ready(self, starts: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the ends of the streams beyond `starts`; they are only looked for when the known ones are too near."""
        known = self._target or self._ends
        if self._target is None:
            ready = self._ahead(known, starts)
            if isinstance(limit, ReadMaxRows) and sum(ready.values()) >= limit.max_rows:
                return ready
            known = self._find_ends()
        self._check(known, starts)
        return self._ahead(known, starts)

    def _ahead(self, known: dict[str, int], starts: dict[str, int]) -> dict[str, int]:
        return {name: max(0, known.get(name, 0) - starts[name]) for name in self._options.quanta}

    def _check(self, known: dict[str, int], starts: dict[str, int]) -> None:
        """Complain of streams that end before `starts`, unless the broker was only slow to say where they end."""
        short = {name: starts[name] for name in self._options.quanta if known[name] < starts[name]}
        if short:
            options = self._options
            check_known(
                seen_bounds(options.broker, list(short), "last", options.poll_timeout), short, options.fail_on_data_loss
            )

    def _find_ends(self, *quiet: float) -> dict[str, int]:
        time.sleep(max(0.0, self._looked + self._options.planning_interval - time.monotonic()))
        self._ends = bounds(self._options.broker, list(self._options.quanta), "last", *quiet)
        self._looked = time.monotonic()
        return self._ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges that the end offset names."""
        found, options = StreamOffset.from_json(end), self._options
        parts = ranges(dict(found.starts or {}), dict(found.ends or {}), options, self._chunks_cluster())
        return [InputPartition(one) for one in parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be done: a stream keeps its messages."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        return self._schema.fit(read_rows(self._options, self._schema.names, partition.value))
