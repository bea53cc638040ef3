"""The bytes of outgoing messages against pamqp, over random properties, bodies and frame sizes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pamqp.decode
import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pika import data as pika_data
from pika import frame, spec

from fairsched.amqp._properties import PROPERTY_NAMES, encode_properties
from fairsched.amqp._publishing import encode_message
from fairsched.amqp.fieldtables import MAX_DEPTH, read_table, write_table
from fairsched.publisher.contents import Contents

#: Names of pamqp's properties that are not those of the specification.
THEIRS = {"type": "message_type"}

short = st.text(max_size=255).filter(lambda text: len(text.encode()) <= 255)
values = {
    **dict.fromkeys(PROPERTY_NAMES, short),
    "headers": st.just(None),
    "delivery_mode": st.integers(0, 255),
    "priority": st.integers(0, 255),
    "timestamp": st.integers(0, 2**37),
}
properties = st.fixed_dictionaries({}, optional=values)


def theirs(exchange: str, key: str, values: dict[str, Any], body: bytes, mandatory: bool, longest: int) -> bytes:
    """Return what pamqp makes of a message."""
    method = Basic.Publish(0, exchange, key, mandatory)
    found = Basic.Properties()
    for name, value in values.items():
        setattr(found, THEIRS.get(name, name), value)
    if values.get("timestamp") is not None:
        found.timestamp = datetime.fromtimestamp(values["timestamp"], UTC)
    parts = [method, ContentHeader(0, len(body), found)]
    parts += [ContentBody(body[start : start + longest]) for start in range(0, len(body), longest)]
    return b"".join(pamqp.frame.marshal(part, 1) for part in parts)


#: pamqp allows no others, RabbitMQ does: see below.
exchanges = st.text("abcXYZ019-_.:", max_size=127)


@given(exchanges, short, properties, st.binary(max_size=200), st.booleans(), st.integers(1, 210))
def test_a_message_is_what_pamqp_makes_of_it(
    exchange: str, key: str, values: dict[str, Any], body: bytes, mandatory: bool, longest: int
) -> None:
    if values.get("timestamp") == 0:
        values["timestamp"] = 1  # pamqp leaves out what is false
    values = {name: value for name, value in values.items() if value not in ("", 0)}
    ours = encode_message(exchange, key, encode_properties(values), body, mandatory, 1, longest)
    assert ours == theirs(exchange, key, values, body, mandatory, longest)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 131063, 131064, 131065, 1_000_000])
@pytest.mark.parametrize("longest", [4088, 131064])
def test_bodies_at_the_edges_of_frames(size: int, longest: int) -> None:
    body = bytes(size)
    assert encode_message("", "q", b"\0\0", body, False, 1, longest) == theirs("", "q", {}, body, False, longest)


@given(short, short)
def test_names_are_what_pika_makes_of_them(exchange: str, key: str) -> None:
    method = frame.Method(1, spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True)).marshal()
    assert encode_message(exchange, key, b"\0\0", b"", True, 1, 4088).startswith(method)


places = st.integers(0, 9)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)).map(lambda one: one.replace(microsecond=0, tzinfo=UTC))
    | st.builds(lambda number, places: Decimal(number).scaleb(-places), st.integers(-(2**31), 2**31 - 1), places)
)  # fmt: skip
tables = st.dictionaries(
    st.text(max_size=9),
    st.recursive(
        scalars, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=9), one, max_size=3)
    ),
    max_size=5,
)


@given(tables)
def test_headers_are_what_pika_makes_of_them_and_are_read_back(table: dict[str, Any]) -> None:
    encoded = write_table(table)
    parts: list[bytes] = []
    pika_data.encode_table(parts, table)
    assert encoded == b"".join(parts)
    assert read_table(encoded, 0) == (table, len(encoded))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_doubles(number: float) -> None:
    encoded = write_table({"f": number, "l": (number,)})
    assert pamqp.decode.field_table(encoded)[1] == {"f": number, "l": [number]}


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"in": table}
    return table


@pytest.mark.parametrize(
    ("headers", "error", "why"),
    [
        ({"x": object}, TypeError, "header 'x' must be None, bool, int"),
        ({"x": [1, {"y": {1}}]}, TypeError, r"header 'y' must be .*, got {1}"),
        ({1: 2}, TypeError, "name must be a str, got 1"),
        ({"x": 2**63}, ValueError, "header 'x' must be a number .* got 9223372036854775808"),
        ({"x": float("nan")}, ValueError, "header 'x' must be a number .* got nan"),
        ({"x": float("inf")}, ValueError, "header 'x' must be a number .* got inf"),
        ({"x": np.float64("nan")}, ValueError, "header 'x' must be a number .* got .*nan"),
        ({"x": [1, {"y": [float("-inf")]}]}, ValueError, "header 'y' must be a number .* got -inf"),
        ({"x": Decimal("NaN")}, ValueError, "header 'x' .* got Decimal"),
        ({"x": Decimal("1e999999999")}, ValueError, "header 'x' .* got Decimal"),
        ({"x": datetime(1960, 1, 1)}, ValueError, "header 'x' .* got datetime"),
        ({"é" * 128: 1}, ValueError, "at most 255 bytes long, got 256"),
        ({"x": "\ud800"}, ValueError, "header 'x' must be encodable as UTF-8"),
        (nested(MAX_DEPTH), ValueError, "nested at most 100 deep"),
        ([("x", 1)], TypeError, "headers must be a mapping"),
    ],
)
def test_headers_that_cannot_be_sent_are_named(headers: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        Contents().encode(None, {"headers": headers})


def test_headers_nested_as_deep_as_allowed_are_read_back() -> None:
    table = nested(MAX_DEPTH - 1)
    assert read_table(write_table(table), 0)[0] == table


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"priority": 256}, ValueError, "priority must be an int from 0 to 255, got 256"),
        ({"priority": -1}, ValueError, "priority must be an int from 0 to 255, got -1"),
        ({"priority": True}, ValueError, "priority must be an int from 0 to 255, got True"),
        ({"priority": 1.0}, ValueError, "priority must be an int from 0 to 255, got 1.0"),
        ({"timestamp": 2**63}, ValueError, "timestamp must be an int from 0 to 9223372036854775807"),
        ({"timestamp": 1.5}, ValueError, "timestamp must be an int"),
        ({"delivery_mode": 3}, ValueError, r"delivery_mode must be 1 .* got 3"),
        ({"delivery_mode": True}, ValueError, r"delivery_mode must be 1 .* got True"),
        ({"content_type": b"text"}, TypeError, "content_type must be a str, got b'text'"),
        ({"message_id": 7}, TypeError, "message_id must be a str, got 7"),
        ({"message_id": "é" * 128}, ValueError, "message_id must be at most 255 bytes long as UTF-8, got 256"),
        ({"reply_to": "\udc80"}, ValueError, "reply_to must be encodable as UTF-8"),
        ({"expiration": -1}, ValueError, "expiration must be seconds .* got -1"),
        ({"expiration": float("nan")}, ValueError, "expiration must be seconds .* got nan"),
        ({"expiration": "1.5"}, ValueError, "expiration must be seconds .* got '1.5'"),
        ({"expiration": "²"}, ValueError, "expiration must be seconds"),
        ({"expiration": str(2**32)}, ValueError, "expiration must be seconds"),
        ({"expiration": 2**23}, ValueError, "expiration must be seconds"),
        ({"colour": "red"}, TypeError, "unknown property 'colour'; there are content_type, "),
    ],
)
def test_properties_that_are_not_allowed_are_named(given: dict[str, Any], error: type[Exception], why: str) -> None:
    contents = Contents()
    for _ in range(2):  # what was refused is not remembered
        with pytest.raises(error, match=why):
            contents.encode(None, given)


def test_seconds_and_milliseconds_of_life() -> None:
    contents = Contents()
    assert contents.encode(None, {"expiration": 1.5}) == contents.encode(None, {"expiration": "1500"})
    assert contents.encode(None, {"expiration": 0}) == contents.encode(None, {"expiration": "0"})


def test_equal_properties_are_encoded_once_and_those_of_their_own_are_not_kept() -> None:
    contents = Contents()
    assert contents.encode(None, {}) == contents.plain == encode_properties({"delivery_mode": 2})
    first = contents.encode(None, {"content_type": "a", "priority": 1})
    assert contents.encode(None, {"content_type": "a", "priority": 1}) is first
    # Equal to 1 for a dict, and no number that AMQP has.
    with pytest.raises(ValueError, match="got True"):
        contents.encode(None, {"content_type": "a", "priority": True})
    for number in range(1000):
        contents.encode(None, {"message_id": str(number)})
        contents.encode(None, {"type": str(number)})
    assert len(contents._known) <= 256
    headers = {"x": 1}
    before = contents.encode(None, {"headers": headers})
    headers["x"] = 2
    assert contents.encode(None, {"headers": headers}) != before


def test_properties_of_another_type_are_named() -> None:
    with pytest.raises(TypeError, match="properties must be pika's BasicProperties, got 5"):
        Contents().encode(5, {})  # type: ignore[arg-type]
