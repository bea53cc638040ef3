"""SIGTERM and SIGINT: the first ends a consumer in good order, the second at once."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

#: Signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def graceful(stop: Callable[[bool], object]) -> Iterator[None]:
    """graceful(stop)
    --

    Handle SIGTERM and SIGINT within a ``with`` block.

    Parameters
    ----------
    stop : callable
        ``stop(now)``: called with False by the first signal (finish, ack, close), with True by every later one
        (requeue and leave). `Consumer.stop` is made for it.

    Raises
    ------
    ValueError
        Outside the main thread, where Python cannot install signal handlers.

    Notes
    -----
    A signal handler may interrupt the main thread while it holds a lock that `stop` needs, so the handler only
    drops a note into a queue whose put is reentrant, and a thread of its own calls `stop`. The earlier handlers
    are restored at the end of the block.

    Examples
    --------
    >>> with graceful(consumer.stop):  # doctest: +SKIP
    ...     consumer.run(handler)
    """
    notes: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def note(number: int, _frame: FrameType | None) -> None:
        notes.put(number)

    def obey() -> None:
        now = False
        while (number := notes.get()) is not None:
            _log.info("%s: %s", signal.Signals(number).name, "leaving at once" if now else "finishing")
            stop(now)
            now = True

    thread = threading.Thread(target=obey, name="fairsched-signals", daemon=True)
    thread.start()
    earlier: dict[signal.Signals, Any] = {}
    try:
        for number in SIGNALS:
            earlier[number] = signal.signal(number, note)
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        notes.put(None)
        thread.join()
