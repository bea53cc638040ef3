"""How fair what was read, or written, is: as a table of its own, or in the progress of a streaming query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairsched.spark.quanta import checked, cost_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["fairness_report", "observe_fairness"]


def fairness_report(
    df: DataFrame, key: str, quanta: Mapping[str | int, int], cost: Column | str | None = None
) -> DataFrame:
    """Set what each key received beside what its quantum entitles it to.

    Parameters
    ----------
    df : DataFrame
        What was served.
    key : str
        The column that names a row's slot.
    quanta : mapping of key to int
        The weights. Keys without one are left out.
    cost : Column or str, optional
        What a row cost; 1 by default.

    Returns
    -------
    DataFrame
        One row for each of `quanta`, those that received nothing as well: `key`, ``quantum``, ``rows``, ``cost``,
        ``share`` (of all cost; 0 where there is none), ``expected`` (the quantum's part), ``ratio`` (share over
        expected: 1 is exactly fair) and ``jain`` (Jain's index of cost over quantum, the same in each row; 1 where
        nothing was served).

    Raises
    ------
    ValueError
        Quanta are not what they should be.

    Notes
    -----
    Spark SQL only. O(rows), one aggregation: `df` is read once.

    Source: Jain, Chiu and Hawe, DEC-TR-301 (1984); `fairsched.fairness` has the same in plain Python.
    """
    from pyspark.sql import functions as F

    weights = checked(quanta)
    table = F.create_map(*[F.lit(part) for pair in weights.items() for part in pair])
    wanted = df.sparkSession.range(1).select(F.explode(table).alias(key, "quantum"))
    received = df.groupBy(key).agg(F.count(F.lit(1)).alias("rows"), F.sum(cost_column(cost)).alias("cost"))
    joined = wanted.join(F.broadcast(received), key, "left").select(
        key, F.col("quantum").cast("long").alias("quantum"),
        F.coalesce("rows", F.lit(0)).cast("long").alias("rows"), F.coalesce("cost", F.lit(0)).alias("cost"),
    )  # fmt: skip
    each = F.col("cost").cast("double") / F.col("quantum")
    # All rows as one and apart again: a join with totals would read what was served a second time, which, of a source
    # that consumes, is something else.
    whole = joined.agg(
        F.explode(F.collect_list(F.struct(key, "quantum", "rows", "cost"))).alias("row"),
        F.sum("cost").cast("double").alias("cost"), F.sum("quantum").cast("double").alias("quantum"),
        F.sum(each).alias("sum"), F.sum(each * each).alias("squares"), F.count(F.lit(1)).alias("count"),
    )  # fmt: skip
    row = {name: F.col("row").getField(name).alias(name) for name in (key, "quantum", "rows", "cost")}
    none = F.col("cost") == 0
    share = F.when(none, F.lit(0.0)).otherwise(F.try_divide(row["cost"], F.col("cost")))
    expected = row["quantum"] / F.col("quantum")
    index = F.try_divide(F.col("sum") * F.col("sum"), F.col("count") * F.col("squares"))
    return whole.select(
        *row.values(), share.alias("share"), expected.alias("expected"), (share / expected).alias("ratio"),
        F.when(none, F.lit(1.0)).otherwise(index).alias("jain"),
    )  # fmt: skip


def observe_fairness(df: DataFrame, queues: Iterable[str], *, key: str = "queue", name: str = "fairness") -> DataFrame:
    """Count each queue's rows in the progress of a streaming query.

    Parameters
    ----------
    df : DataFrame
    queues : iterable of str
        The names to count; rows of others are counted together as ``_other``, with another
        underscore in front if a queue has that name.
    key : str
        The column that names a row's queue.
    name : str
        Where the counts stand in ``StreamingQueryProgress.observedMetrics``.

    Returns
    -------
    DataFrame
        The same rows. Every batch's progress has ``observedMetrics[name]``, a row of counts by queue.

    Raises
    ------
    ValueError
        No queue is named, or one twice.

    Notes
    -----
    Spark SQL only; the counts come with the query that runs anyway. A batch query takes an `Observation` as `name`.
    """
    from pyspark.sql import functions as F

    if isinstance(queues, str):
        raise ValueError(f"queues must be one or more different names, got the text {queues!r}")
    names = list(queues)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"queues must be one or more different names, got {names!r}")
    rest = "_other"
    while rest in names:
        rest = f"_{rest}"
    counts = [F.count(F.when(F.col(key) == queue, True)).alias(queue) for queue in names]
    other = F.count(F.when(~F.coalesce(F.col(key).isin(names), F.lit(False)), True)).alias(rest)
    return df.observe(name, *counts, other)
