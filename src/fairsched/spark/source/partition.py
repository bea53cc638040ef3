"""A task's part of a batch of queues: replay what is published, consume the rest, publish it, acknowledge it.

The order of things is what nothing is lost by: collect unacknowledged, cancel, publish, and only then acknowledge, and
only what this attempt has published. What was asked for and does not fit into a segment begins the next one, and rows
are passed on when nothing is under way: the broker would wait for the reader. One task, one thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed, QueueNotFound, RequestRefused
from fairsched.spark.broker import Retries, open_session
from fairsched.spark.source.columns import Decoder, Known, taken
from fairsched.spark.source.consuming import UNDER_WAY, QueuesChannel, figures
from fairsched.spark.source.depths import depths
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.plan import allocate
from fairsched.spark.source.roworder import choose, row_order
from fairsched.spark.source.shedding import judge_known
from fairsched.spark.source.spill import Spill
from fairsched.spark.source.spool import Segment, open_spool
from fairsched.spark.source.windows import Seen

_log = logging.getLogger(__name__)

#: Bounds of a segment: what a task holds in memory, and what one failure can repeat.
SEGMENT_MESSAGES = 10_000
SEGMENT_BYTES = 32 << 20
#: Seconds after which a partition of a batch that is bounded asks for no more: what makes rows slow makes the batch
#: small, since a queue that was quiet when the batch was planned waits for its end.
LONGEST = 10.0


@dataclass(frozen=True)
class PartitionPlan:
    """One partition of a batch: where it is published, how much it reads of what (see `offsets.QueueOffset`), and where
    the law of each queue stands (see `shedding`). `ends`: the query ends with what it has (`availableNow`).
    """

    index: int
    seq: int
    epoch: str
    shares: Mapping[str, int]
    sizes: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    budget: int = 0
    laws: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ends: bool = False


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
        #: From earlier batches, and then from the segments before.
        self._seen = Seen(dict(part.sizes), dict(part.largest))
        self._laws = part.laws
        dead = options.shedding is not None and options.shedding.action == "dead-letter"
        self._returns = AckLedger.REJECT if dead else AckLedger.REQUEUE
        self._bytes = 0
        self._until = time.monotonic() + LONGEST
        self._session: Session | None = None
        self._channel: QueuesChannel | None = None

    def reached(self, stage: str) -> None:
        """Note that a segment was "collected", "published" or "acknowledged"; for subclasses that watch."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each segment once it is published and acknowledged."""
        part, number, held = self._part, 1, Spill()
        try:
            while True:
                segment = self._spool.published(part.seq, part.index, number) or self._make(number)
                if segment is None:
                    continue  # Another attempt was first: its segment is there now.
                if segment.batch.num_rows:
                    held.append(segment.batch)
                if self._channel is None or not self._channel.remaining or segment.last:
                    yield from held.taken()
                if segment.last:
                    return
                self._note(segment)
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
            self._give_back(collected)
            return None
        self.reached("published")
        collected.judge(verdicts)
        if not collected.remaining:
            self._settle(collected)
        self.reached("acknowledged")
        return segment

    def _note(self, segment: Segment) -> None:
        """Go on behind a segment."""
        for name, count in segment.counts.items():
            self._left[name] = max(0, self._left.get(name, 0) - count)
        if self._channel is not None:
            self._left |= dict.fromkeys(self._channel.exhausted, 0)
        self._seen = self._seen.add(segment.counts, segment.sizes, segment.largest)
        self._bytes += sum(segment.sizes.values())
        self._laws = segment.laws

    def _collect(self) -> tuple[dict[str, int] | None, QueuesChannel]:
        """Collect what the next segment is made of; over a new connection, should one be lost.

        The first result is how much of each queue it takes; None for all that is here.
        """
        retries = Retries(self._options.broker)
        while True:
            session = self._connected()
            try:
                if self._channel is None:
                    self._channel = QueuesChannel(session)
                shares = self._fill(self._channel)
                self._tell_withheld(self._channel.withheld)
                return shares, self._channel
            except QueueNotFound as error:
                self._close()
                self._missing(error)
            except ConnectionFailed as error:
                self._close()
                retries.failed(error)

    def _tell_withheld(self, withheld: Mapping[str, int]) -> None:
        """Say which queues have messages and deliver none; an error if the query would end without them."""
        for name, count in withheld.items():
            text = (
                f"queue {name!r} has {count} messages and delivers none: another consumer is its single active consumer"
            )
            if self._part.ends:
                raise RequestRefused(f"{text}; stop that one, and start the query again")
            _log.warning("%s; the query reads it when that one is gone", text)

    def _missing(self, error: QueueNotFound) -> None:
        """Go on without queues that were deleted, if data may be lost; otherwise raise an error with the remedy."""
        if self._options.fail_on_data_loss:
            raise QueueNotFound(
                f"{error}; the checkpoint has a batch (number {self._part.seq}) that reads it. Declare it again, empty "
                "if need be, until that batch is done; or start the query with failOnDataLoss=false"
            ) from None
        for name in [name for name, left in self._left.items() if left]:
            try:
                depths(self._connected(), [name])
            except QueueNotFound:
                self._close()
                self._left[name] = 0
                _log.warning("queue %r was deleted: its messages in batch %d are lost", name, self._part.seq)

    def _fill(self, found: QueuesChannel) -> dict[str, int] | None:
        if found.remaining:
            found.begin(SEGMENT_MESSAGES, SEGMENT_BYTES)
            found.take(self._options.poll_timeout)
            return None
        found.begin(SEGMENT_MESSAGES, self._most_bytes())
        shares, ahead = self._shares(), self._options.fair_lookahead
        if ahead == 1:
            self._ask(found, shares)
            return shares
        ready = found.ready(shares)
        self._ask(found, {name: min(share, ready[name]) for name, share in shares.items()})
        # Messages that the queue counts are at its head and are not returned again: do not look beyond them.
        counted = self._counted(found)
        counts, _, _ = found.sizes()
        more = {name: min(share * ahead, ready[name]) - counts.get(name, 0) for name, share in shares.items()}
        self._ask(found, {name: left for name, left in more.items() if name not in counted | found.exhausted})
        return shares

    def _shares(self) -> dict[str, int]:
        """Return how much of each queue the next segment takes."""
        ahead = self._options.fair_lookahead
        room = max(1, SEGMENT_MESSAGES // ahead)
        known = {name: size for name, size in self._seen.mean.items() if self._left.get(name)}
        if known:
            total = sum(self._left[name] for name in known)
            mean = max(1, sum(self._left[name] * size for name, size in known.items()) // total)
            room = min(room, -(-SEGMENT_BYTES // (ahead * mean)))
        return allocate(self._left, self._part.shares, room, {})[0]

    def _ask(self, found: QueuesChannel, wanted: Mapping[str, int]) -> None:
        """Ask for messages until all are here, the segment is full, or the queues have no more.

        Each window is a consumer, whose messages RabbitMQ settles apart, and not too many at a time.
        """
        left = {name: count for name, count in wanted.items() if count > 0}
        while left and not found.deliveries.full and found.windows < UNDER_WAY:
            windows = self._seen.add(*found.sizes()).windows(left, found.deliveries.space)
            if not windows:
                if found.part:
                    return
                windows = dict.fromkeys([*left][:1], 1)
            found.ask(windows, self._options.consumer_arguments, self._options.poll_timeout)
            left = {name: count - windows.get(name, 0) for name, count in left.items()}
            left = {name: count for name, count in left.items() if count and name not in found.exhausted}

    def _counted(self, found: QueuesChannel) -> set[str]:
        """Queues that have counted as often as is allowed that a message of this part came back."""
        tags = found.deliveries.queues({tag: place for place, tag in enumerate(found.queues)})
        names, places = list(found.queues.values()), np.frombuffer(tags, np.int32)
        return {names[place] for place in np.unique(places[found.returns() >= self._options.max_returns])}

    def _most_bytes(self) -> int:
        budget = self._part.budget
        return min(SEGMENT_BYTES, budget - self._bytes) if budget else SEGMENT_BYTES

    def _segment(self, shares: Mapping[str, int] | None, collected: QueuesChannel) -> tuple[Segment, list[int] | None]:
        """Decode, choose, judge and order; the second result is a verdict on each delivery, None to acknowledge all."""
        deliveries = collected.deliveries
        known = self._decoder.look(deliveries, collected.queues)
        places = np.arange(deliveries.count)
        if self._options.fair_lookahead > 1 and shares is not None:
            kept = collected.returns() >= self._options.max_returns
            _warn_of_returns(known, kept)
            keys = known["key"].to_pylist()
            chosen = choose(known["queue"].to_pylist(), keys, self._options.key_quanta, shares, kept.tolist())
            places = np.array(chosen, np.int64)
            known = taken(deliveries, known, places)
        counts, sizes, largest, ages = _figures(known)
        emptied = [name for name in shares or () if name in collected.exhausted]
        found, known = judge_known(self._options.shedding, self._laws, known, emptied)
        if found.returned:
            known = taken(deliveries, known, found.shown)
        batch = self._decoder.batch(deliveries, known, row_order(self._options, known))
        segment = Segment(batch, counts, sizes, ages, shed=found.shed, laws=found.laws, largest=largest)
        segment = replace(segment, last=self._is_last(segment, collected))
        if len(found.shown) == collected.part:
            return segment, None
        verdicts = [AckLedger.REQUEUE] * collected.part
        for verdict, rows in ((AckLedger.ACK, found.shown), (self._returns, found.returned)):
            for row in rows:
                verdicts[places[row]] = verdict
        return segment, verdicts

    def _is_last(self, segment: Segment, collected: QueuesChannel) -> bool:
        """Whether the partition ends with a segment: nothing is under way, and no more is wanted, there, or fits.

        Or it has lasted long enough.
        """
        if collected.remaining:
            return False
        left = {name: count - segment.counts.get(name, 0) for name, count in self._left.items()}
        left = {name: count for name, count in left.items() if count > 0 and name not in collected.exhausted}
        if not left or not segment.counts:
            return True
        seen = self._seen.add(segment.counts, segment.sizes, segment.largest)
        space = self._part.budget - self._bytes - sum(segment.sizes.values())
        return self._part.budget > 0 and (time.monotonic() > self._until or not seen.windows(left, space))

    def _settle(self, collected: QueuesChannel) -> None:
        """Tell the broker the verdicts."""
        try:
            # To be answered late is better than to have it all again.
            collected.settle(1 + self._options.broker.retries)
        except ConnectionFailed as error:
            if self._options.at_most_once:
                raise  # The broker redelivers what it got no settlement for, so do not show it now.
            # Published is published: what the broker did not hear of comes a second time.
            _log.warning("published messages may come again, redelivered: %s", error)
            self._close()

    def _give_back(self, collected: QueuesChannel) -> None:
        """Return what another attempt has published a segment instead of."""
        self._channel = None
        try:
            collected.give_back()
        except ConnectionFailed:
            self._close()  # Then they come back with it.

    # The connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        if self._session is None or not self._session.is_open:
            self._close()
            self._session = open_session(self._options.broker)
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        channel, self._channel = self._channel, None
        if session is None:
            return
        if channel is not None and session.is_open:
            # Messages that were published while others were under way.
            with contextlib.suppress(ConnectionFailed):
                channel.settle()
        session.close()


def _warn_of_returns(known: Known, kept: NDArray[np.bool_]) -> None:
    """Say once in this process that a queue counts what goes back."""
    for queue in known["queue"].filter(pa.array(kept)).unique().to_pylist():
        _tell(queue)


@functools.cache
def _tell(queue: str) -> None:
    _log.warning(
        "queue %r counts messages that fairLookahead returns, and drops a message at its delivery limit. Those that "
        "came back as often as maxReturns allows are read in the order of the queue, without looking ahead", queue
    )  # fmt: skip


def _figures(known: Known) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
    """Messages, bytes, the largest message, and the age of the last one in milliseconds, by queue."""
    encoded = known["queue"].dictionary_encode()
    names, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
    counts, sizes, largest = figures(names, places, known["size"].to_numpy())
    dated = np.flatnonzero(known["enqueued_at"].is_valid().to_numpy(zero_copy_only=False))
    last = np.full(len(names), -1)
    last[places[dated]] = dated  # of several rows the last one stays
    ages: dict[str, int] = {}
    for name, row in zip(names, last.tolist(), strict=True):
        if row >= 0:
            ages[name] = max(0, (known["received_at"][row].as_py() - known["enqueued_at"][row].as_py()) // 1000)
    return counts, sizes, largest, ages
