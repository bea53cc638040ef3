"""Whether a message has waited so long for the broker's answer that its lane may be deleted meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["OverdueMessages"]

#: Seconds between two notes of how many messages were published.
PERIOD = 1.0


class OverdueMessages:
    """Tells whether an unconfirmed message is older than a number of seconds, to within `PERIOD`.

    Parameters
    ----------
    clock : callable
        Returns seconds, and goes on while this process is stopped.

    Notes
    -----
    The age of a message counts from when it was put into the window, whatever happened since: no connection, a broker
    that blocked it, a link without an end, a process that was stopped. The broker confirms in the order of publishing,
    but for single messages; so two counts say enough: of messages published by then, and of messages settled now.

    A message that was published between two notes is taken as old as the earlier one. If nothing was noted for too
    long, because this process was stopped, everything that is unconfirmed is overdue.

    O(1), amortized; memory: O(seconds). For the I/O thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Times, and the number of messages published before each.
        self._notes: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._forgiven = 0

    def is_due(self) -> bool:
        """Return whether `look` should be called."""
        return self._clock() - self._notes[-1][0] >= PERIOD

    def look(self, published: int, settled: int, longest: float) -> bool:
        """Return whether a message is overdue, and note how many were published.

        Parameters
        ----------
        published : int
            Number of messages that were ever published.
        settled : int
            Number of those that were confirmed or have failed.
        longest : float
            Age in seconds from which an unconfirmed message is overdue.
        """
        now = self._clock()
        notes = self._notes
        while notes and notes[0][0] <= now - longest:
            notes.popleft()
        old = notes[0][1] if notes else published
        if not notes or now - notes[-1][0] >= PERIOD:
            notes.append((now, published))
        return settled < old and old > self._forgiven

    def forgive(self, published: int) -> None:
        """Count no message as overdue that was published until now."""
        self._forgiven = published
