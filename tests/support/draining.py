"""Taking items out of a fair queue."""

from __future__ import annotations

import queue
from typing import Any

from fairsched import FairQueue


def drained(fair: FairQueue) -> list[Any]:
    """Take whatever may be taken now."""
    found = []
    while True:
        try:
            found.append(fair.get(block=False))
        except queue.Empty:
            return found
