"""SIGTERM and SIGINT: the first ends a consumer in good order, the next ones sooner. SIGHUP: it reads settings anew."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

#: Undo what the present blocks did to the signals, the inner ones first; for a child process.
_undoing: list[Callable[[], None]] = []

#: Signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The signal that asks a process to read its settings again; Windows has none.
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)


@contextmanager
def graceful(
    stop: Callable[[bool], object],
    signals: Collection[signal.Signals] = SIGNALS,
    *,
    reload: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Handle SIGTERM and SIGINT within a ``with`` block.

    Parameters
    ----------
    stop : callable
        ``stop(now)``: called with False by the first signal (finish, ack, close), with True by every later one
        (requeue, and with a third leave at once). `Consumer.stop` is made for it.
    signals : collection of signal.Signals
        Those to handle.
    reload : callable, optional
        ``reload()``: called by SIGHUP, which otherwise is not handled. What it raises is logged.

    Raises
    ------
    ValueError
        Outside the main thread, where Python cannot install signal handlers.

    Notes
    -----
    Not by way of Python's signal handlers: they run in the main thread only, perhaps while it holds a lock that `stop`
    needs, and not before it wakes up, since the kernel may give the second of two signals to another thread. The
    interpreter writes the signal's number to a socket instead (`signal.set_wakeup_fd`), and a thread of its own reads
    it and calls `stop`. Handlers and wake-up descriptor are restored at the end of the block, and in a child process at
    once: its signals are not for the parent, with whom it shares the socket.

    Examples
    --------
    >>> with graceful(consumer.stop):  # doctest: +SKIP
    ...     consumer.run(handler)
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handled = (*signals, RELOAD) if reload is not None and RELOAD is not None else tuple(signals)
    thread = threading.Thread(target=_obey, args=(reader, stop, signals, reload), name="fairsched-signals", daemon=True)
    earlier: dict[signal.Signals, Any] = {}
    with reader, writer:
        earlier_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def undo() -> None:
            for number, handler in earlier.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(earlier_descriptor)

        _undoing.insert(0, undo)
        thread.start()
        try:
            for number in handled:
                earlier[number] = signal.signal(number, _nothing)
            yield
        finally:
            if undo in _undoing:
                _undoing.remove(undo)
                undo()
                writer.shutdown(socket.SHUT_WR)
                thread.join()


def _obey(
    reader: socket.socket,
    stop: Callable[[bool], object],
    signals: Collection[signal.Signals],
    reload: Callable[[], object] | None,
) -> None:
    """Call `stop` or `reload` for each signal whose number comes in, until the other end is closed."""
    now = False
    while numbers := reader.recv(64):
        for number in numbers:
            if number in signals:
                _log.info("%s: %s", signal.Signals(number).name, "leaving as soon as can be" if now else "finishing")
                stop(now)
                now = True
            elif reload is not None and number == RELOAD:
                try:
                    reload()
                except Exception:  # or the next SIGTERM would find nobody
                    _log.exception("SIGHUP: failed")


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Keep a signal from its default action; what it means is read from the socket."""


#: Which signals a thread that forks had blocked before.
_blocked = threading.local()


def _before_fork() -> None:
    # One that comes to the child before it is itself again would be written to the parent's socket.
    _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, [*SIGNALS, signal.SIGHUP]) if _undoing else None


def _in_parent() -> None:
    if _blocked.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _in_child() -> None:
    while _undoing:
        _undoing.pop(0)()
    _in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
