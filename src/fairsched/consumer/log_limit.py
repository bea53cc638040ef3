"""Log lines that a message may cause, and so ten thousand messages a second."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two lines on the same.
PAUSE = 60.0


class LogLimit:
    """Says whether it is time for another line.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Notes
    -----
    O(1), and O(number of names) in memory. Threads that ask at the same moment may all be told so.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}

    def due(self, name: str) -> bool:
        """Return whether nothing was logged about a name for a minute; if so, count it as logged now."""
        now = self._clock()
        last = self._said.get(name)
        if last is not None and now - last < PAUSE:
            return False
        self._said[name] = now
        return True
