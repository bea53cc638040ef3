"""A flag for which a thread waits, and which signal handlers may also set."""

from __future__ import annotations

import threading

__all__ = ["Change"]


class Change:
    """A flag for which one thread waits; a successful wait clears it.

    `threading.Event` holds a lock while it runs Python code: a signal handler that interrupts that code and uses the
    event deadlocks. Each operation here is a single operation on a lock.
    """

    __slots__ = ("_down",)

    def __init__(self) -> None:
        self._down = threading.Lock()  # locked while the flag is clear
        self._down.acquire()

    def set(self) -> None:
        """Set the flag, and wake the waiting thread."""
        if self._down.locked():
            try:
                self._down.release()
            except RuntimeError:  # another thread, or a signal handler, has set it meanwhile
                pass

    def clear(self) -> None:
        """Clear the flag."""
        self._down.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait until the flag is set; return whether it was within `timeout` seconds."""
        return self._down.acquire(timeout=timeout)
