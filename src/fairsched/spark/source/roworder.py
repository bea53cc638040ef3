"""The order of rows: what the engine would serve first, of what a task has read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairsched._core import Dwrr
from fairsched.spark.source.options import SourceOptions


def fair_order(slots: Sequence[Hashable], quanta: Mapping[Any, int]) -> NDArray[np.uint64]:
    """fair_order(slots, quanta)
    --

    Return the positions of rows in the order of deficit weighted round robin.

    Parameters
    ----------
    slots : sequence of hashable
        Whose row each is; rows of one slot stay in their order.
    quanta : mapping of hashable to int
        Weights; 1 where there is none.

    Returns
    -------
    numpy.ndarray of uint64
        A permutation of ``range(len(slots))``.

    Notes
    -----
    O(n). The GIL is released while the engine works. Safe from any thread.
    """
    number: dict[Hashable, int] = {}
    indices = np.fromiter((number.setdefault(slot, len(number)) for slot in slots), np.int32, len(slots))
    engine = Dwrr({index: quanta.get(slot, 1) for slot, index in number.items()})
    engine.push_many(indices, np.arange(len(slots), dtype=np.uint64))
    return engine.pop_many(len(slots))[1]


def choose(
    queues: Sequence[str], keys: Sequence[Hashable], quanta: Mapping[Any, int], shares: Mapping[str, int]
) -> list[int]:
    """choose(queues, keys, quanta, shares)
    --

    Choose from every queue as many rows as its share, fairly among keys.

    Parameters
    ----------
    queues, keys : sequence
        Queue and key of each row.
    quanta : mapping
        Weights of the keys.
    shares : mapping of str to int
        Rows by queue.

    Returns
    -------
    list of int
        Positions of the chosen rows, ascending.

    Notes
    -----
    O(n log n). Safe from any thread.
    """
    rows: dict[str, list[int]] = {}
    for position, queue in enumerate(queues):
        rows.setdefault(queue, []).append(position)
    chosen: list[int] = []
    for queue, positions in rows.items():
        order = fair_order([keys[position] for position in positions], quanta)[: shares.get(queue, 0)]
        chosen += [positions[int(place)] for place in order]
    return sorted(chosen)


def row_order(options: SourceOptions, columns: Mapping[str, Sequence[Any]]) -> Sequence[int] | NDArray[np.uint64]:
    """row_order(options, columns)
    --

    Return the positions of rows in the order that the source's options ask for.

    Parameters
    ----------
    options : SourceOptions
        Their `fair_key`, else `row_order`: fairly among keys, fairly among queues, or queue by queue.
    columns : mapping of str to sequence
        Has "key" and "queue".

    Returns
    -------
    sequence of int
        A permutation of the rows' positions.

    Notes
    -----
    O(n); O(n log n) queue by queue. Safe from any thread.
    """
    if options.fair_key is not None:
        return fair_order(columns["key"], options.key_quanta)
    if options.row_order == "fair":
        return fair_order(columns["queue"], options.quanta)
    return sorted(range(len(columns["queue"])), key=columns["queue"].__getitem__)
