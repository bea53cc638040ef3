"""Batches that can be read again: the rows of each partition, in segments published before anything is acknowledged.

    <location>/<epoch>/<seq>/open                     the batch may be written to
    <location>/<epoch>/<seq>/part-00000-00001.arrow   first segment of partition 0: an Arrow IPC stream

A segment is created exclusively, so of several attempts at a partition one wins each segment, and all of them give the
same rows. The last one says so itself: an attempt that thinks it is done and one that goes on compete for one name.

A late attempt must not publish into a batch that was committed and removed, because it would not be read. `open` is
removed first: a writer that creates a segment after the removal does not find `open`, and must not acknowledge.

No pyspark and no pika here. One thread per object, any number of processes per location.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from fairsched.errors import FairschedError
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.store import Store, check, open_store, refusal

_log = logging.getLogger(__name__)

_INFO = b"fairsched"
#: A segment says what is in it before its rows, as a rule within so many bytes.
_HEAD = 1 << 20


class BatchGone(FairschedError):
    """The batch was committed meanwhile: this attempt comes too late, and acknowledges nothing."""


class SpoolNotWritable(FairschedError):
    """The rows read cannot be kept, such as on a full disk: they are not acknowledged, and come again."""


class SpoolLost(FairschedError):
    """The spool is not the one that the checkpoint was written with."""


@dataclass(frozen=True)
class Segment:
    """Some rows of a partition and what is known of them.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The rows in their order.
    counts, sizes : dict of str to int
        Messages, and their bytes with all headers, by queue; those that went back are counted, too.
    ages : dict of str to int
        Milliseconds that the last message of a queue had waited, where messages say when they were sent.
    last : bool
        Whether the partition ends here.
    attempt : str
        The writer.
    shed : dict of str to int
        Messages that had waited too long, by queue.
    laws : dict of str to list of int
        Where each queue's law stands after them (`CoDel.state`).
    largest : dict of str to int
        Bytes of the largest message of each queue.
    """

    batch: pa.RecordBatch
    counts: Mapping[str, int]
    sizes: Mapping[str, int]
    ages: Mapping[str, int] = field(default_factory=dict)
    last: bool = True
    attempt: str = ""
    shed: Mapping[str, int] = field(default_factory=dict)
    laws: Mapping[str, Sequence[int]] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)

    def to_buffer(self) -> pa.Buffer:
        """Return the bytes of an Arrow IPC stream."""
        info = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "batch"}
        batch = self.batch.replace_schema_metadata({_INFO: json.dumps(info).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    @classmethod
    def from_buffer(cls, data: Any, *, rows: bool = True) -> Segment:
        """Read what `to_buffer` gave; without `rows`, its beginning is enough."""
        with pa.ipc.open_stream(data) as reader:
            info = json.loads(reader.schema.metadata[_INFO])
            schema = reader.schema.remove_metadata()
            # Not by from_pylist or empty_table: these import pandas, which takes the planner a second.
            none = [pa.nulls(0, field.type) for field in schema]
            batch = reader.read_next_batch().cast(schema) if rows else pa.RecordBatch.from_arrays(none, schema=schema)
        return cls(batch, **info)


class Spool:
    """The published segments of one checkpoint.

    Parameters
    ----------
    location : str
        A directory or object-store prefix (see `store`).
    epoch : str
        Names the checkpoint.
    """

    def __init__(self, location: str, epoch: str = "") -> None:
        self._location = location
        self._store: Store = open_store(location)
        self._epoch = epoch
        self._attempt = uuid.uuid4().hex

    def _folder(self, seq: int) -> str:
        return f"{self._epoch}/{seq:010d}"

    # The planner -------------------------------------------------------------------------------------------------

    def refuse_foreign(self, strict: bool) -> None:
        """Raise `SpoolLost` if another checkpoint's batches are here, or `ConfigurationError` if the place will not do.

        With `strict` false, foreign batches are left alone.
        """
        check(self._store, self._location)
        foreign = self._foreign()
        if not foreign:
            return
        text = (
            f"spoolLocation {self._location!r} holds epoch {', '.join(foreign)}, which belongs to another checkpoint. "
            "If that was deleted, messages in the epoch were acknowledged and may never have been processed. Use a "
            "separate spoolLocation for each query, and keep, move or delete it together with the checkpoint; "
            "failOnDataLoss=false starts anyway and leaves those files alone"
        )
        if strict:
            raise SpoolLost(text)
        _log.warning("%s", text)

    def _foreign(self) -> list[str]:
        """Return epochs that others have begun here."""
        others = [name for name in self._store.listed() if name != self._epoch and not name.startswith("check-")]
        return [name for name in others if set(self._store.listed(name)) - {"epoch"}]

    def open_batch(self, seq: int, strict: bool) -> None:
        """Let a batch be written to; again after a restart. Raises `SpoolLost` if the epoch is gone."""
        begins = not self._store.exists(f"{self._epoch}/epoch")
        if begins:
            if seq > 1:
                text = f"spoolLocation {self._location!r} lost epoch {self._epoch}, to which the checkpoint refers"
                if strict:
                    raise SpoolLost(f"{text}; failOnDataLoss=false starts with an empty epoch")
                _log.warning("%s; starting with an empty epoch", text)
            self._create(f"{self._epoch}/epoch", b"")
        self._create(f"{self._folder(seq)}/open", b"")
        if begins and strict and (foreign := self._foreign()):
            # They were started together: neither had begun when the other one looked. Nothing is in this epoch yet.
            self._store.remove(self._epoch)
            raise SpoolLost(
                f"another query has begun to use spoolLocation {self._location!r} (epoch {', '.join(foreign)}): "
                "use a separate spoolLocation for each query"
            )

    def close_until(self, seq: int) -> list[Segment]:
        """Remove all batches up to `seq` and return the segments of that one, without their rows."""
        found = []
        for name in self._store.listed(self._epoch):
            if not name.isdecimal() or int(name) > seq:
                continue
            folder = f"{self._epoch}/{name}"
            if int(name) == seq:
                parts = [one for one in self._store.listed(folder) if one.startswith("part-")]
                found = [self._head(f"{folder}/{one}") for one in parts]
            self._store.remove(f"{folder}/open")
            self._store.remove(folder)
        return found

    def _head(self, name: str) -> Segment:
        """Return a segment without its rows."""
        try:
            return Segment.from_buffer(self._store.read(name, _HEAD), rows=False)
        except pa.ArrowInvalid:
            # Of many thousand queues it says more.
            return Segment.from_buffer(self._store.read(name), rows=False)

    # The executors -----------------------------------------------------------------------------------------------

    def published(self, seq: int, part: int, number: int) -> Segment | None:
        """Return a segment, or None if it was not published."""
        try:
            return Segment.from_buffer(self._store.read(self._name(seq, part, number)))
        except FileNotFoundError:
            return None

    def counts(self, seq: int, part: int) -> dict[str, int]:
        """Messages by queue that are published of a partition."""
        found: dict[str, int] = {}
        number = 1
        while self._store.exists(self._name(seq, part, number)):
            segment = self._head(self._name(seq, part, number))
            for name, count in segment.counts.items():
                found[name] = found.get(name, 0) + count
            number += 1
        return found

    def _name(self, seq: int, part: int, number: int) -> str:
        return f"{self._folder(seq)}/part-{part:05d}-{number:05d}.arrow"

    def check_open(self, seq: int) -> None:
        """Raise `BatchGone` if the batch may not be written to."""
        if not self._store.exists(f"{self._folder(seq)}/open"):
            raise BatchGone(f"batch {seq} of epoch {self._epoch} is not open in {self._location!r}: it was committed")

    def publish(self, seq: int, part: int, number: int, segment: Segment) -> bool:
        """Publish a segment; False if another attempt was first. Raises `BatchGone` if the batch is over."""
        data = replace(segment, attempt=self._attempt).to_buffer()
        if not self._create(self._name(seq, part, number), data):
            # An apparent conflict may be our own success whose answer was lost.
            winner = self.published(seq, part, number)
            if winner is None or winner.attempt != self._attempt:
                return False
        self.check_open(seq)
        return True

    def _create(self, name: str, data: Any) -> bool:
        """Create a blob; raises `SpoolNotWritable` with the name of the place if it cannot be done."""
        try:
            return self._store.create(name, data)
        except FairschedError:
            raise
        except Exception as error:
            # The drivers have exceptions of their own, with nothing in common.
            raise SpoolNotWritable(refusal(self._location, error)) from error


class NoSpool:
    """Takes the place of a `Spool` with ``ackMode=auto``: publishing keeps nothing, and nothing is ever found.

    At most once: what a batch would be replayed from is not kept, so a message is acknowledged and then shown.
    """

    def refuse_foreign(self, strict: bool) -> None:
        """Nothing is kept, so nothing can be another's."""

    def open_batch(self, seq: int, strict: bool) -> None:
        """Every batch may be read."""

    def close_until(self, seq: int) -> list[Segment]:
        """Nothing is known of what was read."""
        return []

    def published(self, seq: int, part: int, number: int) -> Segment | None:
        """Nothing is: every attempt consumes."""
        return None

    def counts(self, seq: int, part: int) -> dict[str, int]:
        """Nothing is known of what an earlier run has read."""
        return {}

    def check_open(self, seq: int) -> None:
        """Every batch may be read."""

    def publish(self, seq: int, part: int, number: int, segment: Segment) -> bool:
        """Let the segment be acknowledged and shown."""
        return True


def open_spool(options: SourceOptions, epoch: str) -> Spool | NoSpool:
    """Return what keeps the segments of a checkpoint, as the options have it."""
    if options.at_most_once:
        return NoSpool()
    assert options.spool_location is not None
    return Spool(options.spool_location, epoch)
