"""The table ``queue_source`` of a configuration file: a source of queues in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairsched.config.queue_source import QueueSource
from fairsched.errors import ConfigurationError

#: What says where the queues come from; a table has one of them.
KINDS = ("file", "pattern", "function")
#: What only a pattern has.
_OF_PATTERNS = ("management", "vhost", "timeout")


def source_of(table: Mapping[str, Any], load: Callable[[str], Callable[[], Any]]) -> QueueSource:
    """Return the source of queues that a table describes.

    Parameters
    ----------
    table : mapping
        With ``file``, ``function``, or ``pattern`` and ``management``; and parameters of `QueueSource` or
        `QueueSource.matching`, except that durations are numbers of seconds.
    load : callable
        Returns the function that ``MODULE:FUNCTION`` names.

    Returns
    -------
    QueueSource
        The source.

    Raises
    ------
    ConfigurationError
        If a name is missing, is one too many, or has an invalid value; the message names it.

    Notes
    -----
    O(weights), and what `load` takes. Safe from any thread.
    """
    kinds = [name for name in KINDS if name in table]
    if len(kinds) != 1:
        raise ConfigurationError(f"a source has one of {', '.join(KINDS)}, got {', '.join(kinds) or 'none of them'}")
    [kind] = kinds
    options = {name: value for name, value in table.items() if name != kind}
    if kind == "pattern":
        if "management" not in options:
            raise ConfigurationError("a pattern needs management, the URL of the management API")
        return QueueSource.matching(table["pattern"], **options)
    foreign = [name for name in _OF_PATTERNS if name in options]
    if foreign:
        raise ConfigurationError(f"{foreign[0]} is for a pattern, not for a {kind}")
    where = table[kind]
    if not isinstance(where, str) or not where:
        raise ConfigurationError(f"{kind} must be text that is not empty, got {where!r}")
    return QueueSource(Path(where) if kind == "file" else load(where), **options)
