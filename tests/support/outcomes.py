"""The effects of faults on messages: how many were lost, handled again and overtaken. `make chaos` prints the sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

Run = tuple[Collection[Hashable], Iterable[Hashable]]


def counted(expected: Collection[Hashable], handled: Iterable[Hashable]) -> dict[str, int]:
    """Compare what was published to one queue with what was handled.

    Where both are in an order, and not a set, those are counted that came the first time after one that was newer.
    """
    found = Counter(handled)
    counts = {"messages": len(expected), "lost": len({*expected} - found.keys()), "again": found.total() - len(found)}
    if isinstance(expected, Sequence):
        places = {message: place for place, message in enumerate(expected)}
        newest = -1
        counts["overtaken"] = 0
        for place in (places[message] for message in found if message in places):  # in the order of first handling
            counts["overtaken"] += place < newest
            newest = max(newest, place)
    return counts


class Outcomes:
    """Notes for the report of a test, by the fault and by the part that survived it."""

    def __init__(self, record_property: Callable[[str, object], None]) -> None:
        self._record = record_property

    def note(self, fault: str, subject: str, *runs: Run) -> None:
        """Note the sum of these runs: each what was published and what was handled."""
        total: Counter[str] = Counter()
        for expected, handled in runs:
            total.update(counted(expected, handled))
        self._record("outcome", json.dumps({"fault": fault, "subject": subject, **total}))
