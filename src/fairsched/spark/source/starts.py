"""The offsets at which a query of streams begins: by startingOffsets, or by startingTimestamp.

RabbitMQ stores no time of a message, but the time at which it wrote each chunk, in milliseconds. Over the stream
protocol both sides see it, so that reading begins with the first message that was written at the moment or later. Over
AMQP the broker takes a moment in seconds, and the messages do not tell their chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

import numpy as np

from fairsched.errors import ConnectionFailed
from fairsched.spark.broker import Retries
from fairsched.spark.source.chunkrange import connected
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.streamrange import as_offsets, bounds, seen_bounds
from fairsched.streams import StreamConnection, StreamRecords, unpack_gzip

_log = logging.getLogger(__name__)


def starting_offsets(options: SourceOptions, otherwise: str, cluster: Callable[[], str]) -> dict[str, int]:
    """Return the offsets at which a query begins.

    Parameters
    ----------
    options : SourceOptions
        The streams, and where they are to be read from.
    otherwise : str
        ``"earliest"`` or ``"latest"``, if the options do not say.
    cluster : callable
        Returns the cluster whose stream port is used, or an empty text; called if that matters.

    Returns
    -------
    dict of str to int
        For each stream.
    """
    given = options.starting_offsets or otherwise
    if isinstance(given, datetime):
        return offsets_since(options, cluster(), given)
    return as_offsets(given, options.broker, list(options.quanta), options.poll_timeout)


def offsets_since(options: SourceOptions, cluster: str, moment: datetime) -> dict[str, int]:
    """Find where streams are to be read from, so that nothing is missed that was written at a moment or later.

    Parameters
    ----------
    options : SourceOptions
        The streams, the broker, timeouts and the protocol.
    cluster : str
        The cluster whose stream port is used; empty for AMQP.
    moment : datetime

    Returns
    -------
    dict of str to int
        The offset of the first such message, or the end of a stream that has none. Over AMQP the first message of the
        first chunk of that second or later.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached; with ``protocol=stream``, its stream port cannot.

    Notes
    -----
    Asked once in a query's life, so that it may take long. Reads two chunks of each stream, or what comes over AMQP.
    """
    broker, names, idle = options.broker, list(options.quanta), options.poll_timeout
    # In this order: a message that comes in between is after the end, and so is not missed.
    ends = bounds(broker, names, "last", idle)
    if cluster:
        try:
            # An empty stream is read from where it begins.
            return ends | {name: _offset_since(options, cluster, name, moment) for name in names if ends[name]}
        except ConnectionFailed as error:
            if options.protocol == "stream":
                raise
            _log.warning("startingTimestamp is looked for over AMQP, in seconds: %s", error)
    return ends | seen_bounds(broker, names, moment.replace(microsecond=0), idle)


def _offset_since(options: SourceOptions, cluster: str, stream: str, moment: datetime) -> int:
    retries = Retries(options.broker)
    while True:
        try:
            connection = connected(options, cluster, stream)
            try:
                return _search(connection, stream, moment, options.poll_timeout)
            finally:
                connection.drop()
        except ConnectionFailed as error:
            retries.failed(error)


def _search(connection: StreamConnection, stream: str, moment: datetime, idle: float) -> int:
    """Look at the last chunk, which says whether there is one to look for, and at what the broker finds."""
    since = round(moment.timestamp() * 1000)
    records = StreamRecords(stream, connection.old)
    last = connection.subscribe(stream, "last", 1)
    _take(connection, records, last, idle)
    if records.timestamp < since:
        return records.next_offset
    found = connection.subscribe(stream, moment, 1)
    _take(connection, records, found, idle)
    while records.timestamp < since:
        # Such as after a clock was set back: the broker searches as though times only grew.
        connection.credit(found)
        _take(connection, records, found, idle)
    return int(np.frombuffer(records.offsets(), np.int64)[0])


def _take(connection: StreamConnection, records: StreamRecords, subscription: int, idle: float) -> None:
    """Have the records of the next chunk of a subscription; ConnectionFailed if none comes."""
    records.want(1, 1)
    while not records.count:
        chunk = connection.chunk(idle)
        if chunk is None:
            raise ConnectionFailed(f"{connection.address}: no chunk of a stream within {idle:g} s (pollTimeout)")
        if chunk.subscription == subscription:
            try:
                records.add_chunk(chunk.frame, chunk.at, 0, {1: unpack_gzip})
            except ValueError as error:
                raise ConnectionFailed(f"{connection.address}: {error}") from None
