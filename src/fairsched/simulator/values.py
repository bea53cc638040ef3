"""Values of a scenario: checked, converted, with errors that name the place, the value and the rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from fairsched.durations import RULE, parse_duration
from fairsched.errors import ConfigurationError

#: What fits in the engine: a quantum, a cost, a depth.
LARGEST = 2**62 - 1
#: The longest time that is simulated, in seconds: a century.
LONGEST = 3.2e9
#: Messages a second; one nanosecond lies between two at least.
FASTEST = 1e9


def seconds(value: object, what: str, *, positive: bool = False) -> float:
    """Convert a duration or a moment: a number of seconds, or text with a unit.

    Raises
    ------
    ConfigurationError
        It is none, negative, too long, or zero where it must not be.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigurationError(f"{what} must be {RULE}, got {value!r}")
    try:
        result = parse_duration(value)
    except ValueError:
        raise ConfigurationError(f"{what} must be {RULE}, got {value!r}") from None
    if result > LONGEST:
        raise ConfigurationError(f"{what} must be at most {LONGEST:g} seconds, got {value!r}")
    if positive and nanoseconds(result) < 1:
        raise ConfigurationError(f"{what} must be a nanosecond or more, got {value!r}")
    return result


def nanoseconds(value: float) -> int:
    """Round seconds to whole nanoseconds."""
    return round(value * 1e9)


def whole(value: object, what: str, least: int, largest: int = LARGEST) -> int:
    """Check a whole number.

    Raises
    ------
    ConfigurationError
        It is none, or out of range.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ConfigurationError(f"{what} must be a whole number, got {value!r}")
    number = int(value.__index__())  # type: ignore[attr-defined]  # has it, as we saw
    if not least <= number <= largest:
        raise ConfigurationError(f"{what} must be a whole number from {least} to {largest}, got {value!r}")
    return number


def number(value: object, what: str, largest: float, unit: str = "") -> float:
    """Check a positive number.

    Raises
    ------
    ConfigurationError
        It is none, not positive, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        raise ConfigurationError(f"{what} must be a positive number of at most {largest:g}{unit}, got {value!r}")
    return float(value)


def rate(value: object, what: str) -> float:
    """Check a number of messages a second."""
    return number(value, what, FASTEST, " a second")


def flag(value: object, what: str) -> bool:
    """Check a yes or no.

    Raises
    ------
    ConfigurationError
        It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be true or false, got {value!r}")
    return value


def name(value: object, what: str) -> str:
    """Check a name.

    Raises
    ------
    ConfigurationError
        It is no text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a name, got {value!r}")
    return value


def choice(value: object, what: str, allowed: Collection[str]) -> str:
    """Check a word out of several.

    Raises
    ------
    ConfigurationError
        It is none of them.
    """
    if not isinstance(value, str) or value not in allowed:
        raise ConfigurationError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def fields_of(table: object, what: str, allowed: Collection[str]) -> dict[str, Any]:
    """Check that a table has no other fields than those allowed.

    Raises
    ------
    ConfigurationError
        It is no table, or has one.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{what} must be a table, got {table!r}")
    for key in table:
        if key not in allowed:
            raise ConfigurationError(f"{what} has no field {key!r}; there are {', '.join(allowed)}")
    return dict(table)


def finite(value: float) -> bool:
    """Tell whether a number is an ordinary one."""
    return math.isfinite(value)
