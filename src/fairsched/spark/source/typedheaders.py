"""Headers as they were sent: each with the letter of its AMQP type, and its value in bytes.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it. Pure functions: safe from any thread.
"""

from __future__ import annotations

from typing import Any

from fairsched.amqp._properties import FIELD_TYPES, PROPERTY_NAMES, read_properties

_WANTED = (PROPERTY_NAMES.index("headers"),)

TypedHeader = dict[str, Any]


def typed_headers(header: bytes) -> list[TypedHeader] | None:
    """Split the headers of a message into fields.

    Parameters
    ----------
    header : bytes
        The message's content header.

    Returns
    -------
    list of dict or None
        ``key``, ``type`` (a letter) and ``value`` of each field, in the order in which they were sent, duplicates
        included. The value of text, bytes, tables and arrays is without its length; that of "no value" is None. None
        if the message has no headers, or they are malformed.

    Notes
    -----
    O(length). Tables and arrays are not decoded.
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
        letter, key = data[middle], data[at + 1 : middle].decode("utf-8", "replace")
        if letter not in FIELD_TYPES:
            raise ValueError(f"a value in a table must be of a type that AMQP knows, got {chr(letter)!r}")
        family, size, _ = FIELD_TYPES[letter]
        if size is None:
            start, at = _span(data, middle + 1, end)
        else:
            start, at = middle + 1, middle + 1 + size
        if at > end:
            raise ValueError("a table is cut short")
        found.append({"key": key, "type": chr(letter), "value": None if family == "void" else data[start:at]})
    return found, end


def _span(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return begin and end of the value whose length is at `at`; it must end before `limit`."""
    begin = at + 4
    end = begin + int.from_bytes(data[at:begin], "big")
    if end > limit or begin > limit:
        raise ValueError("a table is cut short")
    return begin, end
