"""Exact lengths on a hash ring: integer sums of 64-bit arcs, up to 2**64."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Points in ascending order, the index of each point's member, and the members' names.
Points: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int32], tuple[str, ...]]


def arcs_of(points: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> int:
    """Sum the arcs of some points.

    Parameters
    ----------
    points : numpy.ndarray of uint64
        In ascending order, at least one. A point's arc is from its predecessor, exclusive, to itself, inclusive.
    chosen : numpy.ndarray of bool
        The points to include.

    Returns
    -------
    int
        0 to 2**64.

    Notes
    -----
    Complexity O(points).
    """
    arcs = points - np.roll(points, 1)
    if not arcs.any():
        # One point, or several in the same place: the first one has the whole ring.
        return 2**64 if chosen[0] else 0
    picked = arcs[chosen]
    high, low = int((picked >> np.uint64(32)).sum()), int((picked & np.uint64(0xFFFFFFFF)).sum())
    return (high << 32) + low


def moved_between(old: Points, new: Points) -> float:
    """Compute the fraction of a ring that has different members on two rings.

    Parameters
    ----------
    old, new : Points
        The points of each ring.

    Returns
    -------
    float
        0.0 to 1.0; 1.0 if exactly one of the rings is empty.

    Notes
    -----
    Complexity O(points log points).
    """
    if not len(old[0]) or not len(new[0]):
        return float(len(old[0]) != len(new[0]))
    numbers = {name: number for number, name in enumerate(dict.fromkeys((*old[2], *new[2])))}
    boundaries = np.union1d(old[0], new[0])
    changed = _members(boundaries, old, numbers) != _members(boundaries, new, numbers)
    return arcs_of(boundaries, changed) / 2**64


def _members(boundaries: NDArray[np.uint64], ring: Points, numbers: dict[str, int]) -> NDArray[Any]:
    """Return the number of the member of each boundary's arc."""
    points, owners, names = ring
    found = np.searchsorted(points, boundaries, side="left") % len(points)
    return np.array([numbers[name] for name in names], dtype=np.int32)[owners[found]]
