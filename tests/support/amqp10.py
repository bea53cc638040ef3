"""Values and messages of AMQP 1.0 as bytes, of any type and in any encoding; and Hypothesis strategies for them.

A value is a pair of its type and what Python has for it; the encodings of one type are chosen by its octets.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

from hypothesis import strategies as st

Value = tuple[str, Any]

#: Type: its constructor, and how it is packed.
_FIXED = {
    "ubyte": (0x50, "B"), "byte": (0x51, "b"), "ushort": (0x60, "H"), "short": (0x61, "h"), "uint": (0x70, "I"),
    "int": (0x71, "i"), "ulong": (0x80, "Q"), "long": (0x81, "q"), "float": (0x72, "f"), "double": (0x82, "d"),
    "timestamp": (0x83, "q"), "char": (0x73, "I"),
}  # fmt: skip
_SMALL = {"uint": (0x52, range(256)), "ulong": (0x53, range(256)), "int": (0x54, range(-128, 128)),
          "long": (0x55, range(-128, 128))}  # fmt: skip
_SIZED = {"binary": 0xA0, "utf8": 0xA1, "symbol": 0xA3}
_SECTIONS = {"header": 0x70, "delivery_annotations": 0x71, "annotations": 0x72, "properties": 0x73, "application": 0x74,
             "data": 0x75, "sequence": 0x76, "value": 0x77, "footer": 0x78}  # fmt: skip


def sized(code: int, content: bytes) -> bytes:
    """Encode octets after their length, which takes one octet where it fits."""
    if len(content) < 256:
        return bytes([code, len(content)]) + content
    return bytes([code | 0x10]) + struct.pack(">I", len(content)) + content


def compound(code: int, count: int, content: bytes) -> bytes:
    """Encode a list, a map or an array."""
    if len(content) < 255 and count < 256:
        return bytes([code, len(content) + 1, count]) + content
    return bytes([code | 0x10]) + struct.pack(">II", len(content) + 4, count) + content


def encoded(value: Value) -> bytes:
    """Encode a value."""
    kind, found = value
    if kind == "null":
        return b"\x40"
    if kind == "boolean":
        return b"\x41" if found else b"\x42"
    if kind in _SIZED:
        return sized(_SIZED[kind], found.encode() if isinstance(found, str) else found)
    if kind == "uuid":
        return b"\x98" + uuid.UUID(int=found).bytes
    if kind == "list":
        return compound(0xC0, len(found), b"".join(map(encoded, found))) if found else b"\x45"
    if kind == "map":
        return compound(0xC1, 2 * len(found), b"".join(encoded(one) for pair in found for one in pair))
    if kind == "array":
        return compound(0xE0, len(found), b"\xb1" + b"".join(struct.pack(">I", len(one)) + one for one in found))
    if kind in _SMALL and found in _SMALL[kind][1]:
        return bytes([_SMALL[kind][0], found & 0xFF])
    code, how = _FIXED[kind]
    return bytes([code]) + struct.pack(">" + how, found)


def section(name: str, value: Value) -> bytes:
    """Encode a section of a message."""
    return b"\0\x53" + bytes([_SECTIONS[name]]) + encoded(value)


def integers(how: str) -> st.SearchStrategy[int]:
    """All integers of a format of `struct`."""
    bits = 8 * struct.calcsize(how)
    low, high = (0, 2**bits) if how.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return st.integers(low, high - 1)


_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)

#: Values that every RabbitMQ delivers over AMQP 0-9-1.
PLAIN: st.SearchStrategy[Value] = st.one_of(
    st.tuples(st.just("utf8"), _texts),
    st.tuples(st.just("binary"), st.binary(max_size=9)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("null"), st.none()),
    st.tuples(st.just("timestamp"), st.integers(-(2**40), 2**50)),
    st.tuples(st.just("float"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("double"), st.floats(allow_nan=False, allow_infinity=False)),
    *(
        st.tuples(st.just(kind), integers(how))
        for kind, (_, how) in _FIXED.items()
        if kind not in ("float", "double", "timestamp", "char", "ulong")
    ),
)
#: Those that it delivers since 3.13.
_LATER = st.one_of(
    PLAIN,
    st.tuples(st.just("ulong"), integers("Q")),
    st.tuples(st.just("symbol"), st.from_regex(r"[a-z]{0,5}", fullmatch=True)),
    st.tuples(st.just("array"), st.lists(st.binary(max_size=3), max_size=3)),
)
NESTED: st.SearchStrategy[Value] = st.one_of(
    _LATER,
    st.recursive(
        PLAIN,
        lambda inner: st.one_of(
            st.tuples(st.just("list"), st.lists(inner, max_size=3)),
            st.tuples(st.just("map"), st.lists(st.tuples(st.tuples(st.just("utf8"), _texts), inner), max_size=3)),
        ),
        max_leaves=6,
    ),
)
