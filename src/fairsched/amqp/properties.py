"""Properties of a message: pika's `BasicProperties`, decoded on first use and without pika's decoder.

pika decodes a content header on arrival, and closes the connection at some valid ones: such a message would be
redelivered for ever. Source: AMQP 0-9-1, section 4.2.6.1.
"""

from __future__ import annotations

from typing import Any

from pika.spec import BasicProperties

from fairsched.amqp._properties import PROPERTY_NAMES, read_properties
from fairsched.amqp.fieldtables import read_table
from fairsched.errors import DecodingError

__all__ = ["DEATH_HEADERS", "PROPERTY_NAMES", "ReceivedProperties", "decode", "read_encoded"]

#: Headers by which a broker notes where a message was dead-lettered. It drops a dead letter that has expired in the
#: same queue before, as one in a circle, so a copy that may get there again must not have them.
DEATH_HEADERS = ("x-death",) + tuple(
    f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "reason", "exchange")
)
_ALL = tuple(range(len(PROPERTY_NAMES)))
#: Octets of a content header before the properties: class, weight, size of the body.
_BEFORE = 12


def decode(header: bytes) -> BasicProperties:
    """Decode the properties in a content header.

    Parameters
    ----------
    header : bytes
        Payload of the header's frame.

    Returns
    -------
    BasicProperties
        As pika decodes them, except for the headers: floats keep their fraction, and a timestamp beyond the year 9999
        is an int. Reading headers that cannot be decoded raises `DecodingError`.

    Raises
    ------
    DecodingError
        If no property can be decoded.
    """
    try:
        found = read_properties(header, _ALL, _headers, True)
    except ValueError as error:
        raise DecodingError(f"the properties cannot be decoded: {error}") from None
    headers = found.get("headers")
    if isinstance(headers, _Problem):
        return _WithoutHeaders(**{**found, "headers": None}, problem=headers)
    return BasicProperties(**found)


def read_encoded(header: bytes) -> dict[str, Any]:
    """Read the properties in a content header for a copy of the message: the headers stay encoded.

    Parameters
    ----------
    header : bytes
        Payload of the header's frame.

    Returns
    -------
    dict of str to object
        What `encode_properties` takes: the properties that are present, by name; text that is not valid UTF-8 is bytes,
        and ``headers`` is an encoded table with its length.

    Raises
    ------
    ValueError
        If `header` is not a complete content header.
    """
    return read_properties(header, _ALL, _encoded_table, True)


def _encoded_table(header: bytes, begin: int) -> tuple[bytes, int]:
    end = begin + 4 + int.from_bytes(header[begin : begin + 4], "big")
    return header[begin:end], end


class _Problem(str):
    """Reason why headers cannot be decoded, in their place."""

    __slots__ = ()


def _headers(header: bytes, begin: int) -> tuple[dict[str, Any] | _Problem, int]:
    try:
        return read_table(header, begin)
    except ValueError as error:
        return _Problem(error), begin


class _WithoutHeaders(BasicProperties):  # type: ignore[misc,unused-ignore]
    """Properties whose headers cannot be decoded."""

    def __init__(self, problem: str, **others: Any) -> None:
        self._problem = problem
        super().__init__(**others)

    @property
    def headers(self) -> dict[str, Any]:
        """Headers that were set after decoding."""
        if self._given is None:
            raise DecodingError(f"the headers cannot be decoded: {self._problem}")
        return self._given

    @headers.setter
    def headers(self, value: dict[str, Any] | None) -> None:
        self._given = value


class ReceivedProperties(BasicProperties):  # type: ignore[misc,unused-ignore]
    """Properties of a content header that came through pika, decoded when one of them is read.

    Parameters
    ----------
    header : bytes
        Payload of the header's frame.

    Notes
    -----
    Reading a property raises `DecodingError` as `decode` does.
    """

    def __init__(self, header: bytes) -> None:
        # Not pika's __init__, which sets all properties.
        self.header = header

    def __getattr__(self, name: str) -> Any:
        if name not in PROPERTY_NAMES:
            raise AttributeError(name)
        return getattr(decode(self.header), name)

    def encode(self) -> list[bytes]:
        """Return the encoded properties as they were sent."""
        return [self.header[_BEFORE:]]
