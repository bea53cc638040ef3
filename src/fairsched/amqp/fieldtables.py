"""Field tables of AMQP 0-9-1: decode them so that no header of a message can stop the reader, and encode them.

pika truncates floats, fails at a date beyond the year 9999, and follows nested tables until Python's stack overflows:
one such message would end the connection, or every attempt at a batch, for ever.

Input is untrusted: each length is checked against the available bytes before use. The types of fields are those of
`FIELD_TYPES`.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it. Pure functions: safe from any thread.
"""

from __future__ import annotations

import calendar
import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any

from fairsched.amqp._properties import FIELD_TYPES, MAX_DEPTH, SHORT_MAX

_LENGTH = Struct(">I")
_DECIMAL = Struct(">Bi")
_SECONDS = Struct(">Q")
#: Formats of `struct` for numbers of fixed length, by their family and bytes; in upper case they are unsigned.
_FORMATS: dict[tuple[str, int | None], str] = {("bool", 1): "?", ("real", 4): "f", ("real", 8): "d"}
_FORMATS |= {("integer", size): code for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))}
#: Readers of numbers by the code of the type's letter. `_READERS` has those of other types.
_NUMBERS = {
    letter: Struct(">" + (_FORMATS[family, size] if signed or family == "bool" else _FORMATS[family, size].upper()))
    for letter, (family, size, signed) in FIELD_TYPES.items()
    if (family, size) in _FORMATS
}
#: Seconds since 1970 at the end of the year 9999: of what is later Python can make no datetime.
LATEST_SECOND = 253_402_300_799


def read_table(data: bytes, begin: int) -> tuple[dict[str, Any], int]:
    """Decode a table.

    Parameters
    ----------
    data : bytes
        Bytes that contain the table.
    begin : int
        Offset of the table's length.

    Returns
    -------
    table : dict of str to object
        Invalid UTF-8 in a name is replaced; text that is not valid UTF-8 is bytes, a timestamp beyond the year 9999 an
        int.
    end : int
        Offset of the table's end.

    Raises
    ------
    ValueError
        If the table is cut short, has a value of an unknown type, or is nested more than `MAX_DEPTH` deep.

    Notes
    -----
    O(length).
    """
    try:
        return _table(data, begin, len(data), 0)
    except (IndexError, StructError):
        raise ValueError("a table is cut short") from None


def _span(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return begin and end of the value whose length is at `at`; it must end before `limit`."""
    begin: int = at + 4
    end: int = begin + _LENGTH.unpack_from(data, at)[0]
    if end > limit:
        raise ValueError("a table is cut short")
    return begin, end


def _nested(data: bytes, at: int, limit: int, depth: int) -> tuple[int, int]:
    if depth == MAX_DEPTH:
        raise ValueError(f"tables and arrays are nested more than {MAX_DEPTH} deep")
    return _span(data, at, limit)


def _table(data: bytes, at: int, limit: int, depth: int) -> tuple[dict[str, Any], int]:
    """Decode the table at `at`, which is inside `depth` others; return it and its end."""
    at, end = _nested(data, at, limit, depth)
    found = {}
    while at < end:
        middle = at + 1 + data[at]
        name = data[at + 1 : middle].decode("utf-8", "replace")
        found[name], at = _value(data, middle, end, depth + 1)
    return found, _ended(at, end)


def _array(data: bytes, at: int, limit: int, depth: int) -> tuple[list[Any], int]:
    at, end = _nested(data, at, limit, depth)
    found = []
    while at < end:
        value, at = _value(data, at, end, depth + 1)
        found.append(value)
    return found, _ended(at, end)


def _ended(at: int, end: int) -> int:
    if at > end:
        raise ValueError("a table is cut short")
    return end


def _text(data: bytes, at: int, limit: int, _depth: int) -> tuple[str | bytes, int]:
    begin, end = _span(data, at, limit)
    text = data[begin:end]
    try:
        return text.decode(), end
    except UnicodeDecodeError:
        return text, end


def _octets(data: bytes, at: int, limit: int, _depth: int) -> tuple[bytes, int]:
    begin, end = _span(data, at, limit)
    return data[begin:end], end


def _timestamp(data: bytes, at: int, _limit: int, _depth: int) -> tuple[datetime | int, int]:
    seconds = _SECONDS.unpack_from(data, at)[0]
    return datetime.fromtimestamp(seconds, UTC) if seconds <= LATEST_SECOND else seconds, at + 8


def _decimal(data: bytes, at: int, _limit: int, _depth: int) -> tuple[Decimal, int]:
    places, digits = _DECIMAL.unpack_from(data, at)
    return Decimal(f"{digits}E-{places}"), at + 5


def _void(_data: bytes, at: int, _limit: int, _depth: int) -> tuple[None, int]:
    return None, at


_OF_FAMILY: dict[str, Callable[[bytes, int, int, int], tuple[Any, int]]] = {
    "text": _text,
    "octets": _octets,
    "table": _table,
    "array": _array,
    "timestamp": _timestamp,
    "decimal": _decimal,
    "void": _void,
}
#: Readers of values by the code of the type's letter, numbers excepted.
_READERS = {letter: _OF_FAMILY[family] for letter, (family, *_) in FIELD_TYPES.items() if letter not in _NUMBERS}


def _value(data: bytes, at: int, limit: int, depth: int) -> tuple[Any, int]:
    """Decode the value at `at`, which is inside `depth` tables and arrays; return it and its end."""
    if at >= limit:
        raise ValueError("a table is cut short")
    letter, at = data[at], at + 1
    number = _NUMBERS.get(letter)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    read = _READERS.get(letter)
    if read is None:
        raise ValueError(f"a value in a table must be of a kind that AMQP knows, got {chr(letter)!r}")
    return read(data, at, limit, depth)


def as_text(value: object) -> str:
    """Return a value of a table as text: text unchanged, anything else as JSON.

    JSON has no number for NaN and the infinities: they become the texts "NaN", "Infinity" and "-Infinity", which Spark
    and other readers accept as numbers.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=_jsonable, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_jsonable, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    """Return the value with texts in place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


def write_table(table: Mapping[str, Any]) -> bytes:
    """Encode a table.

    Parameters
    ----------
    table : mapping of str to object
        Values may be None, bool, int of 64 bits, finite float, str, bytes, `Decimal` with up to 255 decimals and
        31 bits, `datetime` (without a time zone: UTC), and mappings, lists and tuples of such.

    Returns
    -------
    bytes
        The table, after its length. pika encodes the same values to the same bytes; it has no float.

    Raises
    ------
    TypeError
        If a name is not a str, or a value is of another type; the message names it.
    ValueError
        If a name is longer than 255 bytes, a number is out of range, or the table is nested more than `MAX_DEPTH` deep.

    Notes
    -----
    O(length).
    """
    parts: list[bytes] = []
    _write_table(parts, table, 1)
    return b"".join(parts)


def _write_table(parts: list[bytes], table: Mapping[str, Any], depth: int) -> None:
    begin = len(parts)
    parts.append(b"")
    for name, value in table.items():
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, got {name!r}")
        encoded = _utf8(name, f"the name of header {name!r}")
        if len(encoded) > SHORT_MAX:
            raise ValueError(f"a header's name must be at most {SHORT_MAX} bytes long, got {len(encoded)}: {name!r}")
        parts.append(bytes((len(encoded),)) + encoded)
        _write_value(parts, value, name, depth)
    parts[begin] = _LENGTH.pack(sum(map(len, parts[begin:])))


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be encodable as UTF-8: {error}") from None


def _write_value(parts: list[bytes], value: Any, name: str, depth: int) -> None:
    if depth == MAX_DEPTH and isinstance(value, Mapping | list | tuple):
        raise ValueError(f"header {name!r} must be nested at most {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        parts.append(b"F")
        _write_table(parts, value, depth + 1)
    elif isinstance(value, list | tuple):
        begin = len(parts)
        parts.append(b"")
        for one in value:
            _write_value(parts, one, name, depth + 1)
        parts[begin] = b"A" + _LENGTH.pack(sum(map(len, parts[begin:])))
    else:
        parts.append(_scalar(value, name))


def _checked_float(value: float) -> float:
    """Return a finite number; raise ValueError for NaN and infinities, since RabbitMQ closes the connection at them."""
    if not math.isfinite(value):
        raise ValueError
    return value


def _scalar(value: Any, name: str) -> bytes:
    """Encode a value that contains no others, after the letter of its type."""
    if value is None:
        return b"V"
    if isinstance(value, str):
        encoded = _utf8(value, f"header {name!r}")
        return b"S" + _LENGTH.pack(len(encoded)) + encoded
    if isinstance(value, bytes | bytearray):
        return b"x" + _LENGTH.pack(len(value)) + value
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    try:
        if isinstance(value, int):
            letter = b"I" if -(2**31) <= value < 2**31 else b"l"
            return letter + _NUMBERS[letter[0]].pack(value)
        if isinstance(value, float):
            return b"d" + _NUMBERS[ord("d")].pack(_checked_float(value))
        if isinstance(value, Decimal):
            return b"D" + _write_decimal(value)
        if isinstance(value, datetime):
            return b"T" + _SECONDS.pack(calendar.timegm(value.utctimetuple()))
    except (StructError, ValueError, ArithmeticError, TypeError):
        raise ValueError(f"header {name!r} must be a number that AMQP can represent, got {value!r}") from None
    raise TypeError(
        f"header {name!r} must be None, bool, int, float, str, bytes, Decimal, datetime, or a mapping or list of such, "
        f"got {value!r}"
    )


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)))
    if not isinstance(exponent, int) or exponent > 10:
        raise ValueError
    while exponent < 0 and number % 10 == 0 and number:
        number, exponent = number // 10, exponent + 1
    places = max(0, -exponent) if number else 0
    number *= 10 ** max(0, exponent)
    return _DECIMAL.pack(places, -number if sign else number)


def replace_fields(table: bytes, values: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """Encode a table with some values replaced; the bytes of all other fields stay unchanged.

    Parameters
    ----------
    table : bytes
        An encoded table, after its length.
    values : mapping of str to object
        Values as for `write_table`; they replace those of the same names.
    without : collection of str
        Names of fields to drop.

    Returns
    -------
    bytes
        The table, after its length.

    Raises
    ------
    TypeError, ValueError
        As for `read_table` and `write_table`.

    Notes
    -----
    O(length).
    """
    gone = {name.encode() for name in (*values, *without)}
    parts = [b""]
    try:
        at, end = _span(table, 0, len(table))
        while at < end:
            middle = at + 1 + table[at]
            _, after = _value(table, middle, end, 1)
            if table[at + 1 : middle] not in gone:
                parts.append(table[at:after])
            at = after
        _ended(at, end)
    except (IndexError, StructError):
        raise ValueError("a table is cut short") from None
    parts.append(write_table(values)[4:])
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)
