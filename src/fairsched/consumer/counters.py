"""What one consumer has done so far."""

from __future__ import annotations

import threading

#: Names of the counters, in the order in which they are reported.
NAMES = (
    "received", "acked", "nacked", "rejected", "errors", "stale_settlements", "reconnects",
    "shed", "kept_alone", "kept_budget",
)  # fmt: skip


class Counters:
    """Counts shared by the I/O thread and the workers.

    Notes
    -----
    `add` and `snapshot` are safe from any thread: adding to an integer is not one step, so a lock guards it.
    Both are O(1).
    """

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(NAMES, 0)

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one counter."""
        with self._lock:
            self._counts[name] += amount

    def forked(self) -> None:
        """Begin anew in a child process, where nobody can hold the lock."""
        self._lock = threading.Lock()

    def snapshot(self) -> dict[str, int]:
        """Return all counters as they are at one moment."""
        with self._lock:
            return dict(self._counts)
