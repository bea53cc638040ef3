"""Plain functions as handlers of the asyncio consumer: each worker has a thread that calls them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: What a call came to: what it returned, or what it raised.
_Outcome = tuple[object, BaseException | None]


class HandlerThread:
    """A plain handler in the shape of a coroutine function, called in a thread of its own.

    Parameters
    ----------
    handler : callable
        Called with one message at a time. An awaitable that it returns is awaited in the event loop.
    name : str
        Of the thread.

    Notes
    -----
    For one task of the event loop in which it is made. The thread is a daemon: a handler that never returns cannot
    keep the process from leaving. Cancelling a call leaves the handler running, and its outcome is dropped.
    """

    def __init__(self, handler: Callable[[Message], Any], name: str) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[contextvars.Context, Message, asyncio.Future[_Outcome]] | None]
        self._calls = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def __call__(self, message: Message) -> object:
        """Call the handler, and await what it returns if that can be awaited."""
        called: asyncio.Future[_Outcome] = self._loop.create_future()
        self._calls.put((contextvars.copy_context(), message, called))
        result, error = await called
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result

    def leave(self) -> None:
        """End the thread once its handler has returned."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            context, message, called = call
            try:
                outcome: _Outcome = context.run(self._handler, message), None
            except BaseException as error:
                outcome = None, error
            # A closed loop has no coroutine left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_tell, called, outcome)
            # Nothing of a message is kept until the next one comes.
            del call, context, message, called, outcome


def _tell(called: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
    if not called.done():
        called.set_result(outcome)
