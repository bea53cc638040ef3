"""Field tables of AMQP 0-9-1, decoded so that no header of a message can stop who reads it.

pika cuts the fraction off a number, fails at an instant that Python has no name for, and follows tables inside tables
until Python's stack is used up: one such message would end a connection, or every attempt at a batch, for ever.

Bytes may be anything: no length is trusted before what it spans is known to be there.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it. Pure functions: safe from any thread.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any

#: Tables and arrays inside each other that are followed. RabbitMQ itself nests three.
MAX_DEPTH = 100

_LENGTH = Struct(">I")
_DECIMAL = Struct(">Bi")
_SECONDS = Struct(">Q")
#: Kinds of values that are a number of fixed length.
_NUMBERS = {
    kind: Struct(f">{code}")
    for kind, code in zip(b"tbBsUuIiLlfd", ("?", "b", "B", "h", "h", "H", "i", "I", "q", "q", "f", "d"), strict=True)
}
#: Seconds since 1970 at the end of the year 9999: of what is later Python can make no datetime.
LATEST_SECOND = 253_402_300_799


def read_table(data: bytes, begin: int) -> tuple[dict[str, Any], int]:
    """Decode a table.

    Parameters
    ----------
    data : bytes
        Holds it.
    begin : int
        Where its length stands.

    Returns
    -------
    table : dict of str to object
        What is no UTF-8 in a name is replaced; a text that is none is bytes, an instant beyond the year 9999 an int.
    end : int
        Where it ends.

    Raises
    ------
    ValueError
        It is cut short, has a value of an unknown kind, or is nested more than `MAX_DEPTH` deep.

    Notes
    -----
    O(length).
    """
    try:
        return _table(data, begin, len(data), 1)
    except (IndexError, StructError):
        raise ValueError("a table is cut short") from None


def _span(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return where that begins and ends whose length stands at `at`, and which lies before `limit`."""
    begin: int = at + 4
    end: int = begin + _LENGTH.unpack_from(data, at)[0]
    if end > limit:
        raise ValueError("a table is cut short")
    return begin, end


def _nested(data: bytes, at: int, limit: int, depth: int) -> tuple[int, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"tables and arrays are nested more than {MAX_DEPTH} deep")
    return _span(data, at, limit)


def _table(data: bytes, at: int, limit: int, depth: int) -> tuple[dict[str, Any], int]:
    at, end = _nested(data, at, limit, depth)
    found = {}
    while at < end:
        middle = at + 1 + data[at]
        name = data[at + 1 : middle].decode("utf-8", "replace")
        found[name], at = _value(data, middle, end, depth)
    return found, _ended(at, end)


def _array(data: bytes, at: int, limit: int, depth: int) -> tuple[list[Any], int]:
    at, end = _nested(data, at, limit, depth)
    found = []
    while at < end:
        value, at = _value(data, at, end, depth)
        found.append(value)
    return found, _ended(at, end)


def _ended(at: int, end: int) -> int:
    if at > end:
        raise ValueError("a table is cut short")
    return end


def _value(data: bytes, at: int, limit: int, depth: int) -> tuple[Any, int]:
    """Decode the value at `at`; return it and where it ends."""
    if at >= limit:
        raise ValueError("a table is cut short")
    kind, at = data[at], at + 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    match chr(kind):
        case "S" | "x" as text:
            begin, end = _span(data, at, limit)
            return (_text if text == "S" else bytes)(data[begin:end]), end
        case "F":
            return _table(data, at, limit, depth + 1)
        case "A":
            return _array(data, at, limit, depth + 1)
        case "T":
            seconds = _SECONDS.unpack_from(data, at)[0]
            return datetime.fromtimestamp(seconds, UTC) if seconds <= LATEST_SECOND else seconds, at + 8
        case "D":
            places, digits = _DECIMAL.unpack_from(data, at)
            return Decimal(f"{digits}E-{places}"), at + 5
        case "V":
            return None, at
    raise ValueError(f"a value in a table must be of a kind that AMQP knows, got {chr(kind)!r}")


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_text(value: object) -> str:
    """Return a value of a table as text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_jsonable)


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
