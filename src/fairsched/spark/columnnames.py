"""The columns that a call names: found before the query runs, by the session's rule for case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["column", "column_name", "map_in_arrow", "quoted"]

_OfBatches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def column_name(df: DataFrame, given: str, argument: str) -> str:
    """Return the name of a column as the DataFrame spells it.

    Parameters
    ----------
    df : DataFrame
        Its columns.
    given : str
        The name, in any case unless ``spark.sql.caseSensitive`` is set. Dots are part of it.
    argument : str
        Name of the argument, for errors.

    Raises
    ------
    TypeError
        If it is no str.
    ValueError
        If there is no such column, or several.
    """
    if not isinstance(given, str):
        raise TypeError(
            f"{argument} must be the name of a column, got {given!r}; give an expression a name by df.withColumn"
        )
    found = _matches(df, given)
    if len(found) != 1:
        problem = "names several columns" if found else "names no column"
        raise ValueError(f"{argument} {problem}: {given!r}; the DataFrame has {', '.join(df.columns)}")
    return found[0]


def column(df: DataFrame, given: Column | str) -> Column:
    """Return a column: of that name, dots included, or else as Spark reads the text, or the Column that is given."""
    from pyspark.sql import functions as F

    if isinstance(given, str) and len(found := _matches(df, given)) == 1:
        given = quoted(found[0])
    return F.col(given) if isinstance(given, str) else given


def quoted(name: str) -> str:
    """Return a name as one that Spark does not take apart at dots."""
    return f"`{name.replace('`', '``')}`"


def map_in_arrow(df: DataFrame, function: _OfBatches, schema: StructType) -> DataFrame:
    """Call `DataFrame.mapInArrow`, which cannot do with names that have dots or backticks, whatever the names."""
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return df.mapInArrow(function, schema)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return df.toDF(*(f"_{number}" for number in range(len(names)))).mapInArrow(renamed, schema)


def _matches(df: DataFrame, given: str) -> list[str]:
    """Return the columns of that name; those of exactly this one, if there are any."""
    exact = [name for name in df.columns if name == given]
    if exact or str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true":
        return exact
    return [name for name in df.columns if name.lower() == given.lower()]
