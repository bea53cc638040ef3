"""The thread that sends settlements which have waited long enough for others."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

from fairsched.integrations._kombulink import Link

__all__ = ["TIMER", "FlushTimer"]

#: A settlement waits at most about this long for others, in seconds.
PERIOD = 0.005


class FlushTimer:
    """Sends the settlements of all links of a process that have waited for a while.

    Notes
    -----
    The thread starts with the first settlement that waits, and sleeps while none does. It never waits for a socket.
    """

    def __init__(self) -> None:
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, link: Link) -> None:
        """Look after a link, as long as it exists."""
        with self._lock:
            self._links.add(link)

    def wake(self) -> None:
        """Begin to look: a settlement waits."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="fairsched-kombu-flush", daemon=True)
                    self._thread.start()
        self._wanted.set()

    def flush(self) -> bool:
        """Send what waits, as far as the sockets take it; return whether something was waiting."""
        with self._lock:
            links = list(self._links)
        # Each of them, not the first that something was waiting in.
        return sum(link.flush_soon() for link in links) > 0

    def _run(self) -> None:
        while self._wanted.wait():
            time.sleep(PERIOD)
            self._wanted.clear()
            if self.flush():
                self._wanted.set()


#: Of this process.
TIMER = FlushTimer()


def _begin_anew() -> None:
    """Forget the parent's links and thread: a child must not write to the sockets of its parent."""
    TIMER.__init__()  # type: ignore[misc]  # links hold its method `wake`


atexit.register(TIMER.flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
