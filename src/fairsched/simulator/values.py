"""Check and convert the values of a scenario; errors name the field, the value and the rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairsched.config.durations import RULE, parse_duration
from fairsched.errors import ConfigurationError

#: Largest quantum, cost or depth in the engine.
LARGEST = 2**62 - 1
#: Longest simulated time, in seconds: a century.
LONGEST = 3.2e9
#: Highest rate, in messages per second: one nanosecond apart.
FASTEST = 1e9


def seconds(value: object, what: str, *, positive: bool = False) -> float:
    """Convert a duration or a time: a number of seconds, or text with a unit.

    Raises
    ------
    ConfigurationError
        It is not a duration, is negative or too long, or is zero and must be positive.
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
        raise ConfigurationError(f"{what} must be at least a nanosecond, got {value!r}")
    return result


def nanoseconds(value: float) -> int:
    """Round seconds to whole nanoseconds."""
    return round(value * 1e9)


def whole(value: object, what: str, least: int, largest: int = LARGEST) -> int:
    """Check a whole number.

    Raises
    ------
    ConfigurationError
        It is not a whole number, or out of range.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ConfigurationError(f"{what} must be a whole number, got {value!r}")
    number = int(value.__index__())  # type: ignore[attr-defined]  # checked above
    if not least <= number <= largest:
        raise ConfigurationError(f"{what} must be a whole number from {least} to {largest}, got {value!r}")
    return number


def number(value: object, what: str, largest: float, unit: str = "") -> float:
    """Check a positive number.

    Raises
    ------
    ConfigurationError
        It is not a number, not positive, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        raise ConfigurationError(f"{what} must be a positive number of at most {largest:g}{unit}, got {value!r}")
    return float(value)


def rate(value: object, what: str) -> float:
    """Check a number of messages per second."""
    return number(value, what, FASTEST, " per second")


def flag(value: object, what: str) -> bool:
    """Check a bool.

    Raises
    ------
    ConfigurationError
        It is neither True nor False.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be true or false, got {value!r}")
    return value


def name(value: object, what: str) -> str:
    """Check a name.

    Raises
    ------
    ConfigurationError
        It is not text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a name, got {value!r}")
    return value


def choice(value: object, what: str, allowed: Collection[str]) -> str:
    """Check that a value is one of several words.

    Raises
    ------
    ConfigurationError
        It is not one of them.
    """
    if not isinstance(value, str) or value not in allowed:
        raise ConfigurationError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def fields_of(table: object, what: str, allowed: Collection[str]) -> dict[str, Any]:
    """Check that a table has only allowed fields.

    Raises
    ------
    ConfigurationError
        It is not a table, or has an unknown field.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{what} must be a table, got {table!r}")
    for key in table:
        if key not in allowed:
            raise ConfigurationError(f"{what} has no field {key!r}; known: {', '.join(allowed)}")
    return dict(table)
