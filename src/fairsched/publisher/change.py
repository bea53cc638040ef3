"""A change that a thread waits for, told also by handlers of signals."""

from __future__ import annotations

import threading

__all__ = ["Change"]


class Change:
    """A flag that one thread waits for; a wait that succeeds takes it down.

    `threading.Event` holds a lock while it runs Python code: a handler of a signal that interrupts it there, and uses
    it, waits for the code that it interrupted, for ever. Each operation here is a single one of a lock.
    """

    __slots__ = ("_down",)

    def __init__(self) -> None:
        self._down = threading.Lock()  # locked while the flag is down
        self._down.acquire()

    def set(self) -> None:
        """Raise the flag, and wake the thread that waits."""
        if self._down.locked():
            try:
                self._down.release()
            except RuntimeError:  # another thread, or a handler of a signal, has raised it by now
                pass

    def clear(self) -> None:
        """Take the flag down."""
        self._down.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait until the flag is up; return whether it was within `timeout` seconds."""
        return self._down.acquire(timeout=timeout)
