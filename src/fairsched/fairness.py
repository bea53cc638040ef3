"""Measures of fairness: shares compared with their ideals, and Jain's index.

Source of the index: Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
Allocation in Shared Computer Systems", DEC-TR-301 (1984).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypedDict, TypeVar

__all__ = ["QueueReport", "Report", "Share", "jain", "report", "shares", "weighted_jain"]

K = TypeVar("K", bound=Hashable)


class Share(NamedTuple):
    """The share of one queue (slot, tenant), and the share its quantum entitles it to.

    Parameters
    ----------
    name : Hashable
        The queue.
    quantum : int
        Its weight.
    served : int
        Messages, or cost, served to it.
    share : float
        `served` divided by the total; 0.0 if nothing was served.
    ideal : float
        `quantum` divided by the sum of all quanta.
    error : float
        Relative error, `share / ideal - 1`: -0.02 is 2 % less than the ideal. 0.0 if nothing was served.
    """

    name: Hashable
    quantum: int
    served: int
    share: float
    ideal: float
    error: float


class QueueReport(TypedDict):
    """One queue of a `Report`."""

    name: str
    quantum: int
    served: int
    rate: float
    share: float
    ideal: float
    error: float


class Report(TypedDict):
    """The result of an experiment, as printed by `fairsched demo --json`."""

    queues: list[QueueReport]
    jain: float
    total: int
    seconds: float


def jain(values: Iterable[float]) -> float:
    """Compute Jain's fairness index, (sum x)² / (n · sum x²).

    Parameters
    ----------
    values : iterable of float
        One finite, non-negative number per party: what it received, divided by its weight if weights differ.

    Returns
    -------
    float
        1.0 if all values are equal, 1/n if one party has everything. Also 1.0 for no values, and if all are zero.

    Raises
    ------
    ValueError
        If a value is negative, infinite or NaN.

    Notes
    -----
    O(n). Values are scaled by the largest first, so that squares neither overflow nor underflow. Pure function: safe
    from any thread.

    Examples
    --------
    >>> jain([5, 5, 5])
    1.0
    >>> jain([1, 0, 0, 0])
    0.25
    """
    numbers = [float(value) for value in values]
    for number in numbers:
        if not 0.0 <= number < math.inf:
            raise ValueError(f"values must be finite and not negative, got {number!r}")
    largest = max(numbers, default=0.0)
    if largest == 0.0:
        return 1.0
    scaled = [number / largest for number in numbers]
    index = math.fsum(scaled) ** 2 / (len(scaled) * math.fsum(number * number for number in scaled))
    return min(1.0, index)  # rounding may exceed 1 by a last digit


def weighted_jain(served: Mapping[K, int], quanta: Mapping[K, int]) -> float:
    """Compute Jain's index of the amount served per unit of quantum.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; queues left out count as 0.
    quanta : mapping of name to int
        The weights.

    Returns
    -------
    float
        1.0 if everybody received exactly in proportion to the quanta.

    Raises
    ------
    ValueError
        If a quantum is not positive, a count is negative, or `served` names a queue without a quantum.

    Notes
    -----
    O(n). Pure function: safe from any thread.

    Examples
    --------
    >>> weighted_jain({"gold": 40, "free": 4}, {"gold": 10, "free": 1})
    1.0
    """
    return jain(row.served / row.quantum for row in shares(served, quanta))


def shares(served: Mapping[K, int], quanta: Mapping[K, int]) -> list[Share]:
    """Compare what each queue was served with what its quantum entitles it to.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; queues left out count as 0.
    quanta : mapping of name to int
        The weights.

    Returns
    -------
    list of Share
        One for each queue, in the order of `quanta`.

    Raises
    ------
    ValueError
        If a quantum is not positive, a count is negative, or `served` names a queue without a quantum.

    Notes
    -----
    O(n). Pure function: safe from any thread.

    Examples
    --------
    >>> [(row.name, row.share, row.error) for row in shares({"gold": 3, "free": 1}, {"gold": 1, "free": 1})]
    [('gold', 0.75, 0.5), ('free', 0.25, -0.5)]
    """
    for name in served:
        if name not in quanta:
            raise ValueError(f"served names {name!r}, which has no quantum")
    for name, quantum in quanta.items():
        if not 0 < quantum < math.inf:
            raise ValueError(f"the quantum of {name!r} must be positive, got {quantum!r}")
        if not 0 <= served.get(name, 0) < math.inf:
            raise ValueError(f"served of {name!r} must not be negative, got {served[name]!r}")
    total = sum(served.values())
    total_quantum = sum(quanta.values())
    rows = []
    for name, quantum in quanta.items():
        count = served.get(name, 0)
        ideal = quantum / total_quantum
        share = count / total if total else 0.0
        # Exact integers before the one division: an ideal share has an error of exactly zero.
        error = (count * total_quantum - quantum * total) / (quantum * total) if total else 0.0
        rows.append(Share(name, quantum, count, share, ideal, error))
    return rows


def report(served: Mapping[K, int], quanta: Mapping[K, int], seconds: float) -> Report:
    """Summarize an experiment as a JSON-serializable object.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; queues left out count as 0.
    quanta : mapping of name to int
        The weights.
    seconds : float
        Its duration.

    Returns
    -------
    dict
        `{"queues": [{"name", "quantum", "served", "rate", "share", "ideal", "error"}, …], "jain", "total",
        "seconds"}`; rates are per second, and 0.0 if `seconds` is 0.

    Raises
    ------
    ValueError
        As `shares` does, and if `seconds` is negative, infinite or NaN.

    Notes
    -----
    O(n). Pure function: safe from any thread.
    """
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"seconds must be finite and not negative, got {seconds!r}")
    rows = shares(served, quanta)
    return {
        "queues": [
            {
                "name": str(row.name),
                "quantum": row.quantum,
                "served": row.served,
                "rate": row.served / seconds if seconds else 0.0,
                "share": row.share,
                "ideal": row.ideal,
                "error": row.error,
            }
            for row in rows
        ],
        "jain": jain(row.served / row.quantum for row in rows),
        "total": sum(row.served for row in rows),
        "seconds": seconds,
    }
