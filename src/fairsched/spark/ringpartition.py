"""Partition rows by a consistent-hash ring: few keys move when partitions are added or removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fairsched.routing._ring import HashRing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["repartition_by_ring", "ring_partition"]


def ring_partition(col: Column | str, ring: HashRing) -> Column:
    """Return the index of the ring's member that each key belongs to.

    Parameters
    ----------
    col : Column or str
        The keys: strings, binary or integers. All nulls belong to one member.
    ring : HashRing
        The ring.

    Returns
    -------
    Column
        int, from 0 to ``len(ring.names) - 1``: an index into ``ring.names``, as from `HashRing.route_many`.

    Raises
    ------
    TypeError
        If `ring` is not a `HashRing`.
    ValueError
        If the ring is empty or has a `load_factor`, with which a key's member would depend on the rows before.

    Notes
    -----
    An Arrow UDF: the executor hashes a record batch in one call without the GIL, and without a copy. When a member is
    added, keys move only to it. O(rows).

    Source: Karger et al., "Consistent Hashing and Random Trees" (1997); see `HashRing`.

    Examples
    --------
    >>> ring = HashRing({"shard-0": 1, "shard-1": 1}, points_per_weight=256)
    >>> rows.withColumn("shard", ring_partition("user_id", ring))  # doctest: +SKIP
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType

    placed = _checked(ring)

    def place(keys: pa.Array) -> pa.Array:
        return pa.array(placed.route_many(keys))

    placing: Column = F.arrow_udf(place, IntegerType())(col)  # type: ignore[attr-defined]  # its stubs lag behind
    return placing


def repartition_by_ring(df: DataFrame, col: Column | str, ring: HashRing) -> DataFrame:
    """Repartition rows so that each member of a ring has a partition with all rows of its keys.

    Parameters
    ----------
    df : DataFrame
    col : Column or str
        The keys, as for `ring_partition`.
    ring : HashRing
        The ring; partitions are in the order of ``ring.names``.

    Returns
    -------
    DataFrame
        The same rows and columns.

    Raises
    ------
    TypeError, ValueError
        As for `ring_partition`.

    Notes
    -----
    A shuffle: the rows of one input partition keep their order, and the rows of several are interleaved.
    """
    return df.repartitionById(len(_checked(ring).names), ring_partition(col, ring))


def _checked(ring: HashRing) -> HashRing:
    if not isinstance(ring, HashRing):
        raise TypeError(f"ring must be a fairsched.routing.HashRing, got {ring!r}")
    if not ring.names:
        raise ValueError("ring must have at least one member, got none")
    if ring.load_factor is not None:
        raise ValueError(
            f"ring must not have a load_factor, got {ring.load_factor}: a key's member would depend on the rows before "
            "it, which differ between partitions"
        )
    return ring
