"""The data source "rabbitmq": what Spark asks for first, and who answers."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)  # fmt: skip
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fairsched.errors import ConfigurationError
from fairsched.spark.options import SourceOptions, sink_options, source_options
from fairsched.spark.source.rows import check_columns, column_names, ddl


class RabbitMQDataSource(DataSource):
    """RabbitMQDataSource(options)
    --

    Reads queues and streams of RabbitMQ, and writes to its exchanges and queues.

    Parameters
    ----------
    options : mapping of str to str
        See docs/howto/spark.md.

    Notes
    -----
    Spark makes, pickles and forgets these at will: nothing is opened here.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rabbitmq"

    def schema(self) -> str:
        """Return the columns; checks the options, so that an error shows at ``load()``."""
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


class Shape:
    """Shape(schema, options)
    --

    Brings record batches into the form that Spark expects of a reader.

    Parameters
    ----------
    schema : StructType
        Of the query; the user may have asked for fewer columns, or another order.
    options : SourceOptions
        Say which columns there are.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.names = schema.fieldNames()
        check_columns(self.names, options)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def fit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the columns of the schema; those that an older segment lacks are null."""
        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [self._column(batch, field) for field in self._schema], schema=self._schema
            )

    @staticmethod
    def _column(batch: pa.RecordBatch, field: pa.Field) -> Any:
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        found = batch.column(field.name)
        return found if found.type == field.type else found.cast(field.type)
