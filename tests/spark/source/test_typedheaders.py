"""Headers in the bytes in which they were sent, by hand and of any kind, and in a query on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.queries import Rows, drain, load
from support.spark.running import options_of
from support.wiretables import SIZES, Encoded, field, packed, table, written

from fairsched.spark.source.typedheaders import typed_headers

#: Name, type, the bytes on the wire after the type, and the value.
VECTORS: list[tuple[str, str, bytes, bytes | None]] = [
    ("text", "S", b"\0\0\0\3\xc3\xa9!", b"\xc3\xa9!"),
    ("empty", "S", b"\0\0\0\0", b""),
    ("bytes", "x", b"\0\0\0\2\xff\0", b"\xff\0"),
    ("yes", "t", b"\1", b"\1"),
    ("tiny", "b", b"\xff", b"\xff"),
    ("octet", "B", b"\xff", b"\xff"),
    ("short", "s", b"\xff\xfe", b"\xff\xfe"),
    ("ushort", "u", b"\xff\xfe", b"\xff\xfe"),
    ("int", "I", b"\0\0\0\x2a", b"\0\0\0\x2a"),
    ("uint", "i", b"\0\0\0\x2a", b"\0\0\0\x2a"),
    ("long", "l", b"\0\0\0\0\0\0\0\x2a", b"\0\0\0\0\0\0\0\x2a"),
    ("half", "d", b"\x3f\xe0\0\0\0\0\0\0", b"\x3f\xe0\0\0\0\0\0\0"),
    ("float", "f", b"\x3f\0\0\0", b"\x3f\0\0\0"),
    ("when", "T", b"\0\0\0\0\x65\x53\xf1\0", b"\0\0\0\0\x65\x53\xf1\0"),
    ("price", "D", b"\2\0\0\4\xd2", b"\2\0\0\4\xd2"),
    ("none", "V", b"", None),
    ("table", "F", b"\0\0\0\4\1at\1", b"\1at\1"),
    ("array", "A", b"\0\0\0\2t\0", b"t\0"),
    ("text", "S", b"\0\0\0\1b", b"b"),  # a name may occur twice
]
HEADERS = table(*(field(name.encode(), kind.encode(), wire) for name, kind, wire, _ in VECTORS))
EXPECTED = [{"key": name, "type": kind, "value": value} for name, kind, _, value in VECTORS]


def content_header(headers: bytes, **more: Any) -> bytes:
    found: bytes = pika.frame.Header(1, 0, Encoded(headers, **more)).marshal()[7:-1]
    return found


def test_every_type_has_its_letter_and_its_bytes() -> None:
    assert typed_headers(content_header(HEADERS, message_id="m", content_type="c")) == EXPECTED
    assert typed_headers(content_header(table())) == []
    assert typed_headers(pika.frame.Header(1, 0, pika.BasicProperties()).marshal()[7:-1]) is None


_scalars = st.one_of(
    st.tuples(st.sampled_from("Sx"), st.binary(max_size=9)),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("V"), st.none()),
    st.tuples(st.sampled_from([one for one in SIZES if one not in "fd"]), st.integers(0, 127)),
    st.tuples(st.sampled_from("fd"), st.floats(width=32)),
)
_names = st.text("ab\xe9", max_size=3).map(str.encode)


@given(st.lists(st.tuples(_names, _scalars)), st.data())
def test_any_table_is_taken_apart_and_a_broken_one_stops_nothing(fields: Any, data: Any) -> None:
    flat = [(name, kind, value) for name, (kind, value) in fields]
    nested = [*flat, (b"n", "F", flat), (b"a", "A", [(kind, value) for _, kind, value in flat])]
    encoded = written(nested)
    found = typed_headers(content_header(encoded))
    assert found == [
        {
            "key": name.decode(),
            "type": kind,
            "value": None if kind == "V" else packed(kind, value)[4 * (kind in "SxFA") :],
        }
        for name, kind, value in nested
    ]
    at = data.draw(st.integers(0, len(encoded) - 1))
    broken = encoded[:at] + bytes([data.draw(st.integers(0, 255))]) + encoded[at + 1 :]
    assert isinstance(typed_headers(content_header(broken)), list | None)
    assert isinstance(typed_headers(content_header(encoded)[:at]), list | None)


@pytest.mark.parametrize(
    "headers",
    [table(field(b"a", b"?", b"")), table(field(b"a", b"l", b"\0")), table(field(b"a", b"S", b"\0\0\0\2x")),
     table(b"\5ab"), b"\0\0\1\0" + HEADERS[4:]],
)  # fmt: skip
def test_what_is_no_table_is_null(headers: bytes) -> None:
    assert typed_headers(content_header(headers)) is None


@pytest.mark.timeout(280)
def test_a_query_has_them_in_their_order(spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path) -> None:
    from fairsched.spark import register

    register(spark)
    [name] = queues(1)
    with broker.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", name, b"a", Encoded(HEADERS))
        channel.basic_publish("", name, b"b")
    rows = Rows()
    frame = load(spark, options_of(broker, {name: 1}, tmp_path / "spool", includeTypedHeaders="true"))
    drain(frame.selectExpr("body", "typed_headers", "CAST(typed_headers[0].value AS STRING) AS first"),
          tmp_path / "checkpoint", rows)  # fmt: skip
    one, other = rows.all
    assert [header.asDict() for header in one.typed_headers] == EXPECTED
    assert (one.first, other.typed_headers) == ("é!", None)
