"""SIGTERM and SIGINT: the first ends a consumer in good order, the second at once."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

#: Signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def graceful(stop: Callable[[bool], object], signals: Collection[signal.Signals] = SIGNALS) -> Iterator[None]:
    """graceful(stop, signals=(SIGTERM, SIGINT))
    --

    Handle SIGTERM and SIGINT within a ``with`` block.

    Parameters
    ----------
    stop : callable
        ``stop(now)``: called with False by the first signal (finish, ack, close), with True by every later one
        (requeue and leave). `Consumer.stop` is made for it.
    signals : collection of signal.Signals
        Those to handle.

    Raises
    ------
    ValueError
        Outside the main thread, where Python cannot install signal handlers.

    Notes
    -----
    Not by way of Python's signal handlers: they run in the main thread only, perhaps while it holds a lock that `stop`
    needs, and not before it wakes up, since the kernel may give the second of two signals to another thread. The
    interpreter writes the signal's number to a socket instead (`signal.set_wakeup_fd`), and a thread of its own reads
    it and calls `stop`. Handlers and wake-up descriptor are restored at the end of the block.

    Examples
    --------
    >>> with graceful(consumer.stop):  # doctest: +SKIP
    ...     consumer.run(handler)
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=_obey, args=(reader, stop, signals), name="fairsched-signals", daemon=True)
    earlier: dict[signal.Signals, Any] = {}
    with reader, writer:
        earlier_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        thread.start()
        try:
            for number in signals:
                earlier[number] = signal.signal(number, _nothing)
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(earlier_descriptor)
            writer.shutdown(socket.SHUT_WR)
            thread.join()


def _obey(reader: socket.socket, stop: Callable[[bool], object], signals: Collection[signal.Signals]) -> None:
    """Call `stop` for each signal whose number comes in, until the other end is closed."""
    now = False
    while numbers := reader.recv(64):
        for number in numbers:
            if number in signals:
                _log.info("%s: %s", signal.Signals(number).name, "leaving at once" if now else "finishing")
                stop(now)
                now = True


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Keep a signal from its default action; what it means is read from the socket."""
