"""Headers as they were sent: each with the letter of its AMQP type, and its value in bytes.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it. Pure functions: safe from any thread.
"""

from __future__ import annotations

from typing import Any

from fairsched.amqp._properties import PROPERTY_NAMES, read_properties

_WANTED = (PROPERTY_NAMES.index("headers"),)
#: Bytes of a value, by its type; of those that are not here, the length stands in front of the value.
_KINDS_OF_SIZE = ("V", "tbB", "suU", "", "fiI", "D", "", "", "lLdT")
_SIZES = {ord(kind): size for size, kinds in enumerate(_KINDS_OF_SIZE) for kind in kinds}
_WITH_LENGTH = b"SxFA"

TypedHeader = dict[str, Any]


def typed_headers(header: bytes) -> list[TypedHeader] | None:
    """Take the headers of a message apart.

    Parameters
    ----------
    header : bytes
        The message's content header.

    Returns
    -------
    list of dict or None
        ``key``, ``type`` (a letter) and ``value``, in the order in which they were sent, also those of the same name.
        Of text, bytes, tables and arrays the value is what follows their length; of "no value" it is None. None if the
        message has no headers, or what it has cannot be taken apart.

    Notes
    -----
    O(length). What is inside tables and arrays is not looked at.
    """
    try:
        found: list[TypedHeader] | None = read_properties(header, _WANTED, _entries).get("headers")
    except ValueError:
        return None
    return found


def _entries(data: bytes, begin: int) -> tuple[list[TypedHeader], int]:
    found = []
    at, end = _span(data, begin, len(data))
    while at < end:
        middle = at + 1 + data[at]
        if middle >= end:
            raise ValueError("a table is cut short")
        kind, key = data[middle], data[at + 1 : middle].decode("utf-8", "replace")
        if kind in _WITH_LENGTH:
            start, at = _span(data, middle + 1, end)
        elif kind in _SIZES:
            start, at = middle + 1, middle + 1 + _SIZES[kind]
        else:
            raise ValueError(f"a value in a table must be of a type that AMQP knows, got {chr(kind)!r}")
        if at > end:
            raise ValueError("a table is cut short")
        found.append({"key": key, "type": chr(kind), "value": None if kind == ord("V") else data[start:at]})
    return found, end


def _span(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return where that begins and ends whose length stands at `at`, and which lies before `limit`."""
    begin = at + 4
    end = begin + int.from_bytes(data[at:begin], "big")
    if end > limit or begin > limit:
        raise ValueError("a table is cut short")
    return begin, end
