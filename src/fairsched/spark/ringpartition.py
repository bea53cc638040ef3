"""Rows placed by a consistent-hash ring: a stable partition for every key, as partitions come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fairsched._routing import HashRing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["repartition_by_ring", "ring_partition"]


def ring_partition(col: Column | str, ring: HashRing) -> Column:
    """Name, by its number, the ring's member that each key belongs to.

    Parameters
    ----------
    col : Column or str
        The keys: strings, binary or integers. A null has a place too, the same for all nulls.
    ring : HashRing
        Its members' order (`ring.names`) is the numbering.

    Returns
    -------
    Column
        int, from 0 to ``len(ring.names) - 1``: an index into ``ring.names``, as `HashRing.route_many` gives it.

    Raises
    ------
    TypeError
        `ring` is none.
    ValueError
        The ring is empty, or bounds its members' loads: a place would then depend on the rows before.

    Notes
    -----
    An Arrow UDF: the executor hashes a record batch in one call without the GIL, and nothing is copied. A member that
    is added takes its share of the keys from the others, and no other key moves. O(rows).

    Source: Karger et al., "Consistent Hashing and Random Trees" (1997); `HashRing` has the rest.

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
    """Give every member of a ring a partition of its own, with all rows of its keys.

    Parameters
    ----------
    df : DataFrame
    col : Column or str
        The keys, as for `ring_partition`.
    ring : HashRing
        One partition for each member, in the order of ``ring.names``.

    Returns
    -------
    DataFrame
        The same rows and columns.

    Raises
    ------
    TypeError, ValueError
        As `ring_partition` does.

    Notes
    -----
    A shuffle: rows of one input partition keep their order within the output partition, those of several are mixed.
    """
    return df.repartitionById(len(_checked(ring).names), ring_partition(col, ring))


def _checked(ring: HashRing) -> HashRing:
    if not isinstance(ring, HashRing):
        raise TypeError(f"ring must be a fairsched.HashRing, got {ring!r}")
    if not ring.names:
        raise ValueError("the ring must have at least one member, got none")
    if ring.load_factor is not None:
        raise ValueError(
            f"a ring with load_factor={ring.load_factor} places a key by what was placed before, which differs from "
            "partition to partition; use one without"
        )
    return ring
