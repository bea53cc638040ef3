"""The refusals of the reference queue, by name."""

from __future__ import annotations

import math
from typing import Any

OVERFLOWS = ("none", "ring", "reject", "flow")
GROUPS = (None, "standard", "shared")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_number(name: str, value: Any, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_duration(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
        raise ValueError(f"{name} must be seconds, finite and not negative, got {value!r}")


def check_time(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of seconds, got {value!r}")


def check_callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be callable, got {value!r}")


def check_priority(value: Any) -> None:
    check_number("priority", value, -(2**31))
    if value >= 2**31:
        raise ValueError(f"priority must be at most {2**31 - 1}, got {value!r}")


def check_quanta(kind: str, quanta: Any) -> None:
    if (kind == "fair") != bool(quanta):
        raise ValueError(f"quanta are for a fair queue, which needs some; got {quanta!r} for {kind!r}")
    for quantum in (quanta or {}).values():
        check_number("quantum", quantum, 1)


def check_alternate(value: Any) -> None:
    if value is not None and not hasattr(value, "put") and not callable(value):
        raise ValueError(f"alternate must be callable or have put(), got {value!r}")
