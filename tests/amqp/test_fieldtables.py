"""Tables of headers: pika's decoder is the oracle where it does not fail."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.data import decode_table, encode_table
from support.wiretables import LATE, LATIN, field, nested, table

from fairsched.amqp.fieldtables import MAX_DEPTH, as_text, read_table, write_table

text = st.text(max_size=20)
values = st.recursive(
    st.one_of(
        text, st.binary(max_size=20), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.none(),
        st.decimals("-1000", "1000", places=2),
        st.datetimes(datetime(1970, 1, 2), timezones=st.just(UTC)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
)  # fmt: skip


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@given(st.recursive(
    st.one_of(values, st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
))  # fmt: skip
def test_any_value_is_text_or_json(value: Any) -> None:
    """Of what a table holds after it was sent; what we refuse to send, other clients may."""
    try:
        sent = read_table(write_table({"a": value}), 0)[0]["a"]
    except ValueError:
        sent = value
    found = as_text(sent)
    if isinstance(sent, str):
        assert found == sent
    else:
        again = json.loads(found, parse_constant=refuse)
        if isinstance(sent, float):
            assert float(again) == sent or math.isnan(sent)


def test_what_json_has_no_number_for_is_text() -> None:
    deep: Any = math.inf
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    assert as_text([math.nan, math.inf, {"a": -math.inf}, 1.5]) == '["NaN", "Infinity", {"a": "-Infinity"}, 1.5]'
    assert json.loads(as_text(deep), parse_constant=refuse)
    # A byte that is no UTF-8 does not become six.
    assert len(as_text(b"\xff" * 1000).encode()) == 3002


@given(st.dictionaries(text, values, max_size=5))
def test_tables_are_decoded_as_pika_encoded_them(given_: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    encode_table(pieces, given_)
    data = b"before" + b"".join(pieces)
    assert read_table(data, 6) == decode_table(data, 6)


@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [("b", "b", -5), ("B", "B", 200), ("U", "h", -300), ("s", "h", -300), ("u", "H", 65_000), ("I", "i", -(2**31)),
     ("i", "I", 2**32 - 1), ("L", "q", -(2**63)), ("f", "f", 1.5), ("d", "d", 1.25)],
)  # fmt: skip
def test_numbers_of_all_kinds(kind: str, code: str, value: float) -> None:
    data = table(field(b"a", kind.encode(), struct.pack(f">{code}", value)))
    assert read_table(data, 0) == ({"a": value}, len(data))


def test_what_python_has_no_name_for() -> None:
    data = table(LATE, LATIN, field(b"d", b"D", struct.pack(">Bi", 2, -314)), field(b"n", b"F", table(LATIN)))
    found, _ = read_table(data, 0)
    assert found == {"late": 2**60, "\ufffd": "x", "d": Decimal("-3.14"), "n": {"\ufffd": "x"}}


def longer(data: bytes, by: int) -> bytes:
    """The same table, which says that it is longer."""
    return struct.pack(">I", int.from_bytes(data[:4]) + by) + data[4:]


CUT = [
    table(LATE)[:-1], b"\0\0", b"", longer(table(LATE), 1), longer(table(), 5),
    # What is inside goes beyond what it is in, though there are bytes.
    table(field(b"a", b"S", struct.pack(">I", 5) + b"text")) + b"more",
    table(field(b"a", b"F", longer(table(LATE), 1))) + b"more",
    table(field(b"a", b"A", struct.pack(">I", 9) + b"I\0\0\0\1")) + b"more",
    table(field(b"a", b"l", b"1234567")) + b"more", table(b"\5name") + b"more", table(field(b"a", b"", b"")) + b"V",
]  # fmt: skip


@pytest.mark.parametrize("data", CUT)
def test_a_table_that_is_cut_short(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a table is cut short$"):
        read_table(data, 0)


def test_values_of_no_kind() -> None:
    with pytest.raises(ValueError, match=r"must be of a kind that AMQP knows, got '\?'"):
        read_table(table(field(b"a", b"?", b"")), 0)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_how_deep_tables_are_followed(kind: bytes) -> None:
    value: Any = read_table(nested(MAX_DEPTH, kind), 0)[0]
    depth = 0
    while isinstance(value, dict | list) and value:
        value = value[0] if isinstance(value, list) else value.get("n", value.get("a"))
        depth += 1
    assert (depth, value) == ((MAX_DEPTH, True) if kind == b"F" else (MAX_DEPTH - 1, []))
    for depth in (MAX_DEPTH + 1, 1500, 20_000):
        with pytest.raises(ValueError, match=f"nested more than {MAX_DEPTH} deep"):
            read_table(nested(depth, kind), 0)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        found, end = read_table(data, 0)
    except ValueError:
        return
    assert end == 4 + int.from_bytes(data[:4]) <= len(data)
    assert len(found) <= end // 3
