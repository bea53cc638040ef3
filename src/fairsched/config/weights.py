"""Whole numbers in proportion: weights in lowest terms, and a total divided by weight."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import Any

from fairsched.errors import ConfigurationError
from fairsched.prefetch import LARGEST_PREFETCH


def is_weight(value: object) -> bool:
    """Return whether a value is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_weight(name: object, weight: object) -> None:
    """Raise ConfigurationError if a weight is not a positive whole number."""
    if not is_weight(weight):
        raise ConfigurationError(f"weight of {name!r} must be a whole number of at least 1, got {weight!r}")


def normalise(weights: Mapping[Any, int]) -> dict[Any, int]:
    """Divide weights by their greatest common divisor.

    Parameters
    ----------
    weights : mapping
        Positive whole numbers.

    Returns
    -------
    dict
        The same ratios in the smallest whole numbers, hence the shortest round.

    Raises
    ------
    ConfigurationError
        If a weight is not a positive whole number; the message names it.

    Notes
    -----
    O(n). Pure.
    """
    for name, weight in weights.items():
        check_weight(name, weight)
    divisor = math.gcd(*weights.values())
    return {name: weight // divisor for name, weight in weights.items()}


def quanta_of(weights: Mapping[Any, int], other_weight: int, unit: int) -> tuple[dict[Hashable, int], int]:
    """Return the quanta of the slots that are named, and that of all others.

    Parameters
    ----------
    weights : mapping
        Weight by slot: whole numbers of at least 1.
    other_weight : int
        Weight of each other slot.
    unit : int
        Quantum of a slot of weight 1, in units of cost.

    Returns
    -------
    (dict, int)
        Quanta in the smallest whole numbers together, times `unit`.

    Raises
    ------
    ConfigurationError
        If a weight is not a positive whole number; the message names it.

    Notes
    -----
    O(n). Pure.
    """
    others = _Others()
    together: dict[Any, int] = normalise({**weights, others: other_weight})
    default_quantum = together.pop(others) * unit
    return {name: weight * unit for name, weight in together.items()}, default_quantum


class _Others:
    """A name that no slot can have."""

    def __repr__(self) -> str:
        return "all others"


def split(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide a total window over the queues in proportion to their weights, at least 1 each.

    Parameters
    ----------
    total : int
        Messages that may be unsettled in all.
    weights : mapping
        Weight per queue.

    Returns
    -------
    dict
        Window per queue. They add up to `total` unless the minimum of 1 each needs more.

    Notes
    -----
    O(n log n), by largest remainder; ties go to the queue named first. Pure.
    """
    whole = sum(weights.values())
    exact = {name: Fraction(total * weight, whole) for name, weight in weights.items()}
    result = {name: max(1, math.floor(share)) for name, share in exact.items()}
    left = total - sum(result.values())
    by_remainder = sorted(exact, key=lambda name: math.floor(exact[name]) - exact[name])
    for name in by_remainder[: max(0, left)]:
        result[name] += 1
    # The minimum of 1 may exceed the total: subtract the excess from the largest windows.
    while left < 0 and max(result.values()) > 1:
        largest = max(result, key=lambda name: result[name])
        result[largest] -= 1
        left += 1
    return {name: min(LARGEST_PREFETCH, window) for name, window in result.items()}
