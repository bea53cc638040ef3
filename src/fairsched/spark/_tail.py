"""Reading a stream by offset over AMQP 0-9-1, and finding where it begins and ends.

The broker answers neither question, so the first and the last chunk are consumed and looked at. A stream's consumer
ends with its connection: a cancel or a negative acknowledgement makes RabbitMQ close the connection in anger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairsched.errors import FairschedError
from fairsched.spark._amqp import open_session
from fairsched.spark._collected import LARGEST_WINDOW, Collected
from fairsched.spark._rows import Delivery, stream_offset
from fairsched.spark._taker import Broker

_log = logging.getLogger(__name__)

#: Seconds without a delivery after which a chunk is taken for complete, and a stream for empty; and how often that is
#: waited for: where producers never pause, what comes after the last chunk has no end.
_QUIET, _ROUNDS = 0.25, 4


class StreamTruncated(FairschedError):
    """Messages that the query has not read yet are gone: retention was too short, or the stream was made anew."""


def bounds(broker: Broker, streams: Sequence[str], where: str, quiet: float = _QUIET) -> dict[str, int]:
    """bounds(broker, streams, where, quiet=0.25)
    --

    Find the ends of streams.

    Parameters
    ----------
    broker : Broker
        Where they are.
    streams : sequence of str
        Their names.
    where : str
        ``"first"`` for the offset of the first message, ``"last"`` for the one after the last.
    quiet : float
        Seconds without a message after which a chunk is taken for complete, and a stream for empty.

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
    Takes `quiet` seconds, up to four times that, and reads the last chunk of each stream, and what comes after it.
    """
    ends = dict.fromkeys(streams, 0)
    if where == "first":
        for name in streams:
            # One by one: the broker may send more of one stream than it was asked for.
            for offset, _ in _offsets(broker, {name: 1}, where, quiet):
                ends[name] = offset
        return ends
    # Of the last chunk, everything: it is complete when nothing more comes.
    for offset, name in _offsets(broker, dict.fromkeys(streams, LARGEST_WINDOW), where, quiet):
        ends[name] = offset + 1
    return ends


def _offsets(broker: Broker, windows: Mapping[str, int], where: str, quiet: float) -> Iterator[tuple[int, str]]:
    """Yield offset and stream of the messages at an end of streams."""
    session = open_session(broker)
    try:
        arguments = {name: {"x-stream-offset": where} for name in windows}
        found = session.collect(windows, idle=quiet, keep=True, arguments=arguments, longest=_ROUNDS * quiet)
    finally:
        session.drop()
    for method, header, _body, _received in found.deliveries:
        offset = stream_offset(header)
        name = found.queues[method[5 : 5 + method[4]]]
        if offset is None:
            raise FairschedError(f"{name!r} is no stream: its messages carry no offset")
        yield offset, name


def read_range(
    broker: Broker, stream: str, start: int, end: int, *, idle: float, strict: bool, most: int, most_bytes: int
) -> Iterator[Collected]:
    """read_range(broker, stream, start, end, *, idle, strict, most, most_bytes)
    --

    Yield the messages of a stream from offset `start` up to, not including, `end`.

    Parameters
    ----------
    broker : Broker
        Where it is.
    stream : str
        Its name.
    start, end : int
        Offsets.
    idle : float
        Seconds without a delivery after which it is given up.
    strict : bool
        Whether a missing message is an error.
    most, most_bytes : int
        Bounds of what is held at once.

    Yields
    ------
    Collected
        Deliveries in the order of their offsets.

    Raises
    ------
    StreamTruncated
        With `strict`: messages are missing.
    ConnectionFailed
        As it says; the task is to be tried again.
    """
    position = start
    while position < end:
        session = open_session(broker)
        try:
            window = min(end - position, most, LARGEST_WINDOW)
            arguments = {stream: {"x-stream-offset": position}}
            found = session.collect({stream: window}, idle=idle, most_bytes=most_bytes, keep=True, arguments=arguments)
        finally:
            session.drop()
        position = _checked(found, stream, position, end, strict)
        if found.deliveries:
            yield found


def _checked(found: Collected, stream: str, position: int, end: int, strict: bool) -> int:
    """Keep what lies in the range, and return the next offset; complains of gaps."""
    kept: list[Delivery] = []
    for delivery in found.deliveries:
        offset = stream_offset(delivery[1])
        if offset is None:
            raise FairschedError(f"{stream!r} is no stream: its messages carry no offset")
        if offset != position:
            _missing(stream, position, min(offset, end), strict)
        if offset >= end:
            position = end
            break
        kept.append(delivery)
        position = offset + 1
    if not found.deliveries:
        _missing(stream, position, end, strict)
        position = end
    found.deliveries[:] = kept
    return position


def _missing(stream: str, start: int, end: int, strict: bool) -> None:
    text = f"offsets {start} to {end - 1} of stream {stream!r} are gone or do not come"
    if strict:
        raise StreamTruncated(
            f"{text}: retention is too short for this query, or the stream was made anew. failOnDataLoss=false goes on "
            "with what is left"
        )
    _log.warning("%s; going on with what is left", text)


def check_known(ends: Mapping[str, int], starts: Mapping[str, int], strict: bool) -> None:
    """Complain of streams that end before the position of the query: they were deleted and made anew."""
    for name, start in starts.items():
        if ends[name] < start:
            _missing(name, ends[name], start, strict)


def as_offsets(given: Any, broker: Broker, streams: Sequence[str], idle: float) -> dict[str, int]:
    """Return offsets for "earliest", "latest", or a mapping, which must name every stream.

    Asked once in a query's life, so that `idle` may be long: a broker too slow to answer has an empty stream.
    """
    if not isinstance(given, str):
        left = [name for name in streams if name not in given]
        if left:
            raise FairschedError(f"startingOffsets or endingOffsets do not say where {', '.join(left)} is to be read")
        return {name: int(given[name]) for name in streams}
    return bounds(broker, streams, "first" if given == "earliest" else "last", idle)
