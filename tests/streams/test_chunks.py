"""Chunks become rows: entries, batches, damage, and peers that lie."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.amqp10 import section
from support.chunks import batch, chunk, of_bodies, simple

from fairsched.streams import StreamRecords, data_message, unpack_gzip

GZIP = {1: unpack_gzip}


def records() -> StreamRecords:
    made = StreamRecords("events")
    made.want(10_000, 1 << 30)
    return made


def bodies(found: StreamRecords) -> list[bytes]:
    rows, _, (_, offsets, data) = found.bodies()
    ends = memoryview(offsets).cast("i")
    return [data[ends[row] : ends[row + 1]] for row in range(rows)]


def offsets(found: StreamRecords) -> list[int]:
    return np.frombuffer(found.offsets(), np.int64).tolist()


def test_a_chunk_becomes_rows() -> None:
    found = records()
    frame = b"12345" + of_bodies(40, [b"a", b"", b"c" * 300])
    assert found.add_chunk(frame, 5, 0, {}) == 3
    assert bodies(found) == [b"a", b"", b"c" * 300]
    assert (offsets(found), found.last_offset(), found.next_offset, found.timestamp) == ([40, 41, 42], 42, 43, 1000)
    assert np.frombuffer(found.received(), np.int64).tolist() == [1_000_000] * 3
    assert found.queues({b"events": 3}) == struct.pack("=3i", 3, 3, 3)
    assert len(found.content_headers()) == 3
    with pytest.raises(ValueError, match="begin the next part"):
        found.add_chunk(frame, 5, 0, {})
    found.want(10, 1 << 20)
    assert found.add_chunk(frame, 5, 42, {}) == 1
    assert (offsets(found), bodies(found), found.came, found.room) == ([42], [b"c" * 300], 4, 9)


def test_batches_are_unpacked() -> None:
    messages = [data_message(b"%d" % number) for number in range(6)]
    entries = [batch(messages[:2]), simple(messages[2]), batch(messages[3:], 1)]
    found = records()
    assert found.add_chunk(chunk(7, entries, 6), 0, 8, GZIP) == 5
    assert (bodies(found), offsets(found)) == ([b"1", b"2", b"3", b"4", b"5"], [8, 9, 10, 11, 12])
    with pytest.raises(ValueError, match="compressed by method 4: there is no way to unpack it, only 1"):
        found.add_chunk(chunk(13, [batch(messages, 4)], 6), 0, 0, GZIP)
    assert len(bodies(found)) == 5


def test_bodies_that_are_not_one_section_of_data() -> None:
    parts = b"".join(section("data", ("binary", octets)) for octets in (b"one ", b"", b"two"))
    footer = section("footer", ("map", [(("symbol", "x-a"), ("int", 1))]))
    value, strange = section("value", ("utf8", "text")), b"not AMQP 1.0 at all"
    found = records()
    messages = [parts, parts + footer, data_message(b"x") + footer, value + footer, strange, b""]
    found.add_chunk(chunk(0, [simple(one) for one in messages], len(messages)), 0, 0, {})
    assert bodies(found) == [b"one two", b"one two", b"x", value + footer, strange, b""]
    assert len(found.content_headers()) == len(messages)
    assert bodies(found) == [b"one two", b"one two", b"x", value + footer, strange, b""]


def test_chunks_of_the_broker_s_own_are_passed_over() -> None:
    found = records()
    assert found.add_chunk(chunk(5, [b"\1\2ab" + bytes(8)], 1, kind=1), 0, 0, {}) == 0
    assert (found.count, found.next_offset) == (0, 6)


WHOLE = of_bodies(0, [b"body"])
ONE = simple(data_message(b"1"))


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (WHOLE[:20], "cut short"),
        (WHOLE[:-1], "cut short"),
        (b"\x51" + WHOLE[1:], "octet 0x50, got 0x51"),
        (chunk(3, [ONE], 1, crc=7), "CRC-32 of chunk 3 must be 0x00000007"),
        (chunk(3, [ONE], 2), "chunk 3 must have the 2 records"),
        (chunk(3, [ONE, ONE], 1), "chunk 3 must have the 1 records"),
        (chunk(1 << 63, [ONE], 1), "an offset from 0 to"),
        (chunk(3, [struct.pack(">I", 90) + b"short"], 1), "must end within its 9 octets"),
        (chunk(3, [batch([b"a"] * 3, records=4)], 4), "must have 4 messages"),
        (chunk(3, [batch([b"a"] * 3, records=2)], 2), "must have 2 messages"),
        (chunk(3, [batch([b"a"] * 3, 1, size=5)], 3), "must have 5 octets"),
        (chunk(3, [b"\x90\0\1\0\0\0\5\0\0\0\2zz"], 1), "cannot be unpacked"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_chunk_that_lies_is_an_error_and_adds_nothing(frame: bytes, complaint: str) -> None:
    found = records()
    found.add_chunk(WHOLE, 0, 0, {})
    with pytest.raises(ValueError, match=complaint):
        found.add_chunk(frame, 0, 0, GZIP)
    assert bodies(found) == [b"body"]


def test_unpacking_may_not_change_the_records() -> None:
    found = records()

    def unpack(packed: bytes, size: int) -> bytes:
        found.want(3, 3)
        found.add_chunk(WHOLE, 0, 0, {})
        return unpack_gzip(packed, size)

    with pytest.raises(RuntimeError, match="changed while a batch was unpacked"):
        found.add_chunk(chunk(0, [simple(data_message(b"x" * 99)), batch([ONE] * 9, 1)], 10), 0, 0, {1: unpack})
    assert len(bodies(found)) == found.count <= 1


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.lists(st.binary(max_size=9), max_size=5)), max_size=8),
    st.integers(0, 2**40), st.integers(-3, 20), st.integers(0, 1),
)  # fmt: skip
def test_rows_are_those_of_a_plain_reader(entries: list[Any], first: int, skipped: int, compression: int) -> None:
    plain = [body for one in entries for body in (one if isinstance(one, list) else [one])]
    encoded = [
        batch(list(map(data_message, one)), compression) if isinstance(one, list) else simple(data_message(one))
        for one in entries
    ]
    found = records()
    start = max(0, first + skipped)
    found.add_chunk(chunk(first, encoded, len(plain)), 0, start, GZIP)
    left = max(0, start - first)
    assert bodies(found) == plain[left:]
    assert offsets(found) == [*range(first, first + len(plain))][left:]


def whole_message(number: int) -> bytes:
    """A message with every section, whose octets damage can reach."""
    names = [(("utf8", f"h{number}"), ("long", number)), (("utf8", "t"), ("list", [("utf8", "x"), ("int", 1)]))]
    many, queue = ("array", [b"a"]), ("utf8", "/queues/q")
    return (
        section("header", ("list", [("boolean", True), ("ubyte", 4), ("uint", 70)]))
        + section("annotations", ("map", [(("symbol", "x-exchange"), ("utf8", "e")), (("symbol", "x-o"), many)]))
        + section("properties", ("list", [("uuid", 7), ("binary", b"u"), ("null", None), ("utf8", "s"), queue]))
        + section("application", ("map", names))
        + section("data", ("binary", b"body"))
    )  # fmt: skip


def test_damaged_messages_never_do_harm() -> None:
    rng = random.Random(35)
    entries = [simple(whole_message(number)) for number in range(3)]
    entries.append(batch([whole_message(9)] * 2, 1))
    whole = chunk(11, entries, 5)
    rows = 0
    for old in (False, True):
        found = StreamRecords("events", old)
        for _ in range(2000):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 5)):
                damaged[rng.randrange(48 if rng.random() < 0.9 else 0, len(damaged))] = rng.choice(
                    (0, 0xFF, rng.randrange(256))
                )
            damaged[32:36] = zlib.crc32(damaged[48:]).to_bytes(4, "big")
            found.want(1000, 1 << 20)
            try:
                rows += found.add_chunk(bytes(damaged), 0, 0, GZIP)
            except ValueError:
                continue
            found.paths()
            found.properties((0, 3, 4, 8, 9), [b"h1"], lambda header: [None], 2**40)
            assert len(found.content_headers()) == found.count == len(bodies(found))
    assert rows > 1000


def test_names_of_streams_are_checked() -> None:
    for name in ("", "é" * 128):
        with pytest.raises(ValueError, match="1 to 255 bytes"):
            StreamRecords(name)
    with pytest.raises(TypeError, match="chunks"):
        records().deliver(b"", b"", b"")
