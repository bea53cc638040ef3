"""Rows in weighted fair order: exact inside a partition, or by virtual finish times across all partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched._core import Dwrr
from fairsched.spark.columnnames import column, column_name, map_in_arrow
from fairsched.spark.quanta import checked, cost_column, quantum_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["fair_order", "virtual_finish"]

#: A batch, and the indices of its rows that wait in one slot.
_Piece: TypeAlias = "tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int32]]]"

#: Rows per output record batch.
_ROWS = 10_000


def fair_order(
    df: DataFrame,
    key: str = "queue",
    quanta: Mapping[str | int, int] | None = None,
    cost: str | None = None,
    *,
    window: int | None = None,
) -> DataFrame:
    """Put the rows of each partition into deficit-weighted-round-robin order.

    Parameters
    ----------
    df : DataFrame
    key : str
        Name of the key column: strings or integers, not null.
    quanta : mapping of key to int
        The weight of each key; every key that occurs needs one.
    cost : str, optional
        Name of a column of positive integers, in the unit of the quanta; by default each row costs 1.
    window : int, optional
        Maximum number of rows read ahead. It bounds the memory, and rows further ahead are not considered yet. By
        default all rows of the partition are read first, so that the order is exact.

    Returns
    -------
    DataFrame
        The same rows and columns. Rows of one key keep their order.

    Raises
    ------
    ValueError
        If `quanta` or `window` is invalid, or there is no such column.
    TypeError
        If `key` or `cost` is not a text, such as a Column.

    Notes
    -----
    Runs in the executors on the compiled engine, without the GIL. O(rows); memory: the partition, or the window. A
    later shuffle destroys the order; for an order over all partitions see `virtual_finish`. A key without a quantum,
    or a cost that is not positive, fails the query with a message that names it.

    Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin" (1995); `fairsched.Dwrr`.
    """
    weights = checked({} if quanta is None else quanta)
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise ValueError(f"window must be a positive number of rows, got {window!r}")
    key, cost = column_name(df, key, "key"), None if cost is None else column_name(df, cost, "cost")
    return map_in_arrow(df, _ordering(key, weights, cost, window), df.schema)


def _ordering(
    key: str, weights: dict[str | int, int], cost: str | None, window: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that an executor runs on a partition."""

    def order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        orderer = Orderer(key, weights, cost)
        for batch in batches:
            orderer.add(batch)
            while window is not None and orderer.waiting > window:
                yield orderer.take(min(_ROWS, orderer.waiting - window))
        while orderer.waiting:
            yield orderer.take(_ROWS)

    return order


class Orderer:
    """Takes record batches, and returns record batches of their rows in the order in which the engine serves them.

    Parameters
    ----------
    key : str
        The key column.
    weights : dict
        Quantum by key.
    cost : str or None
        The cost column.

    Notes
    -----
    Input batches are kept until their last row is taken, with the indices of the rows of each slot; output batches are
    gathered from them. So a partition is never copied as a whole. If rows are taken before all batches are added, the
    waiting rows are sometimes copied to a batch of their own, so that few rows do not keep many batches: at most twice
    the waiting rows, and two batches, are held. For one thread.
    """

    def __init__(self, key: str, weights: dict[str | int, int], cost: str | None) -> None:
        self._engine = Dwrr(weights)
        self._index = {name: index for index, name in enumerate(self._engine.names)}
        self._key = key
        self._cost = cost
        self._pieces: list[deque[_Piece]] = [deque() for _ in weights]
        #: Upper bound of the rows in the held batches.
        self._held = 0

    @property
    def waiting(self) -> int:
        """Rows added and not yet taken."""
        return len(self._engine)

    def add(self, batch: pa.RecordBatch) -> None:
        """Queue the rows of a batch.

        Raises
        ------
        ValueError
            If a row's key has no quantum, or its cost is not a positive integer.
        """
        slots = self._slots(batch.column(self._key))
        costs = None
        if self._cost is not None:
            given = batch.column(self._cost)
            if given.null_count:
                raise ValueError(f"column {self._cost!r} must have a cost in every row, got null")
            try:
                costs = given.cast(pa.int64()).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid as error:
                raise ValueError(f"column {self._cost!r} must have positive integers: {error}") from None
        self._engine.push_many(slots, np.zeros(batch.num_rows, np.uint64), costs)
        rows = np.argsort(slots, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(slots, minlength=len(self._pieces)))
        for slot, of_slot in enumerate(np.split(rows, ends[:-1])):
            if len(of_slot):
                self._pieces[slot].append((batch, of_slot))
        self._held += batch.num_rows
        if self._held > 2 * self.waiting + _ROWS:
            self._gather()

    def _gather(self) -> None:
        """Copy the waiting rows to a batch of their own, and release the batches that they came in."""
        counts = [sum(len(rows) for _, rows in pieces) for pieces in self._pieces]
        parts = [part for pieces, count in zip(self._pieces, counts, strict=True) for part in _front(pieces, count)]
        self._held = self.waiting
        if not parts:
            return
        whole = pa.concat_batches(parts)
        rows = np.split(np.arange(whole.num_rows, dtype=np.int32), np.cumsum(counts)[:-1])
        for pieces, of_slot in zip(self._pieces, rows, strict=True):
            if len(of_slot):
                pieces.append((whole, of_slot))

    def _slots(self, keys: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the slot of every key; each distinct key is looked up once."""
        encoded = keys.dictionary_encode()
        if encoded.null_count:
            raise ValueError(f"column {self._key!r} must name a slot in every row, got null")
        names = encoded.dictionary.to_pylist()
        unknown = [name for name in names if name not in self._index]
        if unknown:
            raise ValueError(f"no quantum is given for key {unknown[0]!r}; quanta has {sorted(map(str, self._index))}")
        slots = np.array([self._index[name] for name in names], np.int32)
        found: np.ndarray[Any, np.dtype[np.int32]] = slots[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def take(self, rows: int) -> pa.RecordBatch:
        """Serve up to `rows` rows; at least one must be waiting."""
        slots, _ = self._engine.pop_many(rows)
        counts = np.bincount(slots, minlength=len(self._pieces))
        parts: list[pa.RecordBatch] = []
        for slot in np.flatnonzero(counts):
            parts.extend(_front(self._pieces[slot], int(counts[slot])))
        # Row r of the parts, which are grouped by slot, goes to the position of the r-th of the grouped turns.
        turns = np.empty(len(slots), np.int64)
        turns[np.argsort(slots, kind="stable")] = np.arange(len(slots))
        return pa.concat_batches(parts).take(pa.array(turns))


def fair_positions(keys: Sequence[str] | pa.Array, quanta: Mapping[str, int]) -> NDArray[np.uint64]:
    """Return the positions of rows in fair order.

    Parameters
    ----------
    keys : sequence of str, or pyarrow.Array
        The key of each row; rows of one key keep their order.
    quanta : mapping of str to int
        Weight by key; 1 for other keys.

    Returns
    -------
    numpy.ndarray of uint64
        A permutation of ``range(len(keys))``.

    Notes
    -----
    O(n). The GIL is released while the engine works. Safe from any thread.
    """
    encoded = (keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())).dictionary_encode()
    slots = encoded.indices.to_numpy(zero_copy_only=False)
    engine = Dwrr({slot: quanta.get(key, 1) for slot, key in enumerate(encoded.dictionary.to_pylist())})
    engine.push_many(slots, np.arange(len(keys), dtype=np.uint64))
    return engine.pop_many(len(keys))[1]


def _front(pieces: deque[_Piece], rows: int) -> Iterator[pa.RecordBatch]:
    """Remove and yield the first `rows` rows of a slot's pieces."""
    while rows:
        batch, indices = pieces.popleft()
        if len(indices) > rows:
            pieces.appendleft((batch, indices[rows:]))
            indices = indices[:rows]
        rows -= len(indices)
        yield batch.take(pa.array(indices))


def virtual_finish(
    df: DataFrame,
    key: Column | str,
    quanta: Mapping[str | int, int],
    order_by: Column | str,
    cost: Column | str | None = None,
) -> DataFrame:
    """Add each row's virtual finish time; sorted by it, the rows of all partitions are in weighted fair order.

    Parameters
    ----------
    df : DataFrame
    key : Column or str
        The key of a row.
    quanta : mapping of key to int
        The weight of each key; every key that occurs needs one.
    order_by : Column or str
        The order of the rows of one key, such as an offset or a time. The order of equal values is undefined.
    cost : Column or str, optional
        The cost of a row, a number of at least 0; 1 by default. Any other cost, such as null or NaN, fails the query.

    Returns
    -------
    DataFrame
        The rows with an additional column ``vft`` (double): the cost of this key's rows up to this one, divided by its
        quantum.

    Raises
    ------
    ValueError
        If `quanta` is invalid.

    Notes
    -----
    Spark SQL only, no Python in the executors. It sorts by key and `order_by`; all rows of one key are sorted in one
    task, on disk if needed. The order is that of weighted fair queueing with every key backlogged.

    Source: Demers, Keshav and Shenker, "Analysis and Simulation of a Fair Queueing Algorithm" (1989).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    weights = checked(quanta)
    keys, order = column(df, key), column(df, order_by)
    before = Window.partitionBy(keys).orderBy(order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    finish = F.sum(cost_column(df, cost)).over(before) / quantum_column(keys, weights)
    return df.withColumn("vft", finish.cast("double"))
