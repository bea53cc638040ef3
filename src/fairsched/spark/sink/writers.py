"""The writers: each row is a message, and a task succeeds when the broker has confirmed all its messages.

A retried task publishes its messages again. The generated message id contains query, batch, partition and row, so that
consumers can recognise the second copy, as long as the query returns the same rows in the same partitions.
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
        The sink's options.
    schema : StructType
        The schema of the rows.

    Raises
    ------
    ConfigurationError
        If there is no column ``body``, or a column has an unknown name or the wrong type.

    Notes
    -----
    `commit` and `abort` keep their default, which does nothing: messages cannot be held back until all tasks are done,
    and a published message stays published.
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
                raise ConfigurationError(f"unknown column {name!r}; allowed are {', '.join(allowed)}")
            if kind not in allowed[name]:
                raise ConfigurationError(f"column {name!r} must be {' or '.join(allowed[name])}, got {kind}")
        if "body" not in types:
            raise ConfigurationError("column 'body' is required")
        if options.message_id == "column" and "message_id" not in types:
            raise ConfigurationError("messageId=column needs a column 'message_id'")

    @abstractmethod
    def _job(self) -> str:
        """Return a unique name of the query or batch, the same for every attempt of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows and return when all are confirmed; a returned or refused message fails the task."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        messages = Messages(self._options, f"{self._job()}-{partition}")
        with _publisher(self._options) as publisher:
            for batch in iterator:
                for exchange, key, body, properties in messages.of(batch):
                    publisher.publish(body, key, exchange=exchange, **properties)
                # Check in between, too: after a failure the remaining rows need not be published.
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
        # Created once per query on the driver, so all attempts of a task share it.
        self._name = uuid.uuid4().hex

    def _job(self) -> str:
        """Return the name of the query."""
        return self._name


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a streaming query; see `_Writer`."""

    def _job(self) -> str:
        """Return the names of query and batch; the query keeps its id across restarts."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        return f"{query}-{context.getLocalProperty('streaming.sql.batchId')}"
