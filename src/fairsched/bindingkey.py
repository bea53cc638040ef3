"""Binding keys of a consistent-hash exchange: weights, written as Erlang writes integers."""

from __future__ import annotations

import re

from fairsched.errors import ConfigurationError

#: The largest weight a broker takes since April 2026.
LARGEST = 10_000

#: Python's int() also takes spaces, underscores and the digits of other scripts.
_INTEGER = re.compile(r"[+-]?[0-9]+")


def weight_of(key: str, largest: int | None = LARGEST) -> int:
    """Read a binding key.

    Parameters
    ----------
    key : str
        A sign, if any, and ASCII digits.
    largest : int, optional
        The largest weight allowed; None for any, as brokers did before April 2026.

    Returns
    -------
    int
        The weight, 1 or more.

    Raises
    ------
    ConfigurationError
        In the words of the broker.

    Notes
    -----
    Complexity O(length). Source: the exchange's `validate_binding`.
    """
    if not isinstance(key, str) or not _INTEGER.fullmatch(key):
        raise ConfigurationError(f"The binding key must be an integer: {key}")
    # Far more digits than any weight has: Python would not even convert them.
    digits = key.lstrip("+-").lstrip("0")
    weight = int(digits[:20] or "0")
    if weight < 1 or key.startswith("-"):
        raise ConfigurationError("The binding key must be greater than 0")
    if largest is not None and weight > largest:
        raise ConfigurationError(f"The binding key must not exceed {largest}")
    return weight
