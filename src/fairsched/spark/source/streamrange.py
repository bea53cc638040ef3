"""Reading a stream by offset over AMQP 0-9-1, and finding where it begins and ends.

The broker answers neither question, so the first and the last chunk are consumed and looked at. A stream's consumer
ends with its connection: a cancel or a negative acknowledgement makes RabbitMQ close the connection in anger.

That nothing comes proves nothing: the broker may be slow, stand still, or search for the offset. What is gone shows in
what is there: a later message came, and the first message of all lies after the position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed, FairschedError
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.spark.broker import Broker, Retries, open_session, over_session
from fairsched.spark.source.consuming import ENDLESS, ConsumingChannel

if TYPE_CHECKING:
    from fairsched.delivery._collected import CollectedDeliveries

_log = logging.getLogger(__name__)

#: Seconds for which a stream is watched that the broker reports as empty; an answer that takes longer proves nothing.
_QUIET = 0.25
#: Number of further rounds, also at the end of a stream: if producers never pause, what comes after the last
#: chunk has no end.
_ROUNDS = 4
#: Messages that the broker may be ahead of the acknowledgements. RabbitMQ 3.10 reads as many before it sends the first
#: of them, in a time that grows faster than their number.
_WINDOW = 2000


class StreamTruncated(FairschedError):
    """Messages that the query has not read yet are gone: retention was too short, or the stream was made anew."""


class _EndFinder(ConsumingChannel):
    """The first and the last offset of what comes of each stream; the messages themselves are forgotten at once."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, ENDLESS, None)
        self.offsets: dict[str, tuple[int, int]] = {}
        self.seen = 0

    def took(self) -> None:
        """Note the offsets, and have the waiting thread look at them."""
        found, names = self.deliveries, list(self.queues.values())
        places = np.frombuffer(found.queues({tag: place for place, tag in enumerate(self.queues)}), np.int32)
        offsets = np.frombuffer(found.offsets(), np.int64)
        for place, name in enumerate(names):
            mine = offsets[places == place]
            if (mine < 0).any():
                self._session.fail(_no_stream(name))
                return
            if len(mine):
                self.offsets[name] = self.offsets.get(name, (int(mine[0]), 0))[0], int(mine[-1])
        found.want(ENDLESS, ENDLESS)
        self.seen = found.came
        self._session.stop()


def bounds(broker: Broker, streams: Sequence[str], where: str | datetime, quiet: float = _QUIET) -> dict[str, int]:
    """Find the ends of streams.

    Parameters
    ----------
    broker : Broker
        Where they are.
    streams : sequence of str
        Their names.
    where : str or datetime
        ``"first"`` for the offset of the first message, ``"last"`` for the one after the last; a moment for the first
        message of the first chunk that has one of that second or later.
    quiet : float
        Seconds for which a stream is watched that is empty, as the broker says: it may say so for some seconds after
        the first messages were published. Four times as long where it counts something: that may be no message, but
        what RabbitMQ itself notes in a stream.

    Returns
    -------
    dict of str to int
        0 for an empty stream.

    Raises
    ------
    QueueNotFound, ConnectionFailed
        As they say.

    Notes
    -----
    Takes some round trips to the broker, and `quiet` seconds or more where a stream is empty. Reads the last chunk of
    each stream, and what comes after it.
    """
    return dict.fromkeys(streams, 0) | seen_bounds(broker, streams, where, quiet)


def seen_bounds(broker: Broker, streams: Sequence[str], where: str | datetime, quiet: float) -> dict[str, int]:
    """Find the `bounds` of those streams of which a message came."""
    return over_session(broker, lambda session: _look(session, streams, where, quiet), Session.drop)


def _look(session: Session, streams: Sequence[str], where: str | datetime, quiet: float) -> dict[str, int]:
    found = _EndFinder(session)
    window = LARGEST_PREFETCH if where == "last" else 1
    found.consume(dict.fromkeys(streams, window), {name: {"x-stream-offset": where} for name in streams})
    until = time.monotonic() + _ROUNDS * quiet
    while missing := [name for name in streams if name not in found.offsets]:
        session.serve_until(lambda: len(found.offsets) == len(streams), quiet)
        asked = time.monotonic()
        counts = found.counts(missing)
        empty = not any(count for name, count in counts.items() if name not in found.offsets)
        now = time.monotonic()
        # A late answer says that the broker is slow.
        if (empty or now > until) and now - asked <= max(quiet, _QUIET):
            break
    if where != "last":
        return {name: first for name, (first, _) in found.offsets.items()}
    for _ in range(_ROUNDS):
        # Messages that exist when the broker is asked come before its answer, if the window is not full.
        before = found.seen
        found.acknowledge(before)
        found.counts(streams)
        if found.seen == before:
            break
    return {name: last + 1 for name, (_, last) in found.offsets.items()}


class _RangeChannel(ConsumingChannel):
    """The messages of a range of offsets, piece by piece: at most `most` of them, or as many as reach `most_bytes`.

    The consumer goes on from piece to piece: the broker searches the stream for the offset where a consumer begins. It
    sends a window ahead of the acknowledgements, which end as soon as the rest of the range is within it. What the last
    read brings more than a piece wants begins the next one; the rest waits in the socket.
    """

    def __init__(self, session: Session, stream: str, start: int, end: int, most: int, most_bytes: int) -> None:
        super().__init__(session, most, most_bytes, surplus=True)
        self.stream = stream
        self._last = end - 1
        self._most_bytes = most_bytes
        window = min(end - start, _WINDOW)
        self._step = max(1, window // 2)
        #: Of all messages of this consumer: how many are acknowledged, and are to be.
        self._acknowledged = 0
        self._due = end - start - window
        self.consume({stream: window}, {stream: {"x-stream-offset": start}})

    @property
    def full(self) -> bool:
        """Whether nothing more is wanted, or the end is here."""
        return self.deliveries.full or self.deliveries.last_offset() >= self._last

    def again(self, most: int) -> None:
        """Go on with the next piece of at most so many messages."""
        self.deliveries.want(most, self._most_bytes)

    def took(self) -> None:
        """Let the broker go on, and have the waiting thread look at what came."""
        ready = min(self.deliveries.came, self._due)
        if ready - self._acknowledged >= self._step or self._acknowledged < ready == self._due:
            self._acknowledged = ready
            if self._channel.is_open:
                self.acknowledge(ready)
        super().took()


def read_range(
    broker: Broker, stream: str, start: int, end: int, *, idle: float, strict: bool, most: int, most_bytes: int
) -> Iterator[ConsumingChannel]:
    """Yield the messages of a stream from offset `start` up to, not including, `end`.

    Parameters
    ----------
    broker : Broker
        Where it is.
    stream : str
        Its name.
    start, end : int
        Offsets.
    idle : float
        Seconds without a delivery after which the broker is asked whether it is there, and if it is, the range is
        consumed over a new connection.
    strict : bool
        Whether a missing message is an error.
    most, most_bytes : int
        Bounds of what is held at once.

    Yields
    ------
    ConsumingChannel
        Deliveries in the order of their offsets, to be used before the next ones are asked for.

    Raises
    ------
    StreamTruncated
        With `strict`: messages are gone.
    ConnectionFailed
        The connection was lost, or nothing came over it, ``1 + broker.retries`` times in a row. Nothing is skipped
        then, with or without `strict`, and the task is to be tried again.
    """
    position, retries = start, Retries(broker)
    while position < end:
        session = open_session(broker)
        try:
            piece = _RangeChannel(session, stream, position, end, min(end - position, most), most_bytes)
            while True:
                _fill(session, piece, position, idle)
                retries.succeeded()
                position = checked(broker, piece, position, end, strict)
                if piece.deliveries.count:
                    yield piece
                if position == end:
                    return
                piece.again(min(end - position, most))
        except ConnectionFailed as error:
            retries.failed(error)
        finally:
            session.drop()


def _fill(session: Session, piece: _RangeChannel, position: int, idle: float) -> None:
    """Collect a piece; ConnectionFailed if nothing comes."""
    try:
        piece.fill(idle)
    except ConnectionFailed:
        if not piece.deliveries.count:
            raise
        return  # These came in order, so they are good; the loss of the connection shows next time.
    if not piece.deliveries.count:
        raise ConnectionFailed(
            f"{session.address}: no messages of stream {piece.stream!r} from offset {position} on within {idle:g} s "
            "(pollTimeout). No offset is skipped. If this continues, either retention has removed all messages, "
            "which is reported with the next message; or the stream was recreated and ends before that offset: then "
            "the query needs a new checkpoint"
        )


class Piece(Protocol):
    """A part of a range: collected deliveries, or records, of one stream."""

    stream: str

    @property
    def deliveries(self) -> CollectedDeliveries:
        """Its rows."""
        ...


def checked(broker: Broker, piece: Piece, position: int, end: int, strict: bool) -> int:
    """Keep what lies in the range, and return the next offset; complains of what is gone."""
    deliveries = piece.deliveries
    offsets = np.frombuffer(deliveries.offsets(), np.int64)
    beyond = np.flatnonzero((offsets >= end) | (offsets < 0))
    kept = int(beyond[0]) if len(beyond) else len(offsets)
    if kept < len(offsets) and offsets[kept] < 0:
        raise _no_stream(piece.stream)
    # Up to the first one that is beyond the end: what comes before it is gone, too.
    expected = np.append(position, offsets[:kept] + 1)
    gaps = np.flatnonzero(offsets[: kept + 1] > expected[: len(offsets)])
    gap = (int(expected[gaps[0]]), min(int(offsets[gaps[0]]), end)) if len(gaps) else None
    position = end if kept < len(offsets) else int(expected[-1])
    # Other things than messages take up offsets, too: what consumers store there over the stream protocol. Retention
    # takes a stream's beginning, so while that is not after the gap, there was never a message in it.
    if gap is not None and (first := bounds(broker, [piece.stream], "first")[piece.stream]) > gap[0]:
        missing(piece.stream, gap[0], min(first, gap[1]), strict)
    if kept < len(offsets):
        deliveries.arrange(np.arange(kept))
    return position


def _no_stream(name: str) -> FairschedError:
    return FairschedError(f"{name!r} is not a stream: its messages have no offset")


def missing(stream: str, start: int, end: int, strict: bool) -> None:
    """Say that offsets from `start` up to, not including, `end` are gone: by `StreamTruncated` if `strict`."""
    text = f"offsets {start} to {end - 1} of stream {stream!r} are gone"
    if strict:
        raise StreamTruncated(
            f"{text}: retention is too short for this query, or the stream was recreated. failOnDataLoss=false "
            "continues with the remaining messages"
        )
    _log.warning("%s; continuing with the remaining messages", text)


def check_known(ends: Mapping[str, int], starts: Mapping[str, int], strict: bool) -> None:
    """Complain of streams that end before the position of the query: they were deleted and made anew.

    Of a stream that is not in `ends` nothing is known.
    """
    for name, start in starts.items():
        if ends.get(name, start) < start:
            missing(name, ends[name], start, strict)


def as_offsets(given: Any, broker: Broker, streams: Sequence[str], idle: float) -> dict[str, int]:
    """Return offsets for "earliest", "latest", or a mapping, which must name every stream.

    Asked once in a query's life, so that `idle` may be long.
    """
    if not isinstance(given, str):
        left = [name for name in streams if name not in given]
        if left:
            raise FairschedError(f"startingOffsets and endingOffsets must have an offset for {', '.join(left)}")
        return {name: int(given[name]) for name in streams}
    return bounds(broker, streams, "first" if given == "earliest" else "last", idle)
