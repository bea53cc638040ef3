"""How fair a service was: shares against their ideals, and Jain's index.

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
    """What one queue (slot, tenant) received, beside what its quantum entitles it to.

    Parameters
    ----------
    name : Hashable
        The queue.
    quantum : int
        Its weight.
    served : int
        Messages, or cost, served to it.
    share : float
        `served` over the sum of all; 0.0 when nothing was served at all.
    ideal : float
        `quantum` over the sum of all quanta.
    error : float
        `share / ideal - 1`, the relative error: -0.02 is two per cent less than it should be. 0.0 when nothing was
        served at all.
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
    """The outcome of an experiment, as `fairsched demo --json` prints it."""

    queues: list[QueueReport]
    jain: float
    total: int
    seconds: float


def jain(values: Iterable[float]) -> float:
    """Compute Jain's fairness index, (sum x)² / (n · sum x²).

    Parameters
    ----------
    values : iterable of float
        One non-negative, finite number for each party: what it received, over its weight if weights differ.

    Returns
    -------
    float
        1.0 when all values are equal, 1/n when one party has everything. 1.0 also for no values and for values that
        are all zero: nobody was preferred to anybody.

    Raises
    ------
    ValueError
        If a value is negative, infinite or NaN.

    Notes
    -----
    O(n). Values are scaled by the largest first, so that squares neither overflow nor vanish. Pure function: safe
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
    return min(1.0, index)  # rounding may lift it a last digit above one


def weighted_jain(served: Mapping[K, int], quanta: Mapping[K, int]) -> float:
    """Compute Jain's index of what each queue was served per unit of its quantum.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; a queue left out was served nothing.
    quanta : mapping of name to int
        The weights.

    Returns
    -------
    float
        1.0 when everybody received exactly in proportion to the quanta.

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
    """Set what each queue was served beside what its quantum entitles it to.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; a queue left out was served nothing.
    quanta : mapping of name to int
        The weights.

    Returns
    -------
    list of Share
        One for each quantum, in the order of `quanta`.

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
            raise ValueError(f"what {name!r} was served must not be negative, got {served[name]!r}")
    total = sum(served.values())
    total_quantum = sum(quanta.values())
    rows = []
    for name, quantum in quanta.items():
        count = served.get(name, 0)
        ideal = quantum / total_quantum
        share = count / total if total else 0.0
        # Numerator and denominator are exact before the one division: an ideal share has an error of exactly zero.
        error = (count * total_quantum - quantum * total) / (quantum * total) if total else 0.0
        rows.append(Share(name, quantum, count, share, ideal, error))
    return rows


def report(served: Mapping[K, int], quanta: Mapping[K, int], seconds: float) -> Report:
    """Sum up an experiment in a JSON-serialisable object.

    Parameters
    ----------
    served : mapping of name to int
        Messages, or cost, served; a queue left out was served nothing.
    quanta : mapping of name to int
        The weights.
    seconds : float
        How long it took.

    Returns
    -------
    dict
        `{"queues": [{"name", "quantum", "served", "rate", "share", "ideal", "error"}, …], "jain", "total",
        "seconds"}`; rates are per second, and 0.0 when no time has passed.

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
