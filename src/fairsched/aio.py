"""The asyncio face of the consumer: ``async for`` and coroutine handlers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairsched.consumer.arguments import made_by
from fairsched.consumer.machine import Machine
from fairsched.consumer.settings import Settings, make_settings
from fairsched.errors import ShutDown

if TYPE_CHECKING:
    from fairsched._fairqueue import FairQueue
    from fairsched.consumer.message import Message

__all__ = ["Consumer"]


class Consumer:
    """Consumer(url, queues, **options)
    --

    Consume RabbitMQ queues in weighted fair order from asyncio.

    Parameters
    ----------
    url, queues, **options
        As for `fairsched.Consumer`; `workers` is the number of handlers that `run` awaits at a time, or pools of
        them, one per lane with an `ordering_key`.

    Raises
    ------
    ConfigurationError
        If an argument is not allowed.

    Notes
    -----
    Belongs to the event loop it is entered in; only `stop` and `stats`, and settling messages, are safe from other
    threads. Broker traffic runs in the same thread of its own as for the blocking consumer, so a handler that blocks
    the event loop delays neither heartbeats nor recovery. The loop is woken when somebody waits for a message, and
    never polls.

    Examples
    --------
    >>> async def main():  # doctest: +SKIP
    ...     async with Consumer(url, {"gold": 40, "free": 4}) as consumer:
    ...         async for message in consumer:
    ...             with message:
    ...                 await work(message.body)
    """

    @made_by(make_settings)
    def __init__(self, settings: Settings) -> None:
        self._machine = Machine(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._left = asyncio.Event()

    async def __aenter__(self) -> Consumer:
        self._loop = asyncio.get_running_loop()
        self._machine.on_change = self._on_change
        await asyncio.to_thread(self._machine.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._machine.close)

    def _on_change(self) -> None:
        self._call(self._look)

    def _call(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            # A closed loop has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

    def _look(self) -> None:
        if self._machine.stopping.is_set():
            self._stopped.set()
        if self._machine.abandoned:
            self._left.set()

    async def get(self) -> Message:
        """get()
        --

        Return the next message in fair order, waiting for it.

        Returns
        -------
        Message
            To be settled by the caller.

        Raises
        ------
        ConfigurationError
            If there are lanes, which only `run` serves: an `ordering_key` and more than one of `workers`.
        ShutDown
            If the consumer was stopped and nothing is buffered.
        FairschedError
            If consuming cannot go on.

        Notes
        -----
        O(1). Cancelling it loses no message.
        """
        return await self._next(self._machine.lanes.only())

    async def _next(self, lane: FairQueue, priority: int = 0) -> Message:
        """Return the next message of a lane, waiting for it."""
        machine = self._machine
        try:
            message = machine.try_get(lane, priority)
            return await self._wait(lane, priority) if message is None else message
        except ShutDown:
            if machine.error is not None:
                raise machine.error from None
            raise

    async def _wait(self, lane: FairQueue, priority: int) -> Message:
        """Wait among a lane's getters, whom a put wakes one by one; the loop is told by the thread that puts."""
        machine = self._machine
        turn = asyncio.Event()
        waiter = lane.call_when_ready(lambda: self._call(turn.set), priority=priority)
        try:
            while True:
                # The broker may be waiting too, for what is settled but not sent.
                machine.pump.request_flush()
                # Messages may be here while the turn is another queue's, which is waited for, but not for ever.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), lane.anticipated())
                turn.clear()
                message = machine.try_get(lane, priority)
                if message is not None:
                    return message
                waiter.again()
        finally:
            waiter.leave()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages in fair order until `stop`; the caller settles each, or uses it in a ``with``."""
        while True:
            try:
                message = await self.get()
            except ShutDown:
                return
            yield message
            # An iteration that always finds a message would otherwise never let other tasks run.
            await asyncio.sleep(0)

    async def run(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        """run(handler)
        --

        Await a handler for each message, `workers` of them at a time, until `stop`.

        Parameters
        ----------
        handler : coroutine function
            Called with one `Message`. Returning acks it unless it was settled or deferred; raising settles it as
            `on_error` says.

        Raises
        ------
        FairschedError
            If consuming cannot go on.

        Notes
        -----
        Inside ``async with``. After a stop, handlers have `shutdown_timeout` to finish; then they are cancelled and
        their messages requeued. So they are when `run` itself is cancelled.
        """
        if self._loop is None:
            raise RuntimeError("run inside 'async with consumer:', which connects and closes")
        machine = self._machine
        workers = enumerate(machine.settings.priorities)
        work = asyncio.gather(
            *(self._work(handler, machine.lanes.of_worker(number), priority) for number, priority in workers)
        )
        deadline = asyncio.create_task(self._deadline())
        ends: set[asyncio.Future[Any]] = {work, deadline}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline.cancel()
            finished = work.done()
            work.cancel()
            results = await asyncio.gather(work, return_exceptions=True)
        if finished and isinstance(results[0], Exception):
            raise results[0]
        if self._machine.error is not None:
            raise self._machine.error

    async def _deadline(self) -> None:
        """Return when a stopped consumer has used up its time."""
        await self._stopped.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), self._machine.remaining())

    async def _work(self, handler: Callable[[Message], Awaitable[object]], lane: FairQueue, priority: int) -> None:
        machine = self._machine
        while True:
            try:
                message = await self._next(lane, priority)
            except ShutDown:
                return
            begin = time.perf_counter_ns()
            try:
                await handler(message)
            except Exception as error:
                machine.settle_failure(message, error)
            except BaseException:
                message.nack()
                raise
            else:
                message.finish()
            machine.handled(lane, message, time.perf_counter_ns() - begin)
            # A handler that never waits would otherwise keep other tasks from running.
            await asyncio.sleep(0)

    def stop(self, now: bool = False) -> None:
        """stop(now=False)
        --

        Ask the consumer to end, as `fairsched.Consumer.stop` does.

        Parameters
        ----------
        now : bool
            Requeue what is buffered. So does a second call.

        Notes
        -----
        Returns at once. Safe from any thread, and from a handler.
        """
        self._machine.stop(now)

    def stats(self) -> dict[str, Any]:
        """Return the figures of this consumer, as `fairsched.Consumer.stats` does."""
        return self._machine.stats()
