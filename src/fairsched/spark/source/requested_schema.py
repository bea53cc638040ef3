"""The columns that a query asked for, in Spark's types and order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fairsched.errors import FairschedError
from fairsched.spark.source.columns import check_columns
from fairsched.spark.source.options import SourceOptions


class RequestedSchema:
    """Brings record batches into the form that Spark expects of a reader.

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
        """Yield the batches with the columns of the schema; `FairschedError` if a stored one lacks some."""
        for batch in batches:
            missing = [name for name in self.names if name not in batch.schema.names]
            if missing:
                raise FairschedError(
                    f"the batch that is read again was stored without the column {', '.join(missing)}, which the query "
                    "has had since: start it with the options it had until this batch is done (availableNow), and then "
                    "with the new ones"
                )
            yield pa.RecordBatch.from_arrays(
                [self._column(batch, field) for field in self._schema], schema=self._schema
            )

    @staticmethod
    def _column(batch: pa.RecordBatch, field: pa.Field) -> Any:
        found = batch.column(field.name)
        return found if found.type == field.type else found.cast(field.type)
