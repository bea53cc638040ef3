"""Properties of outgoing messages: checked, and encoded once for messages with equal properties."""

from __future__ import annotations

import calendar
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pika.spec import BasicProperties

from fairsched.amqp._properties import PROPERTY_NAMES, encode_properties
from fairsched.amqp.fieldtables import write_table

#: Properties that differ between most messages, so that caching them would not pay.
_OWN = frozenset(("headers", "message_id", "correlation_id", "timestamp"))
#: Types whose equal values have the same encoding.
_PLAIN = frozenset((str, int))
#: Number of encoded contents in the cache.
_MOST = 256
#: Longest expiration that RabbitMQ accepts, in milliseconds.
_LONGEST_LIFE = 2**32 - 1


class Contents:
    """Encoder of properties with a cache.

    Notes
    -----
    Thread-safe: two threads that encode the same new properties at once may both encode them. O(length of the values).
    """

    def __init__(self) -> None:
        #: Properties of a message without any argument.
        self.plain = encode_properties({"delivery_mode": 2})
        self._known: dict[tuple[tuple[str, Any], ...], bytes] = {}

    def encode(self, properties: BasicProperties | None, given: dict[str, Any]) -> bytes:
        """Encode properties for a content header.

        Parameters
        ----------
        properties : BasicProperties, optional
            Taken as they are, but for those that are given.
        given : dict
            By name. `delivery_mode` is 2 unless it is given, or `properties` are.

        Raises
        ------
        TypeError, ValueError
            A property does not exist, or has a value that is not allowed; the message names both.
        """
        if properties is not None:
            if not isinstance(properties, BasicProperties):
                raise TypeError(f"properties must be pika's BasicProperties, got {properties!r}")
            named = {name: getattr(properties, name) for name in PROPERTY_NAMES}
            return encode_properties(checked_properties({**named, **given}))
        key = None
        if _OWN.isdisjoint(given) and all(type(value) in _PLAIN for value in given.values()):
            key = tuple(given.items())
            found = self._known.get(key)
            if found is not None:
                return found
        encoded = encode_properties(checked_properties({"delivery_mode": 2, **given}))
        if key is not None:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = encoded
        return encoded


def checked_properties(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values to the types of AMQP."""
    headers = values.get("headers")
    if headers is not None:
        if not isinstance(headers, Mapping):
            raise TypeError(f"headers must be a mapping, got {headers!r}")
        values["headers"] = write_table(headers)
    expiration = values.get("expiration")
    if expiration is not None:
        values["expiration"] = _milliseconds(expiration)
    timestamp = values.get("timestamp")
    if isinstance(timestamp, datetime):
        values["timestamp"] = calendar.timegm(timestamp.utctimetuple())
    mode = values.get("delivery_mode")
    if mode is not None and (isinstance(mode, bool) or mode not in (1, 2)):
        raise ValueError(f"delivery_mode must be 1 (transient) or 2 (persistent), got {mode!r}")
    return values


def _milliseconds(expiration: object) -> str:
    """Return a time to live in milliseconds, as text: the broker closes the channel at any other."""
    if isinstance(expiration, str):
        if expiration.isascii() and expiration.isdigit() and len(expiration) <= 10 and int(expiration) <= _LONGEST_LIFE:
            return expiration
    elif isinstance(expiration, int | float) and not isinstance(expiration, bool) and math.isfinite(expiration):
        number = round(expiration * 1000)
        if 0 <= number <= _LONGEST_LIFE:
            return str(number)
    raise ValueError(
        "expiration must be seconds as a number, or milliseconds as a str of digits, from 0 to "
        f"{_LONGEST_LIFE} milliseconds, got {expiration!r}"
    )
