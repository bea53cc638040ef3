"""Scenarios as tables: from TOML, JSON and rows of dotted keys, and back."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairsched.errors import ConfigurationError
from fairsched.simulator import values
from fairsched.simulator.arrivals import Arrivals
from fairsched.simulator.consumers import ConsumerSpec, Shedding
from fairsched.simulator.parts import Broker, Change, Queue
from fairsched.simulator.service import Service

_KINDS: dict[str, type] = {"queues": Queue, "consumers": ConsumerSpec, "brokers": Broker, "changes": Change}
_SCALARS = ("duration", "messages", "warmup", "seed", "timeline", "histories", "name", "about")


def parts_of(table: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """Convert tables to the arguments of a scenario.

    Raises
    ------
    ConfigurationError
        A field is unknown, a part is not a table, or a value is not allowed.
    """
    fields = values.fields_of(table, "a scenario", (*_KINDS, "broker", *_SCALARS))
    for field in ("queues", "consumers"):
        if field not in fields:
            raise ConfigurationError(f"a scenario needs {field}, got {', '.join(fields) or 'nothing'}")
    if "broker" in fields:
        if "brokers" in fields:
            raise ConfigurationError("a scenario has either broker or brokers")
        fields["brokers"] = [fields.pop("broker")]
    for field, kind in _KINDS.items():
        if field in fields:
            entries = _entries(fields[field], field)
            fields[field] = tuple(_part(kind, entry, f"{field}[{i}]", directory) for i, entry in enumerate(entries))
    return fields


def _entries(given: object, field: str) -> list[Any]:
    """Return the tables of a list, or of a table of tables by name."""
    if isinstance(given, Mapping):
        if field == "changes":
            return list(given.values())
        entries = []
        for name, entry in given.items():
            if not isinstance(entry, Mapping):
                raise ConfigurationError(f"{field}.{name} must be a table, got {entry!r}")
            entries.append({"name": name, **entry})
        return entries
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ConfigurationError(f"{field} must be a list of tables, got {given!r}")
    return list(given)


def _part(kind: type, entry: object, where: str, directory: Path | None) -> Any:
    if isinstance(entry, kind):
        return entry
    allowed = [field.name for field in dataclasses.fields(kind)]
    table = values.fields_of(entry, where, allowed)
    if kind is Change and "at" not in table:
        raise ConfigurationError(f"{where} needs at, the time of the change")
    if table.get("arrivals") is not None:
        table["arrivals"] = Arrivals.of(table["arrivals"], directory)
    return kind(**table)


def plain(value: object) -> Any:
    """Convert a part, or a value in it, to JSON types."""
    if isinstance(value, Service | Arrivals):
        return value.to_dict()
    if isinstance(value, Queue | ConsumerSpec | Broker | Change | Shedding):
        table = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {key: entry for key, entry in table.items() if entry is not None}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    return value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested tables.

    Raises
    ------
    ConfigurationError
        A key is given both as a value and as a table.
    """
    tables: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = str(key).split(".")
        table = tables
        for step in path:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ConfigurationError(f"key {key!r} is inside a value that another key sets")
        if last in table:
            raise ConfigurationError(f"key {key!r} is given twice, or as a value and as a table")
        table[last] = value
    return tables


def replaced(tables: dict[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values in a scenario's tables by dotted key.

    Raises
    ------
    ConfigurationError
        A key matches nothing.
    """
    for key, value in flat.items():
        path = str(key).split(".")
        if path[0] == "broker":
            path[:1] = ["brokers", "*"]
        _replace(tables, path, value, key)
    return tables


def _replace(table: Any, path: list[str], value: Any, key: str) -> None:
    if isinstance(table, list):
        found = [entry for place, entry in enumerate(table) if path[0] in ("*", str(place), entry.get("name"))]
        if not found or len(path) == 1:
            names = [str(entry.get("name", place)) for place, entry in enumerate(table)]
            raise ConfigurationError(f"key {key!r} matches no field; known: {', '.join(names) or 'nothing'}")
        for entry in found:
            _replace(entry, path[1:], value, key)
    elif len(path) > 1:
        inner = table.get(path[0])
        if not isinstance(inner, dict | list):
            inner = table[path[0]] = {}
        _replace(inner, path[1:], value, key)
    elif value is None:
        table.pop(path[0], None)
    else:
        table[path[0]] = value


def closest(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list the known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
