"""Which properties does the copy of a message have that the relay publishes to a lane?

Those of the message, byte for byte, except for what the copy cannot have:

- ``CC`` and ``BCC`` among the headers: the broker has sent the message to the queues that they name, and would send the
  copy there, too. The copy has the header ``x-original-cc`` instead. RabbitMQ does so with messages that it
  dead-letters to another routing key.
- A ``user_id`` of another user: a broker refuses it unless the relay's user may impersonate others. Only once the
  broker has refused one, copies have the header ``x-original-user-id`` instead.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from fairsched.amqp._properties import PROPERTY_NAMES, encode_properties, read_properties
from fairsched.amqp.fieldtables import read_table, replace_fields
from fairsched.consumer.handling.retries import COPIED_TO, USER_ID

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: A content header before its properties: class, weight, size of the body.
_HEADER = Struct(">HHQ")
_CLASS = 60
_BEGIN = _HEADER.pack(_CLASS, 0, 0)[:4]
_NO_HEADERS = b"\0\0\0\0"
#: Bits of the property flags: headers in the first octet, user id in the second.
_HAS_HEADERS, _HAS_USER_ID = 0x20, 0x10
_ALL = tuple(range(len(PROPERTY_NAMES)))
#: Headers by which the broker routes a message to further queues, and how they begin when encoded.
_COPIES = ("CC", "BCC")
_ENCODED_COPIES = (b"\x02CC", b"\x03BCC")


class MovedProperties:
    """Encodes the properties of copies.

    Parameters
    ----------
    user : str
        The user that publishes the copies.

    Attributes
    ----------
    drops_user_ids : bool
        Whether copies do without the user ids of other users, because the broker refused one.

    Notes
    -----
    For one thread, except that `drops_user_ids` may be set by any.
    """

    def __init__(self, user: str) -> None:
        self._user = user
        self.drops_user_ids = False

    def of(self, message: Message, body: bytes) -> bytes:
        """Return the encoded properties of a copy, without the beginning of a content header. O(their length)."""
        raw = message.raw_properties
        if raw.startswith(_BEGIN):
            raw = _without_beginning(raw, body)
        if raw[0] & _HAS_HEADERS and (_ENCODED_COPIES[0] in raw or _ENCODED_COPIES[1] in raw):
            return self._changed(raw, noting=True)
        if self.drops_user_ids and raw[1] & _HAS_USER_ID:
            return self._changed(raw, noting=True)
        return raw

    def shorter_of(self, message: Message, body: bytes) -> bytes:
        """Return the properties of a copy whose frame has no room for what was left out: they do not say it."""
        raw = message.raw_properties
        return self._changed(_without_beginning(raw, body) if raw.startswith(_BEGIN) else raw, noting=False)

    def has_foreign_user_id(self, message: Message) -> bool:
        """Return whether a message says that another user than the relay's has published it."""
        raw = message.raw_properties
        if raw.startswith(_BEGIN):
            raw = _without_beginning(raw, message.body)
        try:
            return self._is_foreign(_read(raw))
        except ValueError:
            return False

    def _is_foreign(self, found: dict[str, Any]) -> bool:
        return found.get("user_id") not in (None, self._user)

    def _changed(self, raw: bytes, noting: bool) -> bytes:
        """Return properties without what a copy cannot have, `noting` it in headers; as they are, if unreadable."""
        try:
            found = _read(raw)
            noted: dict[str, Any] = {}
            if self.drops_user_ids and self._is_foreign(found):
                noted[USER_ID] = found.pop("user_id")
            table = found.get("headers", _NO_HEADERS)
            headers, _ = read_table(table, 0)
            if "CC" in headers:
                noted[COPIED_TO] = headers["CC"]
            elif "BCC" not in headers and not noted:
                return raw  # the octets are those of a value
            return encode_properties({**found, "headers": replace_fields(table, noted if noting else {}, _COPIES)})
        except (TypeError, ValueError):
            return raw


def _without_beginning(raw: bytes, body: bytes) -> bytes:
    """Return properties without the beginning of a content header; pika's own have none, and may seem to have one."""
    return raw[_HEADER.size :] if raw.startswith(_HEADER.pack(_CLASS, 0, len(body))) else raw


def _read(raw: bytes) -> dict[str, Any]:
    return read_properties(_HEADER.pack(_CLASS, 0, 0) + raw, _ALL, _raw_table, True)


def _raw_table(header: bytes, begin: int) -> tuple[bytes, int]:
    end = begin + 4 + int.from_bytes(header[begin : begin + 4], "big")
    return header[begin:end], end
