"""Field tables of AMQP 0-9-1, decoded so that no header of a message can stop a query.

pika cuts the fraction off a number, gives bytes for a name that is no UTF-8, and fails at an instant that Python has no
name for: one such message would end every attempt at its batch.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it. Pure functions: safe from any thread.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Any

_LENGTH = Struct(">I")
_DECIMAL = Struct(">Bi")
_SECONDS = Struct(">Q")
#: Kinds of values that are a number of fixed length.
_NUMBERS = {
    kind: Struct(f">{code}")
    for kind, code in zip(b"tbBsUuIiLlfd", ("?", "b", "B", "h", "h", "H", "i", "I", "q", "q", "f", "d"), strict=True)
}
# Beyond the year 9999 Python has no name for an instant.
_LATEST = 253_402_300_799


def read_table(data: bytes, begin: int) -> tuple[dict[str, Any], int]:
    """read_table(data, begin)
    --

    Decode a table.

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
        A value is of an unknown kind.
    IndexError, struct.error
        It is cut short.

    Notes
    -----
    O(length).
    """
    at = begin + 4
    end = at + _LENGTH.unpack_from(data, begin)[0]
    found = {}
    while at < end:
        middle = at + 1 + data[at]
        name = data[at + 1 : middle].decode("utf-8", "replace")
        found[name], at = _value(data, middle)
    return found, end


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Decode the value at `at`; return it and where it ends."""
    kind, at = data[at], at + 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    match chr(kind):
        case "S" | "x" as text:
            end = at + 4 + _LENGTH.unpack_from(data, at)[0]
            return (_text if text == "S" else bytes)(data[at + 4 : end]), end
        case "F":
            return read_table(data, at)
        case "A":
            return _array(data, at)
        case "T":
            seconds = _SECONDS.unpack_from(data, at)[0]
            return datetime.fromtimestamp(seconds, UTC) if seconds <= _LATEST else seconds, at + 8
        case "D":
            places, digits = _DECIMAL.unpack_from(data, at)
            return Decimal(digits).scaleb(-places), at + 5
        case "V":
            return None, at
    raise ValueError(f"a value in a table must be of a kind that AMQP knows, got {chr(kind)!r}")


def _array(data: bytes, at: int) -> tuple[list[Any], int]:
    end = at + 4 + _LENGTH.unpack_from(data, at)[0]
    at += 4
    found = []
    while at < end:
        value, at = _value(data, at)
        found.append(value)
    return found, end


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
