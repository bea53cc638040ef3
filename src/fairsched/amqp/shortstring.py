"""Short strings of AMQP: names of queues and exchanges, routing keys. Source: AMQP 0-9-1, section 4.2.5.3."""

from __future__ import annotations

from fairsched.amqp._properties import SHORT_MAX

#: Longest short string, in bytes.
LONGEST = SHORT_MAX


def is_short_string(value: object) -> bool:
    """Return whether a value can be sent as a short string: text of at most 255 bytes in UTF-8."""
    try:
        return isinstance(value, str) and len(value.encode()) <= LONGEST
    except UnicodeEncodeError:  # a lone surrogate
        return False
