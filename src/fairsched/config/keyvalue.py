"""Values of headers and properties as keys: which value names a tenant, or a sequence."""

from __future__ import annotations

import math
from collections.abc import Hashable

#: The key of messages that carry no key.
NO_KEY = ""

_WITHOUT_HASH = (list, dict, bytearray)


def hashable(value: object) -> Hashable:
    """Return a value that can be a key: tables, lists and NaN, which a header may hold, become their text."""
    if value is None:
        return NO_KEY
    if isinstance(value, _WITHOUT_HASH):
        return repr(value)
    # No NaN equals another: each message would be a tenant of its own.
    return repr(value) if isinstance(value, float) and math.isnan(value) else value
