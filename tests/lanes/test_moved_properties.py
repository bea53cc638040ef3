"""The properties of copies: which are taken over as they are, and that they are those that Python code finds."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from fairsched.amqp._properties import encode_properties
from fairsched.delivery._delivery import Message
from fairsched.lanes._unchanged import unchanged_properties
from fairsched.lanes.moved_properties import MovedProperties
from fairsched.publisher.contents import checked_properties

ORIGIN = SimpleNamespace(queue="orders")


def encoded_properties(values: dict[str, Any]) -> bytes:
    return encode_properties(checked_properties(values))


def message(properties: bytes, body: bytes = b"body", before: bytes | None = None) -> Message:
    """Return a message as it is delivered; `before` is how its content header begins."""
    header = (pack(">HHQ", 60, 0, len(body)) if before is None else before) + properties
    return Message(body, 1, False, b"", header, ORIGIN)


def moved(refused: bool | None = None) -> MovedProperties:
    found = MovedProperties(["amqp://guest:guest@localhost/"])
    found._refused = refused
    return found


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"headers": {"tenant": "a"}},
        {"headers": {"tenant": "aCC", "C": "aBCC", "ACC": 1, "xBCC": "C"}, "type": "C"},
        {"headers": {"tenant": "a"}, "delivery_mode": 2, "priority": 9, "app_id": "B"},
        {"message_id": "\x02CC", "correlation_id": "\x03BCC"},  # there are no headers
    ],
)
def test_ordinary_properties_are_taken_over(values: dict[str, Any]) -> None:
    encoded = encoded_properties(values)
    assert moved().of_all([message(encoded)]) == [encoded]


@pytest.mark.parametrize(
    "values",
    [
        {"headers": {"CC": ["audit"]}},
        {"headers": {"BCC": ["audit"]}},
        {"headers": {"tenant": "a", "nested": {"CC": 1}}},
        {"headers": {"text": "\x02CC"}},
        {"headers": {"text": "\x03BCC"}},
        {"headers": {"tenant": "a"}, "type": "CC"},
        {"headers": {"tenant": "a"}, "app_id": "BCC"},
        {"user_id": "guest"},
    ],
)
def test_properties_that_a_copy_may_not_have_are_left_to_python_code(values: dict[str, Any]) -> None:
    assert moved().of_all([message(encoded_properties(values))]) == [None]


def test_user_ids_are_taken_over_once_the_broker_accepts_them() -> None:
    encoded = encoded_properties({"user_id": "other"})
    assert moved(refused=True).of_all([message(encoded)]) == [None]
    assert moved(refused=False).of_all([message(encoded)]) == [encoded]


def test_a_header_that_is_none_of_the_body_is_left_to_python_code() -> None:
    encoded = encoded_properties({"type": "t"})
    other = message(encoded)
    other.body = b"another body"
    found = [
        other,
        message(encoded, before=pack(">HHQ", 60, 0, 5)),
        message(encoded, before=pack(">HHQ", 61, 0, 4)),
        message(encoded, before=pack(">HHQ", 60, 1, 4)),
        message(b""),
        message(b"\x80"),
        Message(b"body", 1, False, b"", BasicProperties(type="t"), ORIGIN),
        Message("text", 1, False, b"", pack(">HHQ", 60, 0, 4) + encoded, ORIGIN),
    ]
    assert moved().of_all(found) == [None] * len(found)


PIECES = [b"\x02CC", b"\x03BCC", b"C", b"CC", b"\x02", b"\x03", b"B", b"\x20\0", b"\0\x10", b"\xff"]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=12), st.booleans())
def test_what_is_taken_over_is_what_python_code_finds(pieces: list[bytes], accepted: bool) -> None:
    found = moved(refused=False if accepted else None)
    one = message(b"".join(pieces))
    [taken] = unchanged_properties([one], accepted)
    if taken is not None:
        assert taken == found.of(one, one.body)
