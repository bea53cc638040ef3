"""What is in the frames of the stream protocol: keys of commands, codes of responses, strings, arrays and maps.

Source: RabbitMQ, "RabbitMQ Streams Protocol Reference". Pure functions: safe from any thread.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from fairsched.errors import ConfigurationError

T = TypeVar("T")

#: Set in the key of a response.
RESPONSE = 0x8000
#: Longest string, in bytes, and the longest name of a publisher or of a stored offset.
LONGEST_STRING, LONGEST_REFERENCE = 0x7FFF, 255

OK = 1
#: Responses of a broker, by their codes.
MEANINGS = {
    1: "ok",
    2: "there is no such stream",
    3: "the subscription id is taken",
    4: "there is no such subscription",
    5: "the stream exists",
    6: "the stream is not available on this node",
    7: "the SASL mechanism is not supported",
    8: "the login was refused",
    9: "SASL failed",
    10: "SASL asks for more",
    11: "this user may only connect from the broker's own host",
    12: "this user may not use the virtual host",
    13: "the frame is not known",
    14: "the frame is too large",
    15: "internal error",
    16: "access was refused",
    17: "precondition failed",
    18: "there is no such publisher",
    19: "no offset is stored",
}
NO_STREAM, EXISTS, NOT_AVAILABLE, NO_OFFSET = 2, 5, 6, 19
#: Responses after which a retry may help.
PASSING = frozenset({NOT_AVAILABLE, 15})


class Key(enum.IntEnum):
    """Commands by their keys."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    QUERY_PUBLISHER_SEQUENCE = 5
    DELETE_PUBLISHER = 6
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    STORE_OFFSET = 10
    QUERY_OFFSET = 11
    UNSUBSCRIBE = 12
    CREATE = 13
    DELETE = 14
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23
    ROUTE = 24
    PARTITIONS = 25
    CREATE_SUPER_STREAM = 29
    DELETE_SUPER_STREAM = 30


# Writing --------------------------------------------------------------------------------------------------------------


def frame(key: int, *parts: bytes, version: int = 1) -> bytes:
    """Return a frame with its length."""
    content = b"".join(parts)
    return struct.pack(">IHH", len(content) + 4, key, version) + content


def string(text: str, what: str = "a string", longest: int = LONGEST_STRING) -> bytes:
    """Encode a string; ConfigurationError if it is too long."""
    found = text.encode()
    if len(found) > longest:
        raise ConfigurationError(f"{what} must have at most {longest} bytes, got {len(found)}")
    return struct.pack(">H", len(found)) + found


def array(items: Iterable[bytes]) -> bytes:
    """Encode an array of encoded items."""
    found = list(items)
    return struct.pack(">I", len(found)) + b"".join(found)


def pairs(items: Mapping[str, str]) -> bytes:
    """Encode a map of strings."""
    return array(string(name) + string(value) for name, value in items.items())


def offset_specification(offset: str | int | datetime) -> bytes:
    """Encode where a subscription begins: "first", "last", "next", an offset, or a moment."""
    if isinstance(offset, datetime):
        return struct.pack(">Hq", 5, round(offset.timestamp() * 1000))
    if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 1 << 62:
        return struct.pack(">HQ", 4, offset)
    names = {"first": 1, "last": 2, "next": 3}
    if not isinstance(offset, str) or offset not in names:
        raise ConfigurationError(
            f"offset must be first, last, next, a number from 0 to {(1 << 62) - 1} or a datetime, got {offset!r}"
        )
    return struct.pack(">H", names[offset])


# Reading --------------------------------------------------------------------------------------------------------------


class Payload:
    """Reader of what follows the version in a frame.

    Parameters
    ----------
    data : memoryview
        The octets.
    failure : callable
        Makes the error that is raised of what is wrong.

    Raises
    ------
    ValueError
        Or what `failure` makes, from each method: the frame ends before the value does.
    """

    def __init__(self, data: memoryview, failure: Callable[[str], Exception] = ValueError) -> None:
        self._data = data
        self._failure = failure
        self._at = 0

    def octets(self, size: int) -> bytes:
        """Read so many octets."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise self._failure(f"its length is {len(self._data)}, so {size} octets from {self._at} on are not in it")
        found = bytes(self._data[self._at : end])
        self._at = end
        return found

    def number(self, octets: int) -> int:
        """Read an unsigned number."""
        return int.from_bytes(self.octets(octets), "big")

    def string(self) -> str:
        """Read a string; an empty one for none."""
        size = self.number(2)
        return "" if size == 0xFFFF else self.octets(size).decode("utf-8", "replace")

    def array(self, item: Callable[[], T]) -> list[T]:
        """Read an array of items, each of which takes an octet at least."""
        count = self.number(4)
        if count > len(self._data) - self._at:
            raise self._failure(f"an array of {count} items is longer than the frame")
        return [item() for _ in range(count)]

    def pairs(self) -> dict[str, str]:
        """Read a map of strings."""
        return dict(self.array(lambda: (self.string(), self.string())))

    @property
    def left(self) -> int:
        """Octets that were not read."""
        return len(self._data) - self._at
