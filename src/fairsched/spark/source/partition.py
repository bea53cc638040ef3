"""A task's part of a batch of queues: replay what is published, consume the rest, publish it, acknowledge it.

The order of things is what nothing is lost by: collect unacknowledged, cancel, publish, and only then acknowledge, and
only what this attempt has published. One task, one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fairsched._amqp import AckLedger
from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.spark.broker import Retries, open_session
from fairsched.spark.source.consuming import ConsumingChannel, collect
from fairsched.spark.source.depths import depths
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.plan import allocate
from fairsched.spark.source.roworder import choose, row_order
from fairsched.spark.source.rows import Decoder, Known, taken
from fairsched.spark.source.shedding import judge_known
from fairsched.spark.source.spool import Segment, open_spool

_log = logging.getLogger(__name__)

#: Bounds of a segment: what a task holds in memory, and what one failure can repeat.
SEGMENT_MESSAGES = 10_000
SEGMENT_BYTES = 32 << 20


@dataclass(frozen=True)
class PartitionPlan:
    """One partition of a batch: where it is published, how much it reads of what (see `offsets.QueueOffset`), and where
    the law of each queue stands (see `shedding`).
    """

    index: int
    seq: int
    epoch: str
    shares: Mapping[str, int]
    sizes: Mapping[str, int] = field(default_factory=dict)
    budget: int = 0
    laws: Mapping[str, Sequence[int]] = field(default_factory=dict)


class PartitionReader:
    """Reads one partition, once.

    Parameters
    ----------
    options : SourceOptions
        Of the source.
    names : sequence of str
        Columns.
    part : PartitionPlan
        What to read.
    """

    def __init__(self, options: SourceOptions, names: Sequence[str], part: PartitionPlan) -> None:
        self._options = options
        self._part = part
        self._spool = open_spool(options, part.epoch)
        self._decoder = Decoder(
            names, options.fair_key, options.enqueue_time_header, timed=options.shedding is not None
        )
        self._left = dict(part.shares)
        #: Mean size of a queue's messages, from earlier batches, and then from the segment before.
        self._sizes = dict(part.sizes)
        self._laws = part.laws
        dead = options.shedding is not None and options.shedding.action == "dead-letter"
        self._returns = AckLedger.REJECT if dead else AckLedger.REQUEUE
        self._bytes = 0
        self._session: Session | None = None

    def reached(self, stage: str) -> None:
        """Note that a segment was "collected", "published" or "acknowledged"; for subclasses that watch."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each segment once it is published and acknowledged."""
        part, number = self._part, 1
        try:
            while True:
                segment = self._spool.published(part.seq, part.index, number) or self._make(number)
                if segment is None:
                    continue  # Another attempt was first: its segment is there now.
                if segment.batch.num_rows:
                    yield segment.batch
                if segment.last:
                    return
                for name, count in segment.counts.items():
                    self._left[name] = max(0, self._left.get(name, 0) - count)
                    self._sizes[name] = segment.sizes.get(name, 0) // max(1, count)
                self._bytes += sum(segment.sizes.values())
                self._laws = segment.laws
                number += 1
        finally:
            self._close()

    # One segment -------------------------------------------------------------------------------------------------

    def _make(self, number: int) -> Segment | None:
        part = self._part
        self._spool.check_open(part.seq)
        shares, collected = self._collect()
        segment, verdicts = self._segment(shares, collected)
        self.reached("collected")
        if not self._spool.publish(part.seq, part.index, number, segment):
            self._settle(collected, [AckLedger.REQUEUE] * collected.deliveries.came)
            return None
        self.reached("published")
        self._settle(collected, verdicts)
        self.reached("acknowledged")
        return segment

    def _collect(self) -> tuple[dict[str, int], ConsumingChannel]:
        """Collect what the next segment is made of; over a new connection, should one be lost."""
        retries = Retries(self._options.broker)
        while True:
            session = self._connected()
            try:
                shares, windows = self._windows(session)
                arguments, idle = self._options.consumer_arguments, self._options.poll_timeout
                return shares, collect(session, windows, arguments=arguments, idle=idle, most_bytes=self._most_bytes())
            except ConnectionFailed as error:
                self._close()
                retries.failed(error)

    def _windows(self, session: Session) -> tuple[dict[str, int], dict[str, int]]:
        """How much of each queue the next segment takes, and how much of it is looked at.

        What does not fit into the segment goes back, and a quorum queue counts that: at its delivery limit it drops a
        message. So no more is asked for than is expected to fit.
        """
        ahead = self._options.fair_lookahead
        room = max(1, SEGMENT_MESSAGES // ahead)
        known = {name: size for name, size in self._sizes.items() if self._left.get(name)}
        if known:
            total = sum(self._left[name] for name in known)
            mean = max(1, sum(self._left[name] * size for name, size in known.items()) // total)
            room = min(room, -(-SEGMENT_BYTES // (ahead * mean)))
        shares, _ = allocate(self._left, self._part.shares, room, {})
        if ahead == 1:
            return shares, shares
        ready = depths(session, shares)
        windows = {name: min(share * ahead, ready[name], LARGEST_PREFETCH) for name, share in shares.items()}
        # As a prefetch, 0 would mean no limit.
        return shares, {name: window for name, window in windows.items() if window}

    def _most_bytes(self) -> int:
        budget = self._part.budget
        return min(SEGMENT_BYTES, budget - self._bytes) if budget else SEGMENT_BYTES

    def _segment(self, shares: Mapping[str, int], collected: ConsumingChannel) -> tuple[Segment, list[int] | None]:
        """Decode, choose, judge and order; the second result is a verdict on each delivery, None to acknowledge all."""
        deliveries = collected.deliveries
        known = self._decoder.look(deliveries, collected.queues)
        places = np.arange(deliveries.count)
        if self._options.fair_lookahead > 1:
            keys = known["key"].to_pylist()
            places = np.array(choose(known["queue"].to_pylist(), keys, self._options.key_quanta, shares), np.int64)
            known = taken(deliveries, known, places)
        counts, sizes, ages = _figures(known)
        left = sum(self._left.values()) - sum(counts.values())
        size = self._bytes + sum(sizes.values())
        last = left <= 0 or not collected.full or not counts or 0 < self._part.budget <= size
        emptied = [] if collected.full else [name for name in shares if counts.get(name, 0) < shares[name]]
        found, known = judge_known(self._options.shedding, self._laws, known, emptied)
        if found.returned:
            known = taken(deliveries, known, found.shown)
        batch = self._decoder.batch(deliveries, known, row_order(self._options, known))
        segment = Segment(batch, counts, sizes, ages, last, shed=found.shed, laws=found.laws)
        if len(found.shown) == deliveries.came:
            return segment, None
        verdicts = [AckLedger.REQUEUE] * deliveries.came
        for verdict, rows in ((AckLedger.ACK, found.shown), (self._returns, found.returned)):
            for row in rows:
                verdicts[places[row]] = verdict
        return segment, verdicts

    def _settle(self, collected: ConsumingChannel, verdicts: Sequence[int] | None) -> None:
        """Tell the broker the verdicts, None for an acknowledgement of everything."""
        try:
            if verdicts is None:
                collected.acknowledge(collected.deliveries.came)
            else:
                collected.settle(_frames(verdicts))
            # To be answered late is better than to have it all again.
            collected.close(1 + self._options.broker.retries)
        except ConnectionFailed as error:
            if self._options.at_most_once:
                raise  # What the broker did not hear of comes again, so it must not be shown now.
            # Published is published: what the broker did not hear of comes a second time.
            _log.warning("published messages may come again, redelivered: %s", error)
            self._close()

    # The connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        if self._session is None or not self._session.is_open:
            self._close()
            self._session = open_session(self._options.broker)
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _frames(verdicts: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Verdict, delivery tag and "multiple" of the fewest frames that settle tags 1, 2, 3, … so."""
    ledger = AckLedger()
    for tag, verdict in enumerate(verdicts, 1):
        ledger.deliver(tag)
        ledger.settle(tag, verdict)
    return ledger.flush()


def _figures(known: Known) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Messages, bytes, and the age of the last message in milliseconds, by queue."""
    encoded = known["queue"].dictionary_encode()
    names, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
    counts, sizes = np.bincount(places, minlength=len(names)), np.zeros(len(names), np.int64)
    np.add.at(sizes, places, known["size"].to_numpy())
    dated = np.flatnonzero(known["enqueued_at"].is_valid().to_numpy(zero_copy_only=False))
    last = np.full(len(names), -1)
    last[places[dated]] = dated  # of several rows the last one stays
    ages: dict[str, int] = {}
    for name, row in zip(names, last.tolist(), strict=True):
        if row >= 0:
            ages[name] = max(0, (known["received_at"][row].as_py() - known["enqueued_at"][row].as_py()) // 1000)
    return dict(zip(names, counts.tolist(), strict=True)), dict(zip(names, sizes.tolist(), strict=True)), ages
