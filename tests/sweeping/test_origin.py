"""Headers that a message loses when it returns from a queue for dead letters."""

from __future__ import annotations

import struct

from fairsched.amqp._properties import encode_properties
from fairsched.amqp.fieldtables import write_table
from fairsched.amqp.properties import decode
from fairsched.sweeping.origin import without_death


def test_counts_of_the_queue_for_dead_letters_do_not_return() -> None:
    """The queue that counts attempts might take them for its own."""
    headers = {"tenant": "a", "x-delivery-count": 3, "x-acquired-count": 4, "x-attempts": 5, "x-exception": "E"}
    header = struct.pack(">HHQ", 60, 0, 1) + encode_properties({"headers": write_table(headers), "app_id": "app"})
    found = decode(without_death(header))
    assert (found.headers, found.app_id) == ({"tenant": "a"}, "app")
