"""A flag that threads wait for, and that the handler of a signal may raise or look at, too."""

from __future__ import annotations

import threading

__all__ = ["Flag"]


class Flag:
    """A flag that threads wait for, like `threading.Event`, at any place also in the handler of a signal.

    `threading.Event` holds a lock while it runs Python code: the handler of a signal that interrupts it there, and uses
    it, waits for the code that it interrupted, for ever. Here each thread that waits has a lock of its own, and every
    step is a single operation of a list, an attribute or a lock.

    Notes
    -----
    Safe from any thread. A thread lists its lock before it looks at the flag, and `set` raises the flag before it reads
    the list: so one of the two sees the other. `tests/model/flag_model.py` runs through all orders of the steps.
    """

    __slots__ = ("_up", "_waiting")

    def __init__(self) -> None:
        self._up = False
        #: A lock for each wait that is under way, locked until the flag is raised.
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Return whether the flag is up."""
        return self._up

    def set(self) -> None:
        """Raise the flag, and wake all threads that wait. O(those)."""
        self._up = True
        for lock in tuple(self._waiting):
            try:
                lock.release()
            except RuntimeError:  # another thread, or the handler of a signal, has released it by now
                pass

    def clear(self) -> None:
        """Take the flag down."""
        self._up = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is raised, for `timeout` seconds at most; return whether it was."""
        if self._up:
            return True
        lock = threading.Lock()
        lock.acquire()
        try:
            self._waiting.append(lock)  # in here: after it, the handler of a signal may raise
            return self._up or lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)) or self._up
        finally:
            self._waiting.remove(lock)
