"""The properties in content headers, whole ones against pika's encoder, and any bytes at all."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.data import decode_table

from fairsched.amqp._properties import PROPERTY_NAMES, read_properties

ALL = tuple(range(len(PROPERTY_NAMES)))
values: dict[str, Any] = dict.fromkeys(PROPERTY_NAMES, st.text(max_size=60))
values |= dict.fromkeys(("delivery_mode", "priority"), st.integers(0, 255))
values |= {"timestamp": st.integers(0, 2**64 - 1), "headers": st.dictionaries(st.text("ab", min_size=1), st.booleans())}
properties = st.fixed_dictionaries({}, optional=values)


def encoded(given_: dict[str, Any]) -> bytes:
    return pika.frame.Header(1, 5, pika.BasicProperties(**given_)).marshal()[7:-1]


@given(properties, st.sets(st.sampled_from(ALL)))
def test_those_wanted_are_read(given_: dict[str, Any], wanted: set[int]) -> None:
    found = read_properties(encoded(given_), tuple(wanted), decode_table)
    assert found == {name: value for name, value in given_.items() if PROPERTY_NAMES.index(name) in wanted}


def test_texts_that_are_no_utf8() -> None:
    header = encoded({"app_id": "x?y", "message_id": "\u00e9"}).replace(b"?", b"\xe9")
    assert read_properties(header, ALL, decode_table) == {"app_id": "x\ufffdy", "message_id": "\u00e9"}
    assert read_properties(header, ALL, decode_table, True) == {"app_id": b"x\xe9y", "message_id": "\u00e9"}


@given(properties, st.data())
def test_a_header_cut_short_is_refused(given_: dict[str, Any], data: st.DataObject) -> None:
    header = encoded(given_)
    end = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(ValueError, match="must be a content header"):
        read_properties(header[:end], ALL, decode_table)


@given(st.binary(max_size=80), st.integers(0, 2**16 - 1))
def test_any_bytes_are_read_or_refused(rest: bytes, flags: int) -> None:
    """Values that are read lie within the octets: all values together are no longer than they are."""
    try:
        found = read_properties(bytes(12) + flags.to_bytes(2, "big") + rest, ALL, lambda header, at: (header[at:], 0))
    except ValueError:
        return
    assert flags & 3 == 0
    texts = [value for value in found.values() if isinstance(value, str)]
    assert sum(map(len, texts)) <= len(rest)
    assert len(found) == flags.bit_count()


def test_errors_name_the_value() -> None:
    for number in (-1, 14):
        with pytest.raises(ValueError, match=f"from 0 to 13, got {number}"):
            read_properties(encoded({}), (number,), decode_table)
