"""Bodies of messages between programs of this package: JSON objects, which any user of the broker may publish."""

from __future__ import annotations

import json
from typing import Any


def read_fields(body: bytes, longest: int) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Parameters
    ----------
    body : bytes
        The body of a message from anywhere.
    longest : int
        Bytes that it may have.

    Returns
    -------
    dict
        No fields if the body is JSON and no object.

    Raises
    ------
    ValueError
        If the body is too long, or not JSON; the text is short whatever the body is.

    Notes
    -----
    O(length). Safe from any thread.
    """
    if len(body) > longest:
        raise ValueError(f"the body must have at most {longest} bytes, got {len(body)}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"the body must be JSON, got {body[:80]!r}") from None
    return found if isinstance(found, dict) else {}
