"""The reader of batch queries: browses queues without acknowledging, and reads streams between two offsets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fairsched.amqp.session import Session
from fairsched.errors import ConfigurationError, ConnectionFailed
from fairsched.spark.broker import over_session
from fairsched.spark.source.chunkrange import chunks_cluster, with_partitions
from fairsched.spark.source.columns import Decoder
from fairsched.spark.source.consuming import QueuesChannel
from fairsched.spark.source.depths import DepthProbe
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.partition import SEGMENT_BYTES, SEGMENT_MESSAGES
from fairsched.spark.source.plan import allocate, assign, partitions_worth
from fairsched.spark.source.requested_schema import RequestedSchema
from fairsched.spark.source.roworder import row_order
from fairsched.spark.source.shedding import judge_known
from fairsched.spark.source.spill import Spill
from fairsched.spark.source.starts import starting_offsets
from fairsched.spark.source.streamrange import as_offsets
from fairsched.spark.source.streams import Range, ranges, read_rows

_log = logging.getLogger(__name__)


def browse(options: SourceOptions, names: Sequence[str], shares: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield the first messages of queues, some thousand at a time in `row_order`; they are requeued as redelivered.

    No message is requeued until all have arrived: the queue would deliver it again. Until then the rows wait in a file,
    not in memory, since the broker would wait for the reader.

    They are requeued by basic.nack, which RabbitMQ 4.3 and newer does not count as a failed delivery. Older versions
    count it in quorum queues, as they count the unacknowledged messages of a closed connection.
    """

    def look(session: Session) -> Spill:
        channel, kept = QueuesChannel(session), Spill()
        for rows in _browsed(options, names, channel, shares):
            kept.append(rows)
        # They are requeued in any case, at the latest when the connection closes.
        with contextlib.suppress(ConnectionFailed):
            channel.give_back(1 + options.broker.retries)
        return kept

    return over_session(options.broker, look, Session.close).taken()


def _browsed(
    options: SourceOptions, names: Sequence[str], channel: QueuesChannel, shares: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yield what is browsed, settling nothing."""
    decoder = Decoder(names, options.fair_key, options.enqueue_time_header, timed=options.shedding is not None)
    left = dict(shares)
    laws: dict[str, Sequence[int]] = {}
    while channel.remaining or any(left.values()):
        resumed = channel.remaining > 0
        channel.begin(SEGMENT_MESSAGES, SEGMENT_BYTES)
        if resumed:
            channel.take(options.poll_timeout)
        else:
            windows, _ = allocate(left, shares, SEGMENT_MESSAGES, {})
            channel.ask(windows, options.consumer_arguments, options.poll_timeout)
            left = {name: count - windows.get(name, 0) for name, count in left.items() if name not in channel.exhausted}
        _warn_of_count(channel)
        known = decoder.look(channel.deliveries, channel.queues)
        found, known = judge_known(options.shedding, laws, known, ())
        laws = dict(found.laws)
        yield decoder.batch(channel.deliveries, known, row_order(options, known))
        channel.judge(None)


def _warn_of_count(channel: QueuesChannel) -> None:
    count = int(channel.returns().max(initial=0))
    if count:
        _log.warning(
            "queues %s have messages that came back %d times: a quorum queue before RabbitMQ 4.3 counts each batch "
            "query, and drops or dead-letters a message at its delivery limit, 20 by default from RabbitMQ 4.0 on",
            ", ".join(dict.fromkeys(channel.queues.values())), count,
        )  # fmt: skip


class BatchReader(DataSourceReader):
    """Reads the messages that are ready now, once.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    schema : StructType
        The query's schema.

    Raises
    ------
    ConfigurationError
        If an option is for streaming queries only, or the schema has unknown columns.

    Notes
    -----
    Spark plans again for every action, so two actions may read different messages of a queue.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.at_most_once or (options.shedding is not None and options.shedding.action != "flag"):
            raise ConfigurationError(
                "ackMode=auto, and a codelAction other than flag, are for streaming queries only: a batch query "
                "browses queues and does not settle messages"
            )
        self._options = options
        self._schema = RequestedSchema(schema, options)

    def partitions(self) -> list[InputPartition]:
        """Return shares of queues, or ranges of streams."""
        options = self._options
        if options.streams:
            options = with_partitions(options)
            cluster = chunks_cluster(options)
            starts = starting_offsets(options, "earliest", lambda: cluster)
            ends = as_offsets(options.ending_offsets, options.broker, list(options.quanta), options.poll_timeout)
            return [InputPartition(one) for one in ranges(starts, ends, options, cluster)]
        probe = DepthProbe(options.broker, list(options.quanta), options.planning_interval)
        try:
            shares, _ = allocate(probe.depths(), options.quanta, options.max_messages, {})
        finally:
            probe.close()
        count = options.num_partitions or partitions_worth(shares, {})
        parts = assign(shares, count, options.queue_assignment, options.max_records_per_partition)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; None if there are no partitions."""
        part = partition.value
        if part is None:
            return iter(())
        if isinstance(part, Range):
            return self._schema.fit(read_rows(self._options, self._schema.names, part))
        return self._schema.fit(browse(self._options, self._schema.names, part))
