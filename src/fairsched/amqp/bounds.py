"""Bounds of what has 16 bits in TCP and in AMQP 0-9-1."""

from __future__ import annotations

LARGEST_PORT = 65_535
#: In seconds.
LARGEST_HEARTBEAT = 65_535
