"""Durations in text: 100us, 4ms, 1.5s, 2min."""

from __future__ import annotations

import math
import re

__all__ = ["format_duration", "parse_duration"]

#: Seconds in each unit. Micro may be u, the micro sign or the Greek letter.
UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}

RULE = "a number of seconds, or a number with a unit (ns, us, ms, s, min, h), such as 100us, 4ms or 1.5s"

_PATTERN = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([a-z\u00b5\u03bc]*)\s*", re.IGNORECASE)


def parse_duration(value: str | float) -> float:
    """Convert a duration to seconds.

    Parameters
    ----------
    value : str or float
        Seconds as a number, or text: a number with one of the units ns, us (µs), ms, s, min (m), h; without a unit,
        seconds.

    Returns
    -------
    float
        Seconds, not negative.

    Raises
    ------
    ValueError
        If the value is not a duration, is negative, infinite or NaN. The message names the value and the rule.

    Notes
    -----
    O(length). Pure function: safe from any thread.

    Examples
    --------
    >>> parse_duration("4ms"), parse_duration("1.5s"), parse_duration(2), parse_duration("25")
    (0.004, 1.5, 2.0, 25.0)
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"a duration must be {RULE}, got {value!r}")
    if isinstance(value, str):
        match = _PATTERN.fullmatch(value)
        unit = UNITS.get(match[3].lower() or "s") if match else None
        if match is None or unit is None:
            raise ValueError(f"a duration must be {RULE}, got {value!r}")
        number = float(match[1] + (match[2] or ""))
        # Division by a power of ten is exact where multiplication by its inverse is not: 4ms is 0.004 and not nearly.
        seconds = number / round(1 / unit) if unit < 1 else number * unit
    else:
        try:
            seconds = float(value)
        except OverflowError:  # a whole number beyond all floats
            seconds = math.inf
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"a duration must be finite and not negative, got {value!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Write a duration in the largest unit that fits.

    Parameters
    ----------
    seconds : float
        The duration.

    Returns
    -------
    str
        Text that `parse_duration` reads back, to six significant digits.

    Notes
    -----
    O(1). Pure function: safe from any thread.

    Examples
    --------
    >>> format_duration(0.0001), format_duration(0), format_duration(25)
    ('100us', '0s', '25s')
    """
    for unit in ("s", "ms", "us"):
        if seconds == 0 or seconds >= UNITS[unit]:
            break
    else:
        unit = "ns"
    return f"{seconds / UNITS[unit]:.6g}{unit}"
