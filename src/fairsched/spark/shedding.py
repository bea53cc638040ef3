"""Rows that waited too long, found by CoDel: in a batch, after the fact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairsched._codel import CoDel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["codel"]

#: What waits behind a row is not known, so every row is taken to have a backlog behind it.
BACKLOG = 2**31


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
        The column that says when a row was taken: a timestamp, or milliseconds as a number.

    Returns
    -------
    DataFrame
        With a boolean column ``shed`` more.

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

    CoDel(target_ms / 1000, interval_ms / 1000)  # refuses what it must before the query runs
    moment = F.col(at)
    if dict(df.dtypes)[at].startswith("timestamp"):
        moment = F.unix_micros(moment) * 1000
    else:
        moment = moment.cast("double") * 1e6
    columns = [*df.columns, "shed"]
    timed = df.select(
        "*", moment.cast("long").alias("_at"), (F.coalesce(sojourn_ms, F.lit(0)) * 1e6).cast("long").alias("_waited")
    )
    marked = timed.withColumn("shed", F.lit(False))
    return timed.mapInArrow(_marking(key, target_ms / 1000, interval_ms / 1000), marked.schema).select(*columns)


def _marking(
    key: str, target: float, interval: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function that an executor runs on a partition."""

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        laws: dict[Any, CoDel] = {}
        for batch in batches:
            shed = np.zeros(batch.num_rows, np.bool_)
            taken = batch.column("_at").to_numpy(zero_copy_only=False)
            waited = batch.column("_waited").to_numpy(zero_copy_only=False)
            encoded = batch.column(key).dictionary_encode(null_encoding="encode")
            places = encoded.indices.to_numpy(zero_copy_only=False)
            for number, name in enumerate(encoded.dictionary.to_pylist()):
                rows = np.flatnonzero(places == number)
                law = laws.setdefault(name, CoDel(target, interval))
                shed[rows] = law.should_return_many(taken[rows] - waited[rows], taken[rows], BACKLOG)
            names = [*batch.schema.names, "shed"]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(shed)], names=names)

    return mark
