"""The streaming reader of queues: the driver plans the shares of a batch, and tasks read them.

While a query runs, Spark keeps one instance of the reader in a separate process, which plans. Tasks get copies that
know only the options, so everything else they need comes with the partition.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fairsched.errors import ConfigurationError
from fairsched.spark.source.depths import DepthProbe
from fairsched.spark.source.offsets import QueueOffset
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.partition import PartitionPlan, PartitionReader
from fairsched.spark.source.plan import allocate, assign, bounded_by_bytes, divided, partitions_worth
from fairsched.spark.source.requested_schema import RequestedSchema
from fairsched.spark.source.spool import NoSpool, Segment, Spool, open_spool

_log = logging.getLogger(__name__)


class QueuesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches of weighted shares, and reads them.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    schema : StructType
        The query's schema.

    Raises
    ------
    ConfigurationError
        If there is no spoolLocation, or the schema has unknown columns.
    """

    #: Reads a partition on an executor.
    partition_reader: type[PartitionReader] = PartitionReader

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.spool_location is None and not options.at_most_once:
            raise ConfigurationError(
                "option spoolLocation is missing: give a directory or object-store prefix that all executors share, "
                "for this query only, to be kept together with its checkpoint; or give ackMode=auto, which loses "
                "messages when a task fails"
            )
        self._options = options
        self._schema = RequestedSchema(schema, options)
        self._probe: DepthProbe | None = None
        self._checked = False
        self._since = time.monotonic()
        #: Messages that an AvailableNow run may still plan, by queue.
        self._target: dict[str, int] | None = None
        self._planned = self._settled = 0
        self._sizes: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        self._ages: dict[str, int] = {}
        self._shed: dict[str, int] = {}
        self._laws: dict[str, Sequence[int]] = {}
        self._depths: dict[str, int] = {}
        #: Messages that were ready and are not in the batch that was planned last, by queue.
        self._behind: dict[str, int] = {}

    # Planning, in the driver's long-lived process ------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset; Spark calls this twice, and the result must be the same."""
        return QueueOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the messages that are ready now; later ones are not read."""
        self._target = self._look()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the latest offset that the progress shows.

        Source, depths, the messages that the batch leaves, ages (ms, for messages with a time) and shed messages.
        """
        shed = {} if self._options.shedding is None else {"shed": self._shed}
        return {
            "source": self._options.description,
            "depths": self._depths,
            "behind": self._behind,
            "ages": self._ages,
            **shed,
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Plan the next batch; `start` itself if there is nothing to read."""
        begin = QueueOffset.from_json(start)
        self._check_spool(begin.epoch)
        ready = self._look()
        if self._target is not None:
            self._target_unread(begin)
            ready = {name: min(depth, self._target[name]) for name, depth in ready.items()}
        if not sum(ready.values()) or self._held_back(sum(ready.values()), limit):
            return start
        end = self._plan(begin, ready, limit)
        self._since = time.monotonic()
        self._planned = end.seq
        self._plan_target(end.shares)
        return end.to_json()

    def _look(self) -> dict[str, int]:
        if self._probe is None:
            self._probe = DepthProbe(self._options.broker, list(self._options.quanta), self._options.planning_interval)
        self._depths = self._probe.depths()
        return dict(self._depths)

    def _held_back(self, ready: int, limit: ReadLimit) -> bool:
        """Whether to wait for more (minMessagesPerTrigger, but no longer than maxTriggerDelay)."""
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return (
            ready < self._options.min_messages_per_trigger
            and time.monotonic() - self._since < self._options.max_trigger_delay
        )

    def _plan(self, begin: QueueOffset, ready: Mapping[str, int], limit: ReadLimit) -> QueueOffset:
        options = self._options
        sizes = {**begin.sizes, **self._sizes}
        # Without a limit (Trigger.Once) a batch is everything there is.
        most, most_bytes = (
            (limit.max_rows, options.max_bytes_per_trigger) if isinstance(limit, ReadMaxRows) else (None, None)
        )
        most = bounded_by_bytes(most, most_bytes, sizes, options.quanta, [name for name in ready if ready[name]])
        shares, carried = allocate(ready, options.quanta, most, begin.carried)
        self._behind = {name: depth - shares.get(name, 0) for name, depth in ready.items()}
        count = options.num_partitions or partitions_worth(shares, sizes)
        parts = assign(shares, count, options.queue_assignment, options.max_records_per_partition)
        epoch = begin.epoch or uuid.uuid4().hex
        largest = {**begin.largest, **self._largest}
        known, most_known = ({name: of[name] for name in options.quanta if name in of} for of in (sizes, largest))
        return QueueOffset(begin.seq + 1, epoch, tuple(parts), carried, known, most_known, most_bytes or 0)

    def _plan_target(self, shares: Mapping[str, int]) -> None:
        if self._target is not None:
            self._target = {name: max(0, left - shares.get(name, 0)) for name, left in self._target.items()}

    def _target_unread(self, done: QueueOffset) -> None:
        """Let an AvailableNow run read what its last batch had no bytes left for."""
        if not done.budget or done.seq != self._planned or done.seq == self._settled:
            return
        self._settled = done.seq
        spool = self._check_spool(done.epoch)
        for index, shares in enumerate(done.parts):
            counts = spool.counts(done.seq, index)
            if counts:  # A partition that found nothing had bytes enough.
                self._plan_target({name: counts.get(name, 0) - share for name, share in shares.items()})

    def _check_spool(self, epoch: str) -> Spool | NoSpool:
        spool = open_spool(self._options, epoch)
        if not self._checked:
            spool.refuse_foreign(self._options.fail_on_data_loss)
            self._checked = True
        return spool

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions that the end offset names, whatever the options say now."""
        found = QueueOffset.from_json(end)
        if not found.seq:
            return []  # Spark begins with a batch of nothing when there is nothing yet.
        spool = self._check_spool(found.epoch)
        spool.open_batch(found.seq, self._options.fail_on_data_loss)
        if found.seq > self._planned:
            # A batch of an earlier run: what it reads now, and not from the spool, this run has counted as ready.
            self._planned = found.seq
            for index, shares in enumerate(found.parts):
                done = spool.counts(found.seq, index) if self._target else {}
                self._plan_target({name: share - done.get(name, 0) for name, share in shares.items()})
        budgets = divided(found.budget, found.parts, found.sizes)
        return [
            InputPartition(
                PartitionPlan(
                    index,
                    found.seq,
                    found.epoch,
                    shares,
                    found.sizes,
                    found.largest,
                    budget,
                    self._laws_of(shares),
                    self._target is not None,
                )
            )
            for index, (shares, budget) in enumerate(zip(found.parts, budgets, strict=True))
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Remove what need not be read again; a failure only leaves files behind."""
        found = QueueOffset.from_json(end)
        try:
            if found.seq:
                self._learn(self._check_spool(found.epoch).close_until(found.seq))
        except Exception:
            _log.warning("batch %d could not be removed from the spool", found.seq, exc_info=True)

    def _laws_of(self, shares: Mapping[str, int]) -> dict[str, Sequence[int]]:
        return {name: self._laws[name] for name in shares if name in self._laws}

    def _learn(self, segments: Sequence[Segment]) -> None:
        self._shed = {}
        for segment in segments:
            self._laws.update(segment.laws)
            for name, count in segment.shed.items():
                self._shed[name] = self._shed.get(name, 0) + count
        for name in self._options.quanta:
            count = sum(one.counts.get(name, 0) for one in segments)
            if count:
                self._sizes[name] = sum(one.sizes.get(name, 0) for one in segments) // count
                # A large one is remembered for some batches.
                self._largest[name] = max(
                    self._largest.get(name, 0) // 2, *(one.largest.get(name, 0) for one in segments), 0
                )
            ages = [one.ages[name] for one in segments if name in one.ages]
            if ages:
                self._ages[name] = ages[-1]

    def stop(self) -> None:
        """Close the planner's connection, if Spark gives us the time."""
        if self._probe is not None:
            self._probe.close()

    # Reading, on an executor ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        reader = self.partition_reader(self._options, self._schema.names, partition.value)
        return self._schema.fit(reader.read())
