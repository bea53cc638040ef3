"""Properties and field tables, with py-amqp as the oracle: the same values, octets and errors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp.serialization import decode_properties_basic
from hypothesis import given
from hypothesis import strategies as st

from fairsched.integrations._amqpfields import read_properties, write_properties

HEAD = struct.pack(">HHQ", 60, 0, 0)
names = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) + 1, 2**63 - 1]),
        st.floats(),
        st.text(max_size=30),
        st.binary(max_size=30),
        st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)),
        st.decimals(-(10**6), 10**6, places=3),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
texts = {name for name, kind in amqp.Message.PROPERTIES if kind == "s"}
properties = st.fixed_dictionaries(
    {},
    optional={
        "application_headers": st.dictionaries(names, values, max_size=6),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**63 - 1),
        **dict.fromkeys(texts, st.text(st.characters(codec="utf-8"), max_size=40)),
    },
)


def outcome(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the result as text, which tells 1 from True and NaN is equal to; or the kind of the error."""
    try:
        return repr(function(*arguments))
    except Exception as error:
        return type(error).__name__


def theirs(found: dict[str, Any]) -> Any:
    message = amqp.Message(b"")
    message.properties = found
    return message._serialize_properties()


def ours(found: dict[str, Any]) -> Any:
    written = write_properties(found)
    return theirs(found) if written is None else written


@given(properties)
def test_octets_are_those_of_py_amqp_and_are_read_as_it_reads_them(found: dict[str, Any]) -> None:
    assert outcome(ours, found) == outcome(theirs, found)
    try:
        octets = theirs(found)
    except Exception:  # which `ours` raises, too
        return
    assert outcome(read_properties, HEAD + octets) == outcome(lambda: decode_properties_basic(HEAD + octets, 12)[0])


def test_usual_values_are_written_without_py_amqp() -> None:
    found = {
        "content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 0,
        "correlation_id": "c", "reply_to": "r", "timestamp": 2**40, "expiration": None, "unknown": 1,
        "application_headers": {
            "task": "shop.order", "retries": 0, "eta": None, "timelimit": [None, None], "big": 2**40, "pi": 3.5,
            "nested": {"a": (1, {"b": b"c"})}, "on": True, "é": "ü",
        },
    }  # fmt: skip
    assert write_properties(found) == theirs(found)


@pytest.mark.parametrize(
    "found",
    [
        {"content_type": 5},
        {"content_type": 0},
        {"content_type": "x" * 256},
        {"content_type": "\udc80"},
        {"priority": 256},
        {"priority": -1},
        {"priority": "1"},
        {"priority": True},
        {"timestamp": 2**64},
        {"timestamp": 1.5},
        {"application_headers": []},
        {"application_headers": {"x" * 256: 1}},
        {"application_headers": {"key": print}},
        {"application_headers": {"key": 2**64}},
        {"application_headers": {"key": [{1, 2}]}},
        {"application_headers": {1: 1}},
        {"application_headers": {"key": "\udc80"}},
        {"application_headers": {b"key": 1}},
        {"application_headers": {"key": Decimal("NaN")}},
        {"application_headers": {"key": bytearray(b"x")}},
    ],
    ids=repr,
)
def test_unusual_values_are_py_amqps(found: dict[str, Any]) -> None:
    assert outcome(ours, found) == outcome(theirs, found)


@given(st.data())
def test_damaged_headers_are_read_as_py_amqp_does(data: st.DataObject) -> None:
    """A damaged header has the same result, or fails with both; py-amqp does not check all lengths."""
    try:
        octets = bytearray(theirs(data.draw(properties)))
    except Exception:
        octets = bytearray(b"\xff\xff")
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    header = HEAD + bytes(octets[: data.draw(st.integers(2, len(octets)))])
    assert outcome(read_properties, header) == outcome(lambda: decode_properties_basic(header, 12)[0])


def test_deep_nesting_is_left_to_py_amqp() -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"k": deep}
    found = {"application_headers": deep}
    assert write_properties(found) is None
    assert read_properties(HEAD + theirs(found)) == found


def test_text_that_is_not_utf_8_is_bytes() -> None:
    found = {"application_headers": {"key": b"\xff\xfe"}}
    assert read_properties(HEAD + theirs(found)) == found
