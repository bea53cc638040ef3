"""From the bytes of a connection to messages (`_delivery`), and the functions that handle them (`handlers`)."""

from __future__ import annotations
