"""Properties of a message: pika's `BasicProperties`, decoded by us, when they are asked for.

pika decodes a content header as soon as it is here, and what it cannot decode ends the connection, though nothing is
wrong with it: the message would come again, and again. Source: AMQP 0-9-1, section 4.2.6.1.
"""

from __future__ import annotations

from typing import Any

from pika.spec import BasicProperties

from fairsched.amqp._properties import PROPERTY_NAMES, read_properties
from fairsched.amqp.fieldtables import read_table
from fairsched.errors import DecodingError

__all__ = ["PROPERTY_NAMES", "ReceivedProperties", "decode"]

_ALL = tuple(range(len(PROPERTY_NAMES)))
#: Octets of a content header before the properties: class, weight, size of the body.
_BEFORE = 12


def decode(header: bytes) -> BasicProperties:
    """Decode the properties in a content header.

    Parameters
    ----------
    header : bytes
        Payload of its frame.

    Returns
    -------
    BasicProperties
        As pika has them, but for the headers: these keep the fractions of numbers, and have an int for an instant
        beyond the year 9999. To read headers that cannot be decoded raises `DecodingError`.

    Raises
    ------
    DecodingError
        Nothing of it can be decoded.
    """
    try:
        found = read_properties(header, _ALL, _headers, True)
    except ValueError as error:
        raise DecodingError(f"the properties cannot be decoded: {error}") from None
    headers = found.get("headers")
    if isinstance(headers, _Problem):
        return _WithoutHeaders(**{**found, "headers": None}, problem=headers)
    return BasicProperties(**found)


class _Problem(str):
    """Stands for headers that cannot be decoded, and says why."""

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
        """Those that were set since."""
        if self._given is None:
            raise DecodingError(f"the headers cannot be decoded: {self._problem}")
        return self._given

    @headers.setter
    def headers(self, value: dict[str, Any] | None) -> None:
        self._given = value


class ReceivedProperties(BasicProperties):  # type: ignore[misc,unused-ignore]
    """The properties in a content header that took pika's way, decoded when one is read.

    Parameters
    ----------
    header : bytes
        Payload of its frame.

    Notes
    -----
    To read one raises `DecodingError` as `decode` does.
    """

    def __init__(self, header: bytes) -> None:
        # Without pika's own, which sets them all.
        self.header = header

    def __getattr__(self, name: str) -> Any:
        if name not in PROPERTY_NAMES:
            raise AttributeError(name)
        return getattr(decode(self.header), name)

    def encode(self) -> list[bytes]:
        """Return the bytes as they were sent."""
        return [self.header[_BEFORE:]]
