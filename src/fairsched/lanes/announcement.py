"""Messages of a registry of lanes: each names an own lane and its tenant, and its routing key says what happened."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fairsched.amqp.jsonbody import read_fields
from fairsched.amqp.shortstring import is_short_string
from fairsched.config.lanes import Lanes

#: A publisher has declared the lane. The registry queue remembers this one, for workers that start later.
NEW = "new"
#: The lane has a publisher; or a worker has messages of it, and it must not be deleted now.
ACTIVE = "active"
#: A worker proposes to delete the lane, and consumes it no more.
CLOSE = "close"
#: The lane was deleted.
GONE = "gone"
#: The broker refused to delete the lane: all consume it again.
KEPT = "kept"
#: The routing keys that workers hear.
KEYS = (NEW, ACTIVE, CLOSE, GONE, KEPT)

#: Arguments of the registry queue, also where another type is the default of the virtual host: workers read it in turn,
#: as its exclusive consumer, and quorum queues ignore that flag.
REGISTRY_ARGUMENTS = {"x-queue-type": "classic"}

#: Longest body that is written and read, in bytes. A lane has at most 255, a tenant what fits into a header of a frame,
#: of which JSON makes up to six times as much.
LONGEST_BODY = 256 * 1024


class Announcement(NamedTuple):
    """An own lane and its tenant: str, bytes, a number, a bool or None, as the key of a message is."""

    lane: str
    tenant: Any


def encode(announcement: Announcement) -> bytes:
    """Return the body of a message. O(length). Safe from any thread.

    Workers need the tenant for its weight only: one whose name is too long to be announced has that of unnamed tenants.
    """
    tenant = announcement.tenant
    if isinstance(tenant, bytes):  # what is not UTF-8 becomes lone surrogates, which no header has
        tenant = tenant.decode("utf-8", "surrogateescape")
    body = json.dumps({"lane": announcement.lane, "tenant": tenant}).encode()
    return body if len(body) <= LONGEST_BODY else encode(Announcement(announcement.lane, None))


def decode(body: bytes, lanes: Lanes) -> Announcement:
    """Read the body of a message.

    Parameters
    ----------
    body : bytes
        Of any client with the permission to publish to the registry.
    lanes : Lanes
        Whose registry it is.

    Returns
    -------
    Announcement
        Of a lane that is one of these.

    Raises
    ------
    ValueError
        If the body is anything else.

    Notes
    -----
    O(length). Safe from any thread.
    """
    found = read_fields(body, LONGEST_BODY)
    lane = found.get("lane")
    if not isinstance(lane, str) or not is_short_string(lane) or not lanes.is_own_lane(lane):
        raise ValueError(f"'lane' must be the name of a lane of {lanes.name!r}, got {lane!r:.300}")
    tenant = found.get("tenant")
    if not isinstance(tenant, str | int | float | None):
        raise ValueError(f"'tenant' must be text, a number, true, false or null, got {type(tenant).__name__}")
    return Announcement(lane, _with_bytes(tenant))


def _with_bytes(tenant: Any) -> Any:
    """Return bytes for text that `encode` made of bytes."""
    if isinstance(tenant, str) and any("\udc80" <= character <= "\udcff" for character in tenant):
        try:
            return tenant.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # other surrogates
            return tenant
    return tenant
