"""SIGTERM and SIGINT: the first ends a consumer in good order, the next ones sooner. SIGHUP: it reads settings anew."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any

from fairsched.scheduling.greenlets import patched_by

_log = logging.getLogger(__name__)

#: Bytes that are read at a time: as many as a pipe can hold.
_ROOM = 65_536
#: Seconds that the end of a block waits for a reload that is under way.
_RELOAD_PATIENCE = 1.0

#: Undo what the present blocks did to the signals, the inner ones first; for a child process.
_undoing: list[Callable[[], None]] = []

#: Signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The signal that asks a process to read its settings again; Windows has none.
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)


@contextlib.contextmanager
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
        ``reload()``: called by SIGHUP, which otherwise is not handled; in a thread of its own, since it may take long
        to read a file, and once for all that come while it runs. What it raises is logged.

    Raises
    ------
    ValueError
        Outside the main thread, where Python cannot install signal handlers.

    Notes
    -----
    Not by way of Python's signal handlers: they run in the main thread only, perhaps while it holds a lock that `stop`
    needs, and not before it wakes up, since the kernel may give the second of two signals to another thread. The
    interpreter writes the signal's number to a pipe instead (`signal.set_wakeup_fd`), and a thread of its own reads it
    and calls `stop`. A pipe, since it has room for 65 536 numbers and a socket for some hundred: what finds no room is
    lost, a SIGTERM too. Handlers and wake-up descriptor are restored at the end of the block, and in a child process at
    once: its signals are not for the parent, with whom it shares the pipe.

    Examples
    --------
    >>> with graceful(consumer.stop):  # doctest: +SKIP
    ...     consumer.run(handler)
    """
    handled = (*signals, RELOAD) if reload is not None and RELOAD is not None else tuple(signals)
    earlier: dict[signal.Signals, Any] = {}
    reader, writer = os.pipe()
    try:
        if hasattr(os, "set_blocking"):  # Windows has it from 3.12 on, and needs none
            os.set_blocking(writer, False)
        obeying = _Obeying(reader, stop, signals, reload)
        earlier_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def undo() -> None:
            for number, handler in earlier.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(earlier_descriptor)

        _undoing.insert(0, undo)
        obeying.start()
        try:
            for number in handled:
                earlier[number] = signal.signal(number, _nothing)
            yield
        finally:
            if undo in _undoing:
                _undoing.remove(undo)
                undo()
                obeying.end(writer)
    finally:
        os.close(reader)
        os.close(writer)


class _Obeying:
    """Calls `stop` or `reload` for the signals whose numbers come out of a pipe, each in a thread of its own."""

    def __init__(
        self,
        reader: int,
        stop: Callable[[bool], object],
        signals: Collection[signal.Signals],
        reload: Callable[[], object] | None,
    ) -> None:
        self._reader = reader
        self._stop = stop
        self._signals = signals
        self._reload = reload
        self._reload_wanted = threading.Event()
        self._ended = threading.Event()
        self._reading = threading.Thread(target=self._read, name="fairsched-signals", daemon=True)
        # Nothing may keep the reader from its work: numbers would be lost, and a SIGTERM would wait for a slow file.
        self._reloading = threading.Thread(target=self._reload_each, name="fairsched-reload", daemon=True)

    def start(self) -> None:
        self._reading.start()
        if self._reload is not None:
            self._reloading.start()

    def end(self, writer: int) -> None:
        """End the threads; no more signals come."""
        self._ended.set()
        self._reload_wanted.set()
        with contextlib.suppress(BlockingIOError):  # it is full, so the reader comes without
            os.write(writer, b"\0")
        self._reading.join()
        if self._reload is not None:
            self._reloading.join(_RELOAD_PATIENCE)

    def _read(self) -> None:
        now = False
        with selectors.DefaultSelector() if patched_by() else contextlib.nullcontext() as selector:
            if selector is not None:
                selector.register(self._reader, selectors.EVENT_READ)
            while not self._ended.is_set():
                if selector is not None:  # where threads are greenlets, a read would keep the others from running
                    selector.select()
                numbers = os.read(self._reader, _ROOM)
                for number in numbers:
                    if number in self._signals:
                        _log.info(
                            "%s: %s", signal.Signals(number).name, "leaving as soon as can be" if now else "finishing"
                        )
                        self._stop(now)
                        now = True
                if RELOAD is not None and RELOAD in numbers:
                    self._reload_wanted.set()

    def _reload_each(self) -> None:
        while self._reload_wanted.wait() and not self._ended.is_set():
            self._reload_wanted.clear()
            assert self._reload is not None
            try:
                self._reload()
            except Exception:  # or nothing would handle the next SIGHUP
                _log.exception("SIGHUP: failed")


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Keep a signal from its default action; what it means is read from the socket."""


#: Which signals a thread that forks had blocked before.
_blocked = threading.local()


def _before_fork() -> None:
    # One that comes to the child before it is itself again would be written to the parent's pipe.
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
