"""The weights of keys, checked, and as expressions of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairsched._core import checked_quanta
from fairsched.spark.columnnames import column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["checked", "cost_column", "quantum_column"]


def checked(quanta: Mapping[str | int, int]) -> dict[str | int, int]:
    """Check quanta and return them as a dict.

    Raises
    ------
    ValueError
        If there are none, a quantum is not a positive integer, or a key is neither a string nor an integer.
    OverflowError
        If a quantum is above 2**62 - 1.
    """
    pairs = dict(checked_quanta({name: quantum for name, quantum in quanta.items()}))  # noqa: C416  # wider types
    if not pairs:
        raise ValueError("quanta must name at least one key, got none")
    for name in pairs:
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise ValueError(f"a key must be a string or an integer, got {name!r}")
    return pairs  # type: ignore[return-value]  # as just checked


def quantum_column(key: Column, quanta: Mapping[str | int, int]) -> Column:
    """Return each row's quantum, from a map literal; a key without one fails the query with a message that names it."""
    from pyspark.sql import functions as F

    table = F.create_map(*[F.lit(part) for pair in quanta.items() for part in pair])
    unknown = F.concat(
        F.lit("no quantum is given for key "), F.coalesce(key.cast("string"), F.lit("null")),
        F.lit(f"; quanta has {sorted(map(str, quanta))}"),
    )  # fmt: skip
    return F.coalesce(F.try_element_at(table, key), F.raise_error(unknown).cast("long"))


def cost_column(df: DataFrame, cost: Column | str | None) -> Column:
    """Return the cost of a row: a column, or 1.

    A cost that is no number of at least 0 fails the query. A sum would ignore null, so that the row was free, and take
    NaN and infinity for more than all others together.
    """
    from pyspark.sql import functions as F

    if cost is None:
        return F.lit(1)
    price = column(df, cost)
    got = F.coalesce(price.cast("string"), F.lit("null"))
    refused = F.raise_error(F.concat(F.lit("a cost must be a number of at least 0, got "), got))
    # In Spark, NaN is the largest number.
    return F.coalesce(F.when((price >= 0) & (price < F.lit(float("inf"))), price), refused)
