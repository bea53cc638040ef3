"""The properties of the copy that the relay publishes to a lane.

Those of the message, byte for byte, except for what the copy cannot have:

- ``CC`` and ``BCC`` among the headers: the broker has sent the message to the queues that they name, and would send the
  copy there, too. The copy has the header ``x-original-cc`` instead. RabbitMQ does so with messages that it
  dead-letters to another routing key.
- A ``user_id`` of another user: a broker closes the channel unless the relay's user has the tag ``impersonator``. The
  first such message has the relay ask the broker, on a connection of its own. If the broker refuses, copies of such
  messages have the header ``x-original-user-id`` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from pika.spec import BasicProperties

from fairsched.amqp._properties import encode_properties
from fairsched.amqp.fieldtables import read_table, replace_fields
from fairsched.amqp.properties import read_encoded
from fairsched.amqp.session import Session
from fairsched.amqp.urls import parameters
from fairsched.consumer.handling.retries import COPIED_TO, USER_ID
from fairsched.errors import ConnectionFailed, RequestRefused
from fairsched.lanes._unchanged import unchanged_properties

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: A content header before its properties: class, weight, size of the body.
_HEADER = Struct(">HHQ")
_CLASS = 60
_BEGIN = _HEADER.pack(_CLASS, 0, 0)[:4]
_NO_HEADERS = b"\0\0\0\0"
#: Bits of the property flags: headers in the first octet, user id in the second.
_HAS_HEADERS, _HAS_USER_ID = 0x20, 0x10
#: The name of no queue.
_NOWHERE = "fairsched.nowhere"
#: Headers by which the broker routes a message to further queues, and how they begin when encoded.
_COPIES = ("CC", "BCC")
_ENCODED_COPIES = (b"\x02CC", b"\x03BCC")


class MovedProperties:
    """Encodes the properties of copies.

    Parameters
    ----------
    urls : sequence of str
        Of the broker, with the user that publishes the copies.

    Notes
    -----
    Safe from any thread; threads that ask the broker at the same time all do.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._user = parameters(urls[0]).credentials.username
        #: Whether the broker refuses user ids of other users; None: it was not asked.
        self._refused: bool | None = None

    def of_all(self, messages: list[Message]) -> list[bytes | None]:
        """Return for each message what `of` returns if these are its own properties; None: they may not be.

        O(their length), without a Python call for each.
        """
        return unchanged_properties(messages, self._refused is False)

    def of(self, message: Message, body: bytes) -> bytes:
        """Return the encoded properties of a copy, without the beginning of a content header. O(their length)."""
        raw = message.raw_properties
        if raw.startswith(_BEGIN):
            raw = _without_beginning(raw, body)
        if raw[0] & _HAS_HEADERS and (_ENCODED_COPIES[0] in raw or _ENCODED_COPIES[1] in raw):
            return self._changed(raw, noting=True)
        if raw[1] & _HAS_USER_ID and self._refused is not False:
            return self._changed(raw, noting=True)
        return raw

    def shorter_of(self, message: Message, body: bytes) -> bytes:
        """Return the properties of a copy whose frame has no room for what was left out: they do not say it."""
        raw = message.raw_properties
        return self._changed(_without_beginning(raw, body) if raw.startswith(_BEGIN) else raw, noting=False)

    def _is_refused(self, user: Any) -> bool:
        """Ask the broker once whether it refuses the id of another user; if it cannot be asked now, it may not."""
        if self._refused is None:
            session = Session(self._urls[0])
            try:
                session.open()
                channel = session.channel()
                # The broker checks the user id of a message that it routes to no queue, too.
                channel.basic_publish("", _NOWHERE, b"", BasicProperties(user_id=user))
                session.call([partial(channel.exchange_declare, "amq.direct", passive=True)], "basic.publish")
                self._refused = False
            except RequestRefused as error:
                self._refused = True
                _log.warning(
                    "the broker refuses user ids of others: copies have them in the header %s. With the tag "
                    "'impersonator' the user %r may publish them: %s", USER_ID, self._user, error,
                )  # fmt: skip
            except ConnectionFailed:
                return False
            finally:
                session.close()
        return self._refused

    def _changed(self, raw: bytes, noting: bool) -> bytes:
        """Return properties without what a copy cannot have, `noting` it in headers; as they are, if unreadable."""
        try:
            found = read_encoded(_HEADER.pack(_CLASS, 0, 0) + raw)
            noted: dict[str, Any] = {}
            user = found.get("user_id")
            if user not in (None, self._user) and self._is_refused(user):
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
