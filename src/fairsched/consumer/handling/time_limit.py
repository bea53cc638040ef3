"""The time limit of handlers: a coroutine is cancelled, and an exception is raised in a thread."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fairsched.errors import TimeLimitExceeded
from fairsched.scheduling.greenlets import refuse

if TYPE_CHECKING:
    from fairsched.delivery._counters import Counters
    from fairsched.delivery._delivery import Message

    #: A handler at work: when it has to have ended, its message, and its limit. Equal to none but itself, since its
    #: message is.
    _Call = tuple[float, Message, float]

_log = logging.getLogger(__name__)


class TimeLimits:
    """Interrupts handlers that run for too long in threads.

    Parameters
    ----------
    seconds : mapping of str to float
        For which a handler may run, by queue; those of any other queue have no limit.
    counters : Counters
        Counts ``timed_out``.

    Notes
    -----
    A thread cannot be ended from outside, but CPython can raise an exception in it, when it executes Python code next.
    So a handler that waits in C code, such as that of a socket, gets the exception when that returns, and not before.
    It goes on in the meantime, and its message stays its own: it is settled when the handler has ended.

    The first to take a call out of `_running` decides: the worker that it is in time, the watcher that it is not.
    After the latter the worker waits until the exception is under way, and then for the exception if it has not come
    yet, so that it never comes in the code behind, or in the next message's handler. Taking it back instead would leave
    CPython before 3.13 looking for it before every few bytecodes of all threads, for good; a function that is traced
    then never begins.

    `around` is for `with` blocks of this object, in which the watching thread runs. Safe from any thread.

    Source: Python manual, "Initialization, Finalization, and Threads", ``PyThreadState_SetAsyncExc``.
    """

    def __init__(self, seconds: Mapping[str, float], counters: Counters) -> None:
        #: Single operations on it are atomic; handlers that run keep the limit that they began with.
        self.seconds = dict(seconds)
        self._shortest = min(seconds.values(), default=threading.TIMEOUT_MAX)
        self._counters = counters
        #: Handlers at work and their threads. Single operations on these two are atomic.
        self._running: dict[_Call, int] = {}
        #: Those of them that were interrupted, and have not ended; each with a lock that is released when the exception
        #: is under way. A lock and no event, whose Python code could be interrupted.
        self._late: dict[_Call, threading.Lock] = {}
        self._ended = False
        #: Set when this has ended, or there is a shorter limit.
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        refuse("the time limit of a plain handler interrupts", "leave it out, and limit what the handler waits for")
        self._ended = False
        self._news.clear()
        self._thread = threading.Thread(target=self._watch, name="fairsched-time-limit", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = True
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def take(self, seconds: Mapping[str, float]) -> None:
        """Limit handlers of other queues, too, from the next message on."""
        self.seconds.update(seconds)
        for queue in self.seconds.keys() - seconds.keys():
            self.seconds.pop(queue, None)
        shortest = min(seconds.values(), default=threading.TIMEOUT_MAX)
        if shortest < self._shortest:
            self._shortest = shortest
            self._news.set()
        self._shortest = shortest

    def around(self, handler: Callable[[Message], object]) -> Callable[[Message], object]:
        """Return a handler that raises TimeoutError when it has run for too long."""
        running, late, seconds = self._running, self._late, self.seconds
        monotonic, get_ident = time.monotonic, threading.get_ident

        def limited(message: Message) -> object:
            limit = seconds.get(message.queue)
            if limit is None:
                return handler(message)
            call = (monotonic() + limit, message, limit)
            leaving: BaseException | None = None
            try:
                try:
                    running[call] = get_ident()
                    return handler(message)
                except (SystemExit, KeyboardInterrupt) as error:
                    leaving = error
                    raise
                finally:
                    if running.pop(call, None) is None:
                        self._await_interrupt(call)
            except TimeLimitExceeded as error:
                if leaving is not None:  # a late handler may end its worker like any other
                    raise leaving from error
                raise TimeoutError(_exceeded(limit)) from error
            finally:
                if late:
                    late.pop(call, None)
                del leaving  # or it would hold the frame that holds it

        return limited

    def _await_interrupt(self, call: _Call) -> None:
        """Raise the exception that is under way, wherever in here it comes; if it came before, another."""
        self._late[call].acquire()
        while _raise_in(threading.get_ident(), TimeLimitExceeded):  # in place of the first, which may not have come
            pass
        raise TimeLimitExceeded

    def overdue(self) -> float | None:
        """Return for how many seconds a handler has run that was interrupted and is at work after twice its limit."""
        now = time.monotonic()
        beyond = [now - until + limit for until, _, limit in list(self._late) if now - until > limit]
        return max(beyond, default=None)

    def _watch(self) -> None:
        # A call that begins after a look ends no sooner than the shortest limit later.
        pause = self._shortest
        while True:
            self._news.wait(min(pause, threading.TIMEOUT_MAX))
            self._news.clear()
            if self._ended:
                return
            now, pause = time.monotonic(), self._shortest
            for call, thread in list(self._running.items()):
                if call[0] > now:
                    pause = min(pause, call[0] - now)
                else:
                    self._interrupt(call, thread)

    def _interrupt(self, call: _Call, thread: int) -> None:
        """Interrupt a handler, if it has not ended meanwhile."""
        told = self._late[call] = threading.Lock()  # there before the worker can look for it
        told.acquire()
        if self._running.pop(call, None) is None:
            self._late.pop(call, None)
            return
        _raise_in(thread, TimeLimitExceeded)
        told.release()
        self._counters.add("timed_out")
        _, message, limit = call
        _log.warning(
            "the handler of message %d of queue %r has run for %g s, its time limit, and is interrupted",
            message.delivery_tag, message.queue, limit,
        )  # fmt: skip


def limited_coroutine(
    handler: Callable[[Message], Awaitable[object]], seconds: Mapping[str, float], counters: Counters
) -> Callable[[Message], Awaitable[object]]:
    """Return a coroutine handler that is cancelled, and raises TimeoutError, when it has run for too long.

    How long that is, `seconds` says for each queue; a handler of any other has no limit.
    """

    async def limited(message: Message) -> object:
        result: object = None
        problem: TimeoutError | None = None
        limit = seconds.get(message.queue)
        if limit is None:
            return await handler(message)
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                result = await handler(message)
        except TimeoutError as error:
            problem = error
        if scope.expired():  # also if the handler went on after that
            counters.add("timed_out")
            raise TimeoutError(_exceeded(limit)) from problem
        if problem is not None:
            raise problem
        return result

    return limited


def _exceeded(seconds: float) -> str:
    return f"the handler exceeded its time limit of {seconds:g} s"


def _raise_in(thread: int, error: type[BaseException]) -> bool:
    """Raise an exception in a thread when it executes Python code next; False if there is no such thread."""
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error)))
