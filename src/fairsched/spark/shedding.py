"""Rows that waited too long, found by CoDel: in a batch, after the fact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched._codel import CoDel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["codel"]

#: What waits behind a row is not known, so every row is taken to have a backlog behind it.
_BACKLOG = 2**31


def codel(
    df: DataFrame, key: str, sojourn_ms: str, target_ms: float, interval_ms: float, *, at: str = "received_at"
) -> DataFrame:
    """Mark the rows that CoDel would have sent back.

    Parameters
    ----------
    df : DataFrame
        Rows of one key in the order in which they were taken, within a partition.
    key : str
        The column whose values have a law of their own each: a queue, a tenant.
    sojourn_ms : str
        The column that says how long a row waited, in milliseconds; null counts as not at all.
    target_ms, interval_ms : float
        The law's parameters, in milliseconds.
    at : str
        The column that says when a row was taken: a timestamp, or milliseconds as a number; not null.

    Returns
    -------
    DataFrame
        With a boolean column ``shed`` more, in place of one that there was.

    Raises
    ------
    ValueError
        A parameter of the law is not allowed.

    Notes
    -----
    Runs in the executors on the compiled law, without the GIL; the state of each key is that of its partition, so rows
    of one key belong in one (`repartition_by_ring`). O(rows + keys for each record batch). Streams: memory is one
    record batch and the states.

    Source: RFC 8289; `fairsched.CoDel`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StructField, StructType

    CoDel(target_ms / 1000, interval_ms / 1000)  # refuses what it must before the query runs
    moment = F.col(at)
    if df.select(moment).schema[0].dataType.typeName().startswith("timestamp"):
        moment = F.unix_micros(moment) * 1000
    else:
        moment = moment.cast("double") * 1e6
    kept = df.drop("shed")
    taken, waited = _unused("_at", kept.columns), _unused("_waited", kept.columns)
    timed = df.withColumns(
        {taken: moment.cast("long"), waited: (F.coalesce(sojourn_ms, F.lit(0)) * 1e6).cast("long")}
    ).drop("shed")
    marked = StructType([*kept.schema.fields, StructField("shed", BooleanType())])
    return timed.mapInArrow(_marking(key, at, target_ms / 1000, interval_ms / 1000), marked)


def _unused(name: str, names: list[str]) -> str:
    """Lengthen a name until no column has it, whatever its case."""
    used = {one.lower() for one in names}
    while name in used:
        name = f"_{name}"
    return name


class CodelByKey:
    """One CoDel law for each key, asked about many rows at once.

    Parameters
    ----------
    target, interval : float
        The law's parameters, in seconds.
    max_returns : int, optional
        As `CoDel` has it.

    Notes
    -----
    For one thread. The law runs without the GIL, over a key's rows at once.
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
            Whose row each is.
        sent, taken : numpy.ndarray of int64
            When each was sent and taken, in nanoseconds; in the order in which the rows of one key were taken.
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
        """Note that nothing of a key was left to take: whatever was observed is over."""
        self._law(key).found_nothing()

    def states(self) -> dict[Any, list[int]]:
        """Return where each law stands, as JSON takes it."""
        return {key: list(law.state()) for key, law in self._laws.items()}

    def resume(self, states: Mapping[Any, Sequence[int]]) -> None:
        """Go on where the laws stood that gave these `states`."""
        for key, state in states.items():
            self._law(key).resume(state)


def _marking(
    key: str, at: str, target: float, interval: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function that an executor runs on a partition, whose last columns are when and how long in ns."""

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        laws = CodelByKey(target, interval)
        for batch in batches:
            *columns, moments, waits = batch.columns
            if moments.null_count:
                raise ValueError(f"column {at!r} must say when every row was taken, got null")
            taken, waited = (column.to_numpy(zero_copy_only=False) for column in (moments, waits))
            shed = laws.overdue(batch.column(key), taken - waited, taken)
            yield pa.RecordBatch.from_arrays([*columns, pa.array(shed)], names=[*batch.schema.names[:-2], "shed"])

    return mark
