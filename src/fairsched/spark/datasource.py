"""The data source "rabbitmq", which Spark calls first, and its readers and writers."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)  # fmt: skip
from pyspark.sql.types import StructType

from fairsched.errors import ConfigurationError
from fairsched.spark.sink.options import sink_options
from fairsched.spark.source.columns import column_names, ddl
from fairsched.spark.source.options import source_options


class RabbitMQDataSource(DataSource):
    """Reads queues and streams of RabbitMQ, and writes to its exchanges and queues.

    Parameters
    ----------
    options : mapping of str to str
        See docs/howto/spark.md.

    Notes
    -----
    Spark creates, pickles and drops instances at any time, so nothing is opened here.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rabbitmq"

    def schema(self) -> str:
        """Return the columns; checks the options, so that errors are raised by ``load()``."""
        return ddl(column_names(source_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from fairsched.spark.source.batch import BatchReader

        return BatchReader(source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        options = source_options(self.options)
        if options.streams:
            from fairsched.spark.source.streams import StreamsReader

            return StreamsReader(options, schema)
        from fairsched.spark.source.queues import QueuesReader

        return QueuesReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from fairsched.spark.sink.writers import BatchWriter

        if overwrite:
            raise ConfigurationError("messages cannot be overwritten: use mode('append')")
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a streaming query."""
        from fairsched.spark.sink.writers import StreamWriter

        if overwrite:
            raise ConfigurationError("messages cannot be overwritten: use outputMode('append')")
        return StreamWriter(sink_options(self.options), schema)
