"""Fairness of the rows read or written: as a table, or in the progress of a streaming query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairsched.spark.columnnames import column_name, quoted
from fairsched.spark.quanta import checked, cost_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["fairness_report", "observe_fairness"]

#: Columns of a report beside the key.
_REPORTED = frozenset({"quantum", "rows", "cost", "share", "expected", "ratio", "jain"})


def fairness_report(
    df: DataFrame, key: str, quanta: Mapping[str | int, int], cost: Column | str | None = None
) -> DataFrame:
    """Compare the share of each key with the share that its quantum entitles it to.

    Parameters
    ----------
    df : DataFrame
        The rows served.
    key : str
        Name of the key column.
    quanta : mapping of key to int
        The weight of each key. Other keys are ignored.
    cost : Column or str, optional
        The cost of a row, a number of at least 0; 1 by default. Any other cost, such as null or NaN, fails the query.

    Returns
    -------
    DataFrame
        One row per key of `quanta`, also for keys that received nothing: `key`, ``quantum``, ``rows``, ``cost``,
        ``share`` (of the total cost; 0 if that is 0), ``expected`` (the quantum divided by the sum of quanta),
        ``ratio`` (share divided by expected; 1 is exactly fair) and ``jain`` (Jain's index of cost divided by quantum,
        the same in each row; 1 if nothing was served).

    Raises
    ------
    ValueError
        If `quanta` is invalid, there is no such column, or it has the name of another column of the report.
    TypeError
        If `key` is not a text.

    Notes
    -----
    Spark SQL only. O(rows), one aggregation; `df` is read once.

    Source: Jain, Chiu and Hawe, DEC-TR-301 (1984); `fairsched.fairness` computes the same in plain Python.
    """
    from pyspark.sql import functions as F

    weights = checked(quanta)
    key = column_name(df, key, "key")
    if key.lower() in _REPORTED:
        raise ValueError(
            f"key must not be {key!r}, since the report has a column of that name: rename yours by withColumnRenamed"
        )
    table = F.create_map(*[F.lit(part) for pair in weights.items() for part in pair])
    wanted = df.sparkSession.range(1).select(F.explode(table).alias("key", "quantum"))
    received = df.groupBy(F.col(quoted(key)).alias("key")).agg(
        F.count(F.lit(1)).alias("rows"), F.sum(cost_column(df, cost)).alias("cost")
    )
    joined = wanted.join(F.broadcast(received), "key", "left").select(
        "key", F.col("quantum").cast("long").alias("quantum"),
        F.coalesce("rows", F.lit(0)).cast("long").alias("rows"), F.coalesce("cost", F.lit(0)).alias("cost"),
    )  # fmt: skip
    each = F.col("cost").cast("double") / F.col("quantum")
    # Collect all rows into one and explode it: a join with totals would read the input a second time, and a source that
    # consumes messages would return others.
    whole = joined.agg(
        F.explode(F.collect_list(F.struct("key", "quantum", "rows", "cost"))).alias("row"),
        F.sum("cost").cast("double").alias("cost"), F.sum("quantum").cast("double").alias("quantum"),
        F.sum(each).alias("sum"), F.sum(each * each).alias("squares"), F.count(F.lit(1)).alias("count"),
    )  # fmt: skip
    names = {"key": key, "quantum": "quantum", "rows": "rows", "cost": "cost"}
    row = {field: F.col("row").getField(field).alias(name) for field, name in names.items()}
    none = F.col("cost") == 0
    share = F.when(none, F.lit(0.0)).otherwise(F.try_divide(row["cost"], F.col("cost")))
    expected = row["quantum"] / F.col("quantum")
    index = F.try_divide(F.col("sum") * F.col("sum"), F.col("count") * F.col("squares"))
    return whole.select(
        *row.values(), share.alias("share"), expected.alias("expected"), (share / expected).alias("ratio"),
        F.when(none, F.lit(1.0)).otherwise(index).alias("jain"),
    )  # fmt: skip


def observe_fairness(df: DataFrame, queues: Iterable[str], *, key: str = "queue", name: str = "fairness") -> DataFrame:
    """Count the rows of each queue in the progress of a streaming query.

    Parameters
    ----------
    df : DataFrame
    queues : iterable of str
        Names of the queues to count. The rows of other queues are counted together as ``_other``; if a queue has that
        name, with one more underscore in front.
    key : str
        The column with the name of a row's queue.
    name : str
        Key of the counts in ``StreamingQueryProgress.observedMetrics``.

    Returns
    -------
    DataFrame
        The same rows. The progress of each batch has ``observedMetrics[name]``, a row of counts by queue.

    Raises
    ------
    ValueError
        If no queue is named, one is named twice, or there is no such column.
    TypeError
        If `key` is not a text.

    Notes
    -----
    Spark SQL only; the query counts while it runs, without a second pass. For a batch query, `name` is an
    `Observation`.
    """
    from pyspark.sql import functions as F

    if isinstance(queues, str):
        raise ValueError(f"queues must be one or more different names, got the text {queues!r}")
    names = list(queues)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"queues must be one or more different names, got {names!r}")
    rows = quoted(column_name(df, key, "key"))
    rest = "_other"
    while rest in names:
        rest = f"_{rest}"
    counts = [F.count(F.when(F.col(rows) == queue, True)).alias(queue) for queue in names]
    other = F.count(F.when(~F.coalesce(F.col(rows).isin(names), F.lit(False)), True)).alias(rest)
    return df.observe(name, *counts, other)
