"""Properties of messages: pika's, where pika can decode them."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties
from support.wiretables import LATE, LATIN, Encoded, field, nested, table

from fairsched import DecodingError
from fairsched.amqp.properties import ReceivedProperties
from fairsched.consumer.keys import key_function
from fairsched.consumer.log_limit import PAUSE, LogLimit
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel

text = st.text(max_size=20)
numbers = st.integers(0, 255)
values = st.one_of(
    text, st.binary(max_size=9), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.none(),
    st.datetimes(datetime(1970, 1, 2), timezones=st.just(UTC)), st.decimals("-1000", "1000", places=2),
)  # fmt: skip
properties = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"), text),
        **dict.fromkeys(("message_id", "type", "user_id", "app_id", "cluster_id"), text),
        **dict.fromkeys(("delivery_mode", "priority"), numbers),
        "timestamp": st.integers(0, 2**64 - 1),
        "headers": st.dictionaries(text, values, max_size=4),
    },
)


def header(given_: BasicProperties) -> bytes:
    return pika.frame.Header(1, 4, given_).marshal()[7:-1]


def message(raw: bytes) -> Message:
    return Message(b"body", 7, False, b"", raw, FakeChannel("gold"))


@given(properties)
def test_they_are_those_of_pika(given_: dict[str, Any]) -> None:
    raw = header(BasicProperties(**given_))
    found = message(raw).properties
    assert found == BasicProperties().decode(raw, 12)
    assert type(found) is BasicProperties
    received = ReceivedProperties(raw)
    assert all(getattr(received, name) == value for name, value in vars(found).items())
    assert b"".join(received.encode()) == raw[12:]


@given(st.binary(max_size=80), st.integers(0, 2**16 - 1))
def test_any_bytes_are_decoded_or_refused(rest: bytes, flags: int) -> None:
    one = message(struct.pack(">HxxQH", 60, 4, flags) + rest)
    key = key_function("header:tenant")
    hash(key(one))
    try:
        found = one.properties
    except DecodingError:
        assert key(one) == ""
        return
    try:
        assert isinstance(one.headers, dict)
    except DecodingError:
        assert flags & BasicProperties.FLAG_HEADERS
        assert found.app_id is None or flags & BasicProperties.FLAG_APP_ID


def test_headers_that_pika_changes_or_fails_at() -> None:
    headers = table(
        LATE, LATIN, field(b"half", b"d", struct.pack(">d", 2.75)), field(b"quarter", b"f", struct.pack(">f", -0.25)),
        field(b"nan", b"d", struct.pack(">d", math.nan)), field(b"places", b"D", struct.pack(">Bi", 255, -1)),
    )  # fmt: skip
    found = message(header(Encoded(headers, app_id="app"))).headers
    assert math.isnan(found.pop("nan"))
    assert found == {"late": 2**60, "\ufffd": "x", "half": 2.75, "quarter": -0.25, "places": Decimal("-1E-255")}


@pytest.mark.parametrize(
    ("headers", "why"), [(nested(1500), "nested more than 100 deep"), (table(field(b"a", b"?", b"")), "got '\\?'")]
)
def test_headers_that_cannot_be_decoded(headers: bytes, why: str) -> None:
    raw = header(Encoded(headers, app_id="app", message_id="m", priority=3))
    one = message(raw)
    for _ in range(2):
        with pytest.raises(DecodingError, match=f"^the headers cannot be decoded: .*{why}"):
            _ = one.headers
    with pytest.raises(DecodingError, match="the headers cannot"):
        _ = one.properties.headers
    with pytest.raises(DecodingError, match="the headers cannot"):
        _ = ReceivedProperties(raw).headers
    assert (one.properties.app_id, one.properties.message_id, one.properties.priority) == ("app", "m", 3)
    assert one.raw_properties == raw
    assert "app_id=app" in repr(one.properties)
    one.properties.headers = {"mine": 1}
    assert one.headers == {"mine": 1}


def test_properties_of_which_nothing_can_be_decoded() -> None:
    one = message(struct.pack(">HxxQH", 60, 4, 1))
    with pytest.raises(DecodingError, match="the properties cannot be decoded"):
        _ = one.properties
    with pytest.raises(DecodingError):
        _ = one.headers
    with pytest.raises(AttributeError):
        _ = ReceivedProperties(one.raw_properties).no_property


def test_names_of_the_method_that_are_no_utf8() -> None:
    method = b"\0\x3c\0\x3c" + b"".join(Basic.Deliver("c", 7, False, "ex", "key?").encode()).replace(b"?", b"\xe9")
    assert Message(b"", 7, False, method, b"", FakeChannel("gold")).routing_key == "key\ufffd"


# Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["header:tenant", "property:app_id", lambda one: one.headers["tenant"]])
def test_what_cannot_be_decoded_has_no_key(spec: Any, caplog: pytest.LogCaptureFixture) -> None:
    key = key_function(spec)
    raw = struct.pack(">HxxQH", 60, 4, 1)
    assert [key(message(raw)) for _ in range(3)] == [""] * 3
    [record] = caplog.records
    assert record.exc_info is None
    assert "key of a message of queue 'gold'" in record.getMessage()


def test_nan_is_one_key() -> None:
    raw = header(Encoded(table(field(b"tenant", b"d", struct.pack(">d", math.nan)))))
    key = key_function("header:tenant")
    assert key(message(raw)) == key(message(raw)) == "nan"


def test_what_is_said_is_said_again_after_a_minute() -> None:
    now = [0.0]
    sparing = LogLimit(lambda: now[0])
    assert [sparing.due("a"), sparing.due("b"), sparing.due("a")] == [True, True, False]
    now[0] = PAUSE - 0.001
    assert not sparing.due("a")
    now[0] = PAUSE
    assert sparing.due("a")
    assert not sparing.due("a")


#: Names and values as they stand in a table: of the key and others, text and not, flat and nested, broken and not.
fields = st.tuples(
    st.sampled_from([b"tenant", b"tenan", b"tenants", b"", b"\xff", b"x" * 255]),
    st.one_of(
        st.binary(max_size=12).map(lambda value: b"S" + struct.pack(">I", len(value)) + value),
        st.text(max_size=5).map(lambda value: b"S" + struct.pack(">I", len(value.encode())) + value.encode()),
        st.sampled_from([b"V", b"t\1", b"I\0\0\0\5", b"l\0\0\0\0\0\0\0\7", b"T" + bytes(8), b"D\1\0\0\0\2", b"s\0\1"]),
        st.sampled_from([b"F\0\0\0\0", b"A\0\0\0\2t\1", b"x\0\0\0\1a", b"?", b"S\0\0\xff\0", b""]),
    ),
)


@given(
    st.lists(fields, max_size=5),
    st.integers(-3, 3),
    st.binary(max_size=3),
    st.sampled_from(["tenant", "tenants", "\ufffd"]),
)
def test_one_header_is_found_as_when_all_are_decoded(
    some: list[tuple[bytes, bytes]], lie: int, tail: bytes, name: str
) -> None:
    inside = b"".join(bytes([len(one)]) + one + value for one, value in some)
    encoded = struct.pack(">I", max(0, len(inside) + lie)) + inside
    one = message(struct.pack(">HxxQH", 60, 4, BasicProperties.FLAG_HEADERS) + encoded + tail)
    try:
        value = one.headers.get(name)
    except DecodingError:
        value = None
    expected = "" if value is None else repr(value) if isinstance(value, list | dict) else value
    assert key_function(f"header:{name}")(one) == expected
