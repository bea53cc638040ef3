"""The lanes of one name as a publisher sees them: whose a message is, and where the messages are placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairsched.amqp._properties import encode_properties
from fairsched.amqp.properties import decode
from fairsched.config.keyvalue import NO_KEY, hashable
from fairsched.lanes import Placement
from fairsched.publisher.contents import checked_properties

if TYPE_CHECKING:
    from pika.spec import BasicProperties

    from fairsched.config.lanes import Lanes

#: What precedes the properties in a content header.
_BEFORE = bytes(12)


class Spread:
    """The lanes of one name: whose a message is, and where the messages are placed.

    Parameters
    ----------
    lanes : Lanes
        The lanes.

    Notes
    -----
    Thread-safe. O(length of the tenant's name) per message.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.placement = Placement(lanes)
        source, _, self._name = lanes.key.partition(":")
        self._in_headers = source == "header"

    def tenant(self, properties: BasicProperties | None, given: Mapping[str, Any]) -> object:
        """Return the tenant of a message, as a consumer's ``key=`` would.

        Parameters
        ----------
        properties, given
            As for `Contents.encode`, which has accepted them.
        """
        name = self._name
        where = "headers" if self._in_headers else name
        value = given[where] if where in given else getattr(properties, where, None)
        if self._in_headers:
            value = value.get(name) if value else None
        if type(value) is str or (type(value) is int and self._in_headers):
            return value
        if value is None and (properties is not None or name != "delivery_mode" or self._in_headers):
            return NO_KEY
        return self._received(value)

    def _received(self, value: object) -> object:
        """Return a value as it is read from the message: numbers, times and tables may differ from what was given."""
        name = self._name
        if self._in_headers:
            encoded = encode_properties(checked_properties({"headers": {name: value}}))
            return hashable(decode(_BEFORE + encoded).headers.get(name))
        encoded = encode_properties(checked_properties({name: 2 if value is None else value}))
        return hashable(getattr(decode(_BEFORE + encoded), name))
