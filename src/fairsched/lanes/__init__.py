"""Lanes at the broker: which lane a message goes to; how lanes are announced, found again and given up; the relay.

Read in this order: `fairsched.config.lanes` (the names), `_placement` (the lane of each message, and which tenants are
hot), `announcement` (the messages), `own_lanes` (when a worker consumes a lane and when it gives one up), `registry`
(the connection of a worker for that), `layout` (whether all programs have the same buckets). A publisher's side is in
`fairsched.publisher`.

The relay moves messages of an ingress queue to lanes: `relay`, `backlogs` (what waits for a lane that refuses
messages), `ingress` (whether it is a stream), `moved_properties` (what a copy has of its message).
"""

from __future__ import annotations

from fairsched.lanes._placement import Placement

__all__ = ["Placement"]
