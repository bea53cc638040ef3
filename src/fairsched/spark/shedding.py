"""Find the rows of a batch that waited too long, by CoDel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched.scheduling._codel import CoDel
from fairsched.spark.columnnames import column, column_name, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["codel"]

#: The backlog behind a row is not known, so every row is assumed to have a large one.
_BACKLOG = 2**31


def codel(
    df: DataFrame, key: str, sojourn_ms: str, target_ms: float, interval_ms: float, *, at: str = "received_at"
) -> DataFrame:
    """Mark the rows that CoDel would have returned.

    Parameters
    ----------
    df : DataFrame
        Within a partition, rows of one key must be in the order in which they were taken.
    key : str
        Name of the key column, such as a queue or a tenant; each key has its own CoDel state.
    sojourn_ms : str
        Name of the column with a row's waiting time in milliseconds; null counts as 0.
    target_ms, interval_ms : float
        CoDel's target and interval, in milliseconds.
    at : str
        Name of the column with the time at which a row was taken: a timestamp, or a number of milliseconds; not null.

    Returns
    -------
    DataFrame
        The rows with a boolean column ``shed``; an existing column of that name is replaced.

    Raises
    ------
    ValueError
        If `target_ms` or `interval_ms` is invalid, or there is no column `key`.
    TypeError
        If `key` is not a text.

    Notes
    -----
    Runs in the executors on the compiled engine, without the GIL. Each partition keeps its own states, so all rows of a
    key should be in one partition (`repartition_by_ring`). O(rows + keys per record batch). Memory: one record batch
    and the states.

    Source: RFC 8289; `fairsched.CoDel`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StructField, StructType

    CoDel(target_ms / 1000, interval_ms / 1000)  # raises before the query runs
    key, waiting = column_name(df, key, "key"), column(df, sojourn_ms)
    moment = column(df, at)
    if df.select(moment).schema[0].dataType.typeName().startswith("timestamp"):
        moment = F.unix_micros(moment) * 1000
    else:
        moment = moment.cast("double") * 1e6
    kept = df.drop("shed")
    taken, waited = _unused("_at", kept.columns), _unused("_waited", kept.columns)
    timed = df.withColumns(
        {taken: moment.cast("long"), waited: (F.coalesce(waiting, F.lit(0)) * 1e6).cast("long")}
    ).drop("shed")
    marked = StructType([*kept.schema.fields, StructField("shed", BooleanType())])
    return map_in_arrow(timed, _marking(key, at, target_ms / 1000, interval_ms / 1000), marked)


def _unused(name: str, names: list[str]) -> str:
    """Add underscores to a name until no column has it, ignoring case."""
    used = {one.lower() for one in names}
    while name in used:
        name = f"_{name}"
    return name


class CodelByKey:
    """A CoDel per key, for many rows at a time.

    Parameters
    ----------
    target, interval : float
        CoDel's target and interval, in seconds.
    max_returns : int, optional
        As for `CoDel`.

    Notes
    -----
    For one thread. All rows of a key are judged in one call, without the GIL.
    """

    def __init__(self, target: float, interval: float, max_returns: int | None = None) -> None:
        self._target = target
        self._interval = interval
        self._max_returns = max_returns
        self._laws: dict[Any, CoDel] = {}

    def _law(self, key: Any) -> CoDel:
        if key not in self._laws:
            self._laws[key] = CoDel(self._target, self._interval, max_returns=self._max_returns)
        return self._laws[key]

    def overdue(self, keys: pa.Array, sent: NDArray[np.int64], taken: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows have waited too long.

        Parameters
        ----------
        keys : pyarrow.Array
            The key of each row.
        sent, taken : numpy.ndarray of int64
            The times at which each row was sent and taken, in nanoseconds; rows of one key in the order of `taken`.
        """
        found = np.zeros(len(keys), np.bool_)
        encoded = keys.dictionary_encode(null_encoding="encode")
        places = encoded.indices.to_numpy(zero_copy_only=False)
        ends = np.cumsum(np.bincount(places, minlength=len(encoded.dictionary)))
        grouped = np.split(np.argsort(places, kind="stable"), ends[:-1])
        for key, rows in zip(encoded.dictionary.to_pylist(), grouped, strict=False):
            found[rows] = self._law(key).should_return_many(sent[rows], taken[rows], _BACKLOG)
        return found

    def emptied(self, key: Any) -> None:
        """Record that a key has no more rows, which ends the episode of its CoDel."""
        self._law(key).found_nothing()

    def states(self) -> dict[Any, list[int]]:
        """Return the state of each CoDel in a form that JSON can store."""
        return {key: list(law.state()) for key, law in self._laws.items()}

    def resume(self, states: Mapping[Any, Sequence[int]]) -> None:
        """Restore states returned by `states`."""
        for key, state in states.items():
            self._law(key).resume(state)


def _marking(
    key: str, at: str, target: float, interval: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that an executor runs on a partition; the last columns are time taken and wait, in ns."""

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        laws = CodelByKey(target, interval)
        for batch in batches:
            *columns, moments, waits = batch.columns
            if moments.null_count:
                raise ValueError(f"column {at!r} must have the time of each row, got null")
            taken, waited = (column.to_numpy(zero_copy_only=False) for column in (moments, waits))
            shed = laws.overdue(batch.column(key), taken - waited, taken)
            yield pa.RecordBatch.from_arrays([*columns, pa.array(shed)], names=[*batch.schema.names[:-2], "shed"])

    return mark
