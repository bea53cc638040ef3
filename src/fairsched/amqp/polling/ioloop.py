"""pika's event loop, which may also be woken by the handler of a signal."""

from __future__ import annotations

import threading

from pika.adapters.select_connection import IOLoop

__all__ = ["Loop"]


class Loop(IOLoop):  # type: ignore[misc]  # pika has no types of its own
    """An event loop for one thread, which all threads may wake.

    Notes
    -----
    pika holds a lock while it wakes the loop. A signal may arrive just then in the same thread, and its handler may
    publish, or stop a consumer, which wakes the loop as well: so the lock must be re-entrant.
    """

    def __init__(self) -> None:
        super().__init__()
        poller = self._poller
        if hasattr(poller, "_waking_mutex"):
            poller._waking_mutex = threading.RLock()  # it is only entered and left
