"""Reading a range of a stream's offsets by chunks, over the stream protocol; the rows are those of `streamrange`.

Whether to do so is decided where a query is planned: the port must answer, and belong to the same cluster as the AMQP
port, since another broker may listen there. A task that cannot reach it reads over AMQP, unless that was ruled out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from fairsched.amqp.urls import endpoint
from fairsched.errors import ConnectionFailed, RequestRefused
from fairsched.spark.broker import Retries, open_session
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.streamrange import checked
from fairsched.streams import StreamConnection, StreamRecords, stream_url, unpack_gzip
from fairsched.streams.placing import connect_to

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: Longest time to wait for the stream port when it is not known whether there is one, in seconds.
_BRIEF = 2.0
#: Chunks that the broker may send ahead.
_CREDIT = 20


def chunks_cluster(options: SourceOptions) -> str:
    """Return the name of the cluster whose stream port is to be used; empty to read over AMQP.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached; or, with ``protocol=stream``, its stream port cannot, or belongs to another
        cluster.
    """
    if options.protocol == "amqp":
        return ""
    session = open_session(options.broker)
    try:
        cluster = str((session.transport.server_properties or {}).get("cluster_name", ""))
        address = session.address
    finally:
        session.close()
    [url] = [url for url in options.broker.urls if endpoint(url) == address][:1]
    required = options.protocol == "stream"
    try:
        wait = options.broker.timeout if required else min(_BRIEF, options.broker.timeout)
        with StreamConnection(stream_url(url, options.stream_port), timeout=wait) as connection:
            _check_cluster(connection, cluster)
            return cluster
    except ConnectionFailed as error:
        if required:
            raise
        _log.info("streams are read over AMQP: %s", error)
        return ""


def with_partitions(options: SourceOptions) -> SourceOptions:
    """Return the options with the streams of a super stream in place of its name; as they are for other streams.

    Raises
    ------
    ConnectionFailed
        The stream port cannot be reached; `RequestRefused` if there is no such super stream.
    """
    name = options.super_stream
    if name is None:
        return options

    def ask(url: str) -> list[str]:
        wait = options.broker.timeout
        with StreamConnection(stream_url(url, options.stream_port), timeout=wait) as connection:
            return connection.partitions(name)

    found = _by_url(options, ask)
    if not found:
        raise RequestRefused(f"super stream {name!r} has no streams")
    return replace(options, quanta=dict.fromkeys(found, 1))


def _by_url(options: SourceOptions, ask: Callable[[str], T]) -> T:
    """Return the answer of the first URL that has one."""
    problems = []
    for url in options.broker.urls:
        try:
            return ask(url)
        except ConnectionFailed as error:
            problems.append(error)
    kind = RequestRefused if all(isinstance(error, RequestRefused) for error in problems) else ConnectionFailed
    raise kind("; ".join(map(str, problems)))


def _check_cluster(connection: StreamConnection, cluster: str) -> None:
    if not cluster or connection.cluster != cluster:
        raise RequestRefused(
            f"{connection.address}: the port for streams must be of cluster {cluster!r}, got {connection.cluster!r}: "
            "set streamPort"
        )


class NoStreamPort(ConnectionFailed):
    """A task did not reach a node that has the stream over the stream protocol."""


class ChunkPiece:
    """Records of a range, as `ConsumingChannel` has deliveries.

    Attributes
    ----------
    deliveries : StreamRecords
    queues : dict of bytes to str
    stream : str
    """

    def __init__(self, connection: StreamConnection, stream: str, start: int) -> None:
        self.stream = stream
        self.deliveries = StreamRecords(stream, connection.old)
        self.queues = {stream.encode(): stream}
        self._connection = connection
        self._subscription = connection.subscribe(stream, start, _CREDIT)

    def fill(self, start: int, end: int, idle: float) -> None:
        """Collect chunks until there is enough, or offset `end` is here; ConnectionFailed if nothing comes."""
        found, connection = self.deliveries, self._connection
        while not found.full and found.next_offset < end:
            try:
                chunk = connection.chunk(idle)
                if chunk is None:
                    raise ConnectionFailed(
                        f"{connection.address}: no messages of stream {self.stream!r} from offset {start} on within "
                        f"{idle:g} s (pollTimeout). No offset is skipped. If this continues, either retention has "
                        "removed all messages, which is reported with the next message; or the stream was recreated "
                        "and ends before that offset: then the query needs a new checkpoint"
                    )
                found.add_chunk(chunk.frame, chunk.at, start, {1: unpack_gzip})
                connection.credit(self._subscription)
            except ConnectionFailed:
                if not found.count:
                    raise
                return  # These came in order, so they are good; the loss shows next time.
            except ValueError as error:
                connection.drop()
                raise ConnectionFailed(f"{connection.address}: stream {self.stream!r}: {error}") from None


def read_chunks(
    options: SourceOptions, cluster: str, stream: str, start: int, end: int, *, most: int, most_bytes: int
) -> Iterator[ChunkPiece]:
    """Yield the messages of a stream from offset `start` up to, not including, `end`.

    Parameters
    ----------
    options : SourceOptions
        Broker, timeouts, and whether a missing message is an error.
    cluster : str
        The cluster that the port must belong to.
    stream : str
    start, end : int
        Offsets.
    most, most_bytes : int
        About as much is held at once, and a chunk more.

    Yields
    ------
    ChunkPiece
        Records in the order of their offsets, to be used before the next ones are asked for.

    Raises
    ------
    StreamTruncated
        Messages are gone, and that is an error.
    NoStreamPort
        No node with the stream was reached, before anything was read, and AMQP may be used instead.
    ConnectionFailed
        The connection was lost, or nothing came over it, ``1 + connectRetries`` times in a row.
    """
    broker, position, retries = options.broker, start, Retries(options.broker)
    reached = False
    while position < end:
        try:
            connection = connected(options, cluster, stream)
        except ConnectionFailed as error:
            if not reached and options.protocol != "stream":
                raise NoStreamPort(str(error)) from error
            retries.failed(error)
            continue
        reached = True
        try:
            piece = ChunkPiece(connection, stream, position)
            while True:
                piece.deliveries.want(min(end - position, most), most_bytes)
                piece.fill(position, end, options.poll_timeout)
                retries.succeeded()
                position = checked(broker, piece, position, end, options.fail_on_data_loss)
                if piece.deliveries.count:
                    yield piece
                if position == end:
                    return
        except ConnectionFailed as error:
            retries.failed(error)
        finally:
            connection.drop()


def connected(options: SourceOptions, cluster: str, stream: str) -> StreamConnection:
    """Connect to a node of the cluster that has the stream, by the first URL that leads to one."""
    broker = options.broker

    def connect(url: str) -> StreamConnection:
        connection = connect_to(
            stream_url(url, options.stream_port), stream, timeout=broker.timeout, heartbeat=broker.heartbeat
        )
        try:
            _check_cluster(connection, cluster)
        except ConnectionFailed:
            connection.drop()
            raise
        return connection

    return _by_url(options, connect)
