"""Tables of headers: pika's decoder is the oracle where it does not fail."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from integration.rabbitmq import Node
from pika.data import decode_table, encode_table
from spark.running import Driver

from fairsched.spark._tables import read_table

Declare = Callable[..., list[str]]

text = st.text(max_size=20)
values = st.recursive(
    st.one_of(
        text, st.binary(max_size=20), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.none(),
        st.decimals("-1000", "1000", places=2),
        st.datetimes(datetime(1970, 1, 2), timezones=st.just(UTC)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
)  # fmt: skip


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


def table(*fields: bytes) -> bytes:
    found = b"".join(fields)
    return struct.pack(">I", len(found)) + found


LATE = field(b"late", b"T", struct.pack(">Q", 2**60))
LATIN = field(b"\xe9", b"S", struct.pack(">I", 1) + b"x")


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


@pytest.mark.parametrize("data", [table(field(b"a", b"?", b"")), table(LATE)[:-1], b"\0\0"])
def test_what_is_no_table(data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        read_table(data, 0)


class Encoded(pika.BasicProperties):
    """Properties of which only the headers are given, encoded."""

    def __init__(self, headers: bytes) -> None:
        super().__init__()
        self._encoded = headers

    def encode(self) -> list[bytes]:
        return [b"\x20\0", self._encoded]


@pytest.mark.parametrize("size", [3, 300_000])
def test_no_header_stops_a_query(size: int, broker: Node, queues: Declare, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    headers = table(LATE, LATIN, field(b"half", b"d", struct.pack(">d", 0.5)), field(b"n", b"F", table(LATIN)))
    with broker.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", name, b"x" * size, Encoded(headers))
    one = driver([name], includeHeaders="true")
    [[row]] = one.read(one.plan())
    assert row["body"] == b"x" * size
    assert dict(row["headers"]) == {"late": str(2**60), "\ufffd": "x", "half": "0.5", "n": '{"\\ufffd": "x"}'}
    assert broker.count(name) == 0


@pytest.mark.parametrize("size", [3, 300_000])
def test_no_routing_key_stops_a_query(size: int, broker: Node, queues: Declare, driver: Callable[..., Driver]) -> None:
    [name] = queues(1)
    with broker.connect() as channel:
        channel.exchange_declare(f"{name}-all", "fanout")
        channel.queue_bind(name, f"{name}-all")
        method = pika.spec.Basic.Publish(exchange=f"{name}-all", routing_key="k")
        frame = b"".join(method.encode()).replace(b"\x01k", b"\x01\xe9")
        method.encode = lambda: [frame]
        channel._impl._send_method(method, (pika.BasicProperties(), b"x" * size))
        channel.queue_declare(name, passive=True)
    one = driver([name])
    [[row]] = one.read(one.plan())
    assert row["routing_key"] == "\ufffd"
    assert len(row["body"]) == size
