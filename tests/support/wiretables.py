"""Headers as bytes, such as no encoder of ours makes, and properties that carry them to a broker."""

from __future__ import annotations

import struct
from typing import Any

import pika


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


def table(*fields: bytes) -> bytes:
    found = b"".join(fields)
    return struct.pack(">I", len(found)) + found


def nested(depth: int, kind: bytes = b"F") -> bytes:
    """A table with so many tables, or arrays, in it, one inside the other."""
    inner = b"" if kind == b"A" else table(field(b"a", b"t", b"\1"))[4:]
    for _ in range(depth - 2):
        inner = (b"" if kind == b"A" else b"\1n") + kind + struct.pack(">I", len(inner)) + inner
    return table(field(b"n", kind, struct.pack(">I", len(inner)) + inner))


LATE = field(b"late", b"T", struct.pack(">Q", 2**60))
LATIN = field(b"\xe9", b"S", struct.pack(">I", 1) + b"x")


class Encoded(pika.BasicProperties):
    """Properties whose headers are given as bytes."""

    def __init__(self, headers: bytes, **others: Any) -> None:
        super().__init__(headers={"placeholder": True}, **others)
        self._encoded = headers

    def encode(self) -> list[bytes]:
        pieces = super().encode()
        start = pieces.index(b"placeholder") - 2
        return [*pieces[:start], self._encoded, *pieces[start + 4 :]]


# Tables of any kind of field, as lists -----------------------------------------------------------------------------

#: How the kinds of one size are packed.
SIZES = {"b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f", "d": "d", "T": "Q"}


def packed(kind: str, value: Any) -> bytes:
    """Encode a value: of an array a list of (kind, value), of a table one of (name, kind, value)."""
    if kind == "V":
        return b""
    if kind == "t":
        return bytes([bool(value)])
    if kind == "D":
        return struct.pack(">BI", *value)
    if kind in "Sx":
        return struct.pack(">I", len(value)) + value
    if kind == "A":
        inside = b"".join(kind.encode() + packed(kind, value) for kind, value in value)
        return struct.pack(">I", len(inside)) + inside
    return written(value) if kind == "F" else struct.pack(">" + SIZES[kind], value)


def written(fields: list[tuple[bytes, str, Any]]) -> bytes:
    """Encode a table, from its length on."""
    return table(*(field(name, kind.encode(), packed(kind, value)) for name, kind, value in fields))
