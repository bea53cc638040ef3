"""Binding keys of a consistent-hash exchange: weights, written as Erlang writes integers."""

from __future__ import annotations

import re

from fairsched.errors import ConfigurationError

#: The largest weight that brokers accept since April 2026.
LARGEST = 10_000

#: Python's int() also accepts spaces, underscores and digits of other scripts.
_INTEGER = re.compile(r"[+-]?[0-9]+")


def weight_of(key: str, largest: int | None = LARGEST) -> int:
    """Parse a binding key.

    Parameters
    ----------
    key : str
        An optional sign and ASCII digits.
    largest : int, optional
        The largest weight allowed; None for no limit, as in brokers before April 2026.

    Returns
    -------
    int
        The weight, at least 1.

    Raises
    ------
    ConfigurationError
        The key is not a weight; with the broker's message.

    Notes
    -----
    Complexity O(length). Source: the exchange's `validate_binding`.
    """
    if not isinstance(key, str) or not _INTEGER.fullmatch(key):
        raise ConfigurationError(f"The binding key must be an integer: {key}")
    # Python refuses to convert very long numbers; no weight has this many digits.
    digits = key.lstrip("+-").lstrip("0")
    weight = int(digits[:20] or "0")
    if weight < 1 or key.startswith("-"):
        raise ConfigurationError("The binding key must be greater than 0")
    if largest is not None and weight > largest:
        raise ConfigurationError(f"The binding key must not exceed {largest}")
    return weight
