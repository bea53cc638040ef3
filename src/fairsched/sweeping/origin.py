"""The queue that a dead letter came from, and the headers that only tell of its death."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairsched.amqp._properties import encode_properties
from fairsched.amqp.fieldtables import read_table, replace_fields
from fairsched.amqp.properties import DEATH_HEADERS, read_encoded
from fairsched.consumer.handling.retries import ATTEMPTS, EXCEPTION, QUEUE
from fairsched.consumer.requeueing.budget import COUNTS
from fairsched.errors import DecodingError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

__all__ = ["queue_of_origin", "without_death"]

#: Octets of a content header before its properties: class, weight, size of the body.
_BEFORE = 12

#: Headers that a message loses when it returns: its attempts are counted anew, by a quorum queue too, and a broker
#: would take what it died of before for a cycle. What says where a message was published first, such as
#: ``x-original-routing-key``, stays.
HEADERS_OF_DEATH = (ATTEMPTS, EXCEPTION, *DEATH_HEADERS, *COUNTS)


def queue_of_origin(message: Message) -> str | None:
    """Return the queue that a dead letter was in before, or None if it does not say.

    Parameters
    ----------
    message : Message
        A message of a queue for dead letters.

    Returns
    -------
    str or None
        The queue of its latest death if the broker dead-lettered it, else what our own dead letters say.

    Notes
    -----
    The latest death comes first in ``x-death``. It goes before ``x-original-queue``, since our copies lose ``x-death``:
    a message that has both was dead-lettered by the broker after it was copied. O(length of the headers).
    """
    try:
        headers = message.properties.headers or {}
    except DecodingError:
        return None
    deaths = headers.get("x-death")
    latest: Any = deaths[0] if isinstance(deaths, list) and deaths else None
    for found in (latest.get("queue") if isinstance(latest, dict) else None, headers.get(QUEUE)):
        if isinstance(found, str) and found:
            return found
    return None


def without_death(header: bytes) -> bytes:
    """Return the content header of a dead letter without `HEADERS_OF_DEATH`; all other properties are the same octets.

    A header whose table cannot be read is returned as it is. O(length).
    """
    try:
        found = read_encoded(header)
        table = found.get("headers")
        if table is None or read_table(table, 0)[0].keys().isdisjoint(HEADERS_OF_DEATH):
            return header
        found["headers"] = replace_fields(table, {}, HEADERS_OF_DEATH)
        return header[:_BEFORE] + encode_properties(found)
    except (TypeError, ValueError):
        return header
