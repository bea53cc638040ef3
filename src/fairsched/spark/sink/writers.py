"""The sink: every row is a message, and a task has succeeded when the broker has confirmed all of its messages.

A task that is tried again publishes again. The generated message id names query, batch, partition and row, so that the
second copy can be told from a new message, as long as the query gives the same rows in the same partitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from fairsched.errors import ConfigurationError
from fairsched.publisher import Publisher
from fairsched.spark.broker import with_heartbeat
from fairsched.spark.sink.messages import COLUMNS, Messages
from fairsched.spark.sink.options import SinkOptions


class _Writer(ABC):
    """Publishes the rows of one task.

    Parameters
    ----------
    options : SinkOptions
        Of the sink.
    schema : StructType
        Of the rows.

    Raises
    ------
    ConfigurationError
        The body is missing, there is a column that no message has, or one of the wrong type.

    Notes
    -----
    For `commit` and `abort`, which do nothing unless a writer says so, nothing is left: messages cannot be held back
    until all tasks are done, and what is published stays published.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        allowed = dict(COLUMNS)
        if options.hash_ring:
            allowed.setdefault(options.hash_column, ("string", "binary", "bigint", "int"))
            if options.hash_column not in types:
                raise ConfigurationError(f"hashRing needs the column {options.hash_column!r} (option hashColumn)")
        for name, kind in types.items():
            if name not in allowed:
                raise ConfigurationError(f"a message has no {name!r}; columns may be {', '.join(allowed)}")
            if kind not in allowed[name]:
                raise ConfigurationError(f"column {name!r} must be {' or '.join(allowed[name])}, got {kind}")
        if "body" not in types:
            raise ConfigurationError("column 'body' is required")
        if options.message_id == "column" and "message_id" not in types:
            raise ConfigurationError("messageId=column needs a column 'message_id'")

    @abstractmethod
    def _job(self) -> str:
        """Name what is written: the same for every attempt at a task, and for nothing else."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish, and return when all is confirmed; what is returned or refused fails the task."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        messages = Messages(self._options, f"{self._job()}-{partition}")
        with _publisher(self._options) as publisher:
            for batch in iterator:
                for exchange, key, body, properties in messages.of(batch):
                    publisher.publish(body, key, exchange=exchange, **properties)
                # Not at the end only: what is left need not be published then.
                publisher.check()
        return WriterCommitMessage()


def _publisher(options: SinkOptions) -> Publisher:
    broker = options.broker
    return Publisher(
        [with_heartbeat(url, broker.heartbeat) for url in broker.urls],
        mandatory=options.mandatory,
        confirm_window=options.confirm_window,
        confirm_timeout=options.confirm_timeout,
        connect_timeout=broker.timeout * len(broker.urls) * (1 + broker.retries),
    )


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch query; see `_Writer`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        import uuid

        super().__init__(options, schema)
        # Made once per query on the driver, so all attempts at a task share it.
        self._name = uuid.uuid4().hex

    def _job(self) -> str:
        """Name the query."""
        return self._name


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a streaming query; see `_Writer`."""

    def _job(self) -> str:
        """Name query and batch; the query keeps its id across restarts."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        return f"{query}-{context.getLocalProperty('streaming.sql.batchId')}"
