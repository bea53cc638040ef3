"""The order of rows: what the engine would serve first, of what a task has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairsched.spark.fairorder import fair_positions
from fairsched.spark.source.columns import Known
from fairsched.spark.source.options import SourceOptions


def choose(
    queues: Sequence[str],
    keys: Sequence[str],
    quanta: Mapping[str, int],
    shares: Mapping[str, int],
    kept: Sequence[bool] = (),
) -> list[int]:
    """Choose from every queue as many rows as its share, fairly among keys.

    Parameters
    ----------
    queues, keys : sequence
        Queue and key of each row.
    quanta : mapping
        Weights of the keys.
    shares : mapping of str to int
        Rows by queue.
    kept : sequence of bool
        Rows that are chosen in any case, also beyond the share; none if it is empty.

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
        first = [position for position in positions if kept and kept[position]]
        others = [position for position in positions if not (kept and kept[position])]
        room = max(0, shares.get(queue, 0) - len(first))
        order = fair_positions([keys[position] for position in others], quanta)[:room]
        chosen += first + [others[int(place)] for place in order]
    return sorted(chosen)


def row_order(options: SourceOptions, known: Known) -> NDArray[Any]:
    """Return the positions of rows in the order that the source's options ask for.

    Parameters
    ----------
    options : SourceOptions
        Their `fair_key`, else `row_order`: fairly among keys, fairly among queues, or queue by queue.
    known : mapping of str to pyarrow.Array
        Has "queue", and "key" where there is a `fair_key`.

    Returns
    -------
    numpy.ndarray
        A permutation of the rows' positions.

    Notes
    -----
    O(n); O(n log n) queue by queue. Safe from any thread.
    """
    if options.fair_key is not None:
        return fair_positions(known["key"], options.key_quanta)
    if options.row_order == "fair":
        return fair_positions(known["queue"], options.quanta)
    queues = known["queue"].dictionary_encode()
    names = queues.dictionary.to_pylist()
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return np.argsort(ranks[queues.indices.to_numpy(zero_copy_only=False)], kind="stable")
