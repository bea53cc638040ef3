"""JSON in which no object has a name twice: Python's parser would silently keep the last one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from fairsched.errors import ConfigurationError

__all__ = ["check_distinct", "parse_json"]


def parse_json(text: str) -> Any:
    """Parse JSON.

    Parameters
    ----------
    text : str
        The document.

    Returns
    -------
    object
        What it says.

    Raises
    ------
    ConfigurationError
        If an object has the same name twice; the message has the name.
    ValueError
        If the text is not JSON.
    RecursionError
        If it is nested too deeply.

    Notes
    -----
    O(length). Safe from any thread.
    """
    return json.loads(text, object_pairs_hook=_table)


def check_distinct(names: list[Any], what: str) -> None:
    """Raise ConfigurationError if a name is there twice; `what` begins the message. O(names)."""
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise ConfigurationError(f"{what} must differ, got {', '.join(map(repr, twice))} more than once")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    check_distinct([name for name, _ in pairs], "names in an object of JSON")
    return dict(pairs)
