"""Chunks of a stream as bytes, as RabbitMQ delivers them."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

from fairsched.streams.connection import data_message


def simple(message: bytes) -> bytes:
    """Encode an entry with one message."""
    return struct.pack(">I", len(message)) + message


def batch(
    messages: Sequence[bytes], compression: int = 0, *, records: int | None = None, size: int | None = None
) -> bytes:
    """Encode an entry with several messages."""
    plain = b"".join(map(simple, messages))
    packed = gzip.compress(plain, mtime=0) if compression == 1 else plain
    count = len(messages) if records is None else records
    return (
        struct.pack(">BHII", 0x80 | compression << 4, count, len(plain) if size is None else size, len(packed)) + packed
    )


def chunk(
    first: int, entries: Sequence[bytes], records: int, *, kind: int = 0, crc: int | None = None, moment: int = 1000
) -> bytes:
    """Encode a chunk."""
    data = b"".join(entries)
    checksum = zlib.crc32(data) if crc is None else crc
    head = struct.pack(">BBHIqQQIII", 0x50, kind, len(entries), records, moment, 1, first, checksum, len(data), 0)
    return head + bytes(4) + data


def of_bodies(first: int, bodies: Sequence[bytes]) -> bytes:
    """Encode a chunk of messages that have only bodies."""
    return chunk(first, [simple(data_message(body)) for body in bodies], len(bodies))
