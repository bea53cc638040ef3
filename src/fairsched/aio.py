"""The asyncio consumer, ``async for`` and coroutine handlers, and the asyncio publisher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fairsched.amqp._publishing import LoopConfirmation
from fairsched.config.arguments import made_by
from fairsched.config.queues import Queue
from fairsched.consumer.batching.arrow import ArrowBatch, ArrowColumns
from fairsched.consumer.batching.batch_methods import BatchMethods, MakeBatches
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.batching.pending_batch import PendingBatch
from fairsched.consumer.changing.uninterrupted import uninterrupted
from fairsched.consumer.client import DROPPED, Client
from fairsched.consumer.explanation import Explanation
from fairsched.consumer.handling.around import around_coroutine, around_thread
from fairsched.consumer.handling.failures import call_async
from fairsched.consumer.handling.handler_thread import HandlerThread
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.state import ConsumerState
from fairsched.delivery.handlers import is_coroutine_handler
from fairsched.errors import ShutDown
from fairsched.publisher.asynchronous import Publisher, check_loop

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue

__all__ = ["Consumer", "LoopConfirmation", "Publisher"]

_Taken = TypeVar("_Taken")

_log = logging.getLogger(__name__)

#: Nanoseconds for which a task is handed messages that are here before other tasks may run.
_LONGEST_TURN = 500_000
#: How often a thread that waits for a coroutine looks whether the consumer was stopped, in seconds.
_LOOK = 0.5


class Consumer(BatchMethods[AsyncIterator[MessageBatch], AsyncIterator[ArrowBatch]]):
    """Consume RabbitMQ queues in weighted fair order from asyncio.

    Parameters
    ----------
    url, queues, **options
        As for `fairsched.Consumer`; `workers` is the number of handlers that `run` awaits at a time, or pools of them;
        with an `ordering_key` each worker has a queue of its own.

    Raises
    ------
    ConfigurationError
        If an argument is invalid.

    Notes
    -----
    The consumer belongs to the event loop in which it is entered. Only `stop`, `set_weight`, `pause`, `resume`,
    `explain`, `stats`, `state` and the settling of messages are safe from other threads. Broker traffic runs in a
    separate thread, as for the blocking consumer, so a handler that blocks the event loop delays neither heartbeats nor
    recovery. The event loop is woken only if a task waits for a message, and never polls.

    Examples
    --------
    >>> async def main():  # doctest: +SKIP
    ...     async with Consumer(url, {"gold": 40, "free": 4}) as consumer:
    ...         async for message in consumer:
    ...             with message:
    ...                 await work(message.body)
    """

    @made_by(ConsumerSettings)
    def __init__(self, settings: ConsumerSettings) -> None:
        self._client = client = Client(settings)
        alive = weakref.ref(self)
        client.orphaned = lambda: _why_orphaned(alive())
        client.on_change = lambda: _tell(alive())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._left = asyncio.Event()

    async def __aenter__(self) -> Consumer:
        loop = self._loop = asyncio.get_running_loop()
        client = self._client
        client.wait_for = lambda awaitable: _wait_for(awaitable, loop, client.stopping.is_set)
        try:
            problem = await self._in_thread(self._client.start)
            if problem is not None:
                raise problem
        except BaseException as error:
            # If this was cancelled, the start goes on in its thread until the close ends it.
            await self._close(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        check_loop(self._loop, "an aio.Consumer")
        await self._close(error)

    async def _close(self, reason: BaseException | None) -> None:
        """Close because of an exception, or None; what cancels this meanwhile is raised when all is closed."""
        closing = self._in_thread(lambda: self._client.close(at_once=reason is not None))
        if isinstance(reason, GeneratorExit):
            return  # A coroutine that is closed must not wait.
        cancelled: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError as error:
                cancelled = error
                self._client.abandon()
        problem = cancelled or closing.result()
        if problem is not None:
            raise problem

    def _in_thread(self, function: Callable[[], object]) -> asyncio.Future[BaseException | None]:
        """Call a function in a thread of its own, since those of the loop's executor may all be busy, or gone.

        The future gets what the function raised, or None.
        """
        assert self._loop is not None
        called: asyncio.Future[BaseException | None] = self._loop.create_future()

        def call() -> None:
            problem: BaseException | None = None
            try:
                function()
            except BaseException as error:
                problem = error

            def tell() -> None:
                if not called.done():
                    called.set_result(problem)

            self._call(tell)

        threading.Thread(target=call, name="fairsched-control", daemon=True).start()
        return called

    def __del__(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.warn_if_running()

    def _call(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            # A closed loop has no coroutine left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

    def _look(self) -> None:
        if self._client.stopping.is_set():
            self._stopped.set()
        if self._client.abandoned:
            self._left.set()

    async def get(self) -> Message:
        """Wait for the next message in fair order and return it.

        Returns
        -------
        Message
            The caller settles it.

        Raises
        ------
        ConfigurationError
            If the consumer has worker queues, which only `run` serves: an `ordering_key` and more than one worker.
        ShutDown
            If the consumer was stopped and no message is buffered.
        FairschedError
            If consuming cannot continue.
        RuntimeError
            Outside the ``async with`` block, and in a child process that was forked after it was entered.

        Notes
        -----
        O(1). Cancelling the call loses no message.
        """
        self._check_usable()
        return await self._next(self._client.worker_queues.only())

    def _check_usable(self) -> None:
        if self._loop is None:
            raise RuntimeError("consume inside 'async with consumer:', which connects and closes")
        self._client.check_process()
        self._client.check_open()
        check_loop(self._loop, "an aio.Consumer")

    async def _next(self, worker_queue: FairQueue, priority: int = 0) -> Message:
        """Return the next message of a worker queue, waiting for it."""
        try:
            message = self._client.try_get(worker_queue, priority)
            return message if message is not None else await self._wait_one(worker_queue, priority)
        except ShutDown:
            self._raise_problem()
            raise

    def _raise_problem(self) -> None:
        """Raise why consuming cannot go on, if that is why there are no more messages."""
        if self._client.error is not None:
            raise self._client.error from None

    async def _wait_one(self, worker_queue: FairQueue, priority: int = 0) -> Message:
        """Wait as `_wait` does, for a message."""
        return await self._wait(worker_queue, priority, lambda: self._client.try_get(worker_queue, priority))

    async def _wait(self, worker_queue: FairQueue, priority: int, take: Callable[[], _Taken | None]) -> _Taken:
        """Wait among a worker queue's getters, which a put wakes one by one; the thread that puts notifies the loop.

        Returns the first that `take` finds.
        """
        settlements = self._client.settlements
        turn = asyncio.Event()
        waiter = worker_queue.call_when_ready(lambda: self._call(turn.set), priority=priority)
        try:
            while True:
                # The broker may be waiting too, for what is settled but not sent.
                settlements.send()
                # Messages may be here while the turn is another queue's, which is waited for, but not for ever.
                with settlements.lent, contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), worker_queue.anticipated())
                turn.clear()
                found = take()
                if found:
                    return found
                waiter.again()
        finally:
            waiter.leave()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages in fair order until `stop`; the caller settles each, or uses it in a ``with``."""
        self._check_usable()
        client, turn = self._client, _Turn(self._client)
        worker_queue, take = client.worker_queues.only(), client.try_get
        while True:
            try:
                # Most messages are here already: a coroutine for each would cost a third more.
                message = take(worker_queue)
                if message is None:
                    message = await self._wait_one(worker_queue)
            except ShutDown:
                self._raise_problem()
                return
            yield message
            if turn.is_over(time.perf_counter_ns()):
                await turn.next()

    def _arrow_columns(self, headers: Sequence[str], properties: Sequence[str]) -> MakeBatches:
        return ArrowColumns(list(self._client.settings.windows), headers, properties).batches

    def _each_batch(self, make: MakeBatches, size: int, wait: float) -> AsyncIterator[Any]:
        self._check_usable()
        return self._batches(make, self._client.worker_queues.only(), size, wait)

    async def _batches(self, make: MakeBatches, worker_queue: FairQueue, size: int, wait: float) -> AsyncIterator[Any]:
        client = self._client
        handled = partial(client.handled_many, worker_queue)
        while True:
            try:
                messages = await self._next_many(worker_queue, size, wait)
            except ShutDown:
                self._raise_problem()
                return
            if messages:
                with contextlib.closing(make(messages, client.failed_many, handled)) as batches:
                    for batch in batches:
                        yield batch
            await asyncio.sleep(0)

    async def _next_many(self, worker_queue: FairQueue, size: int, wait: float) -> list[Message]:
        """Return the messages of a batch, waiting for the first, and for `wait` seconds for more."""
        client = self._client
        with PendingBatch(client, worker_queue, size, wait) as pending:
            pending.add(client.try_get_many(worker_queue, size) or await self._wait_many(worker_queue, size))
            try:
                while missing := pending.missing():
                    pending.add(await self._wait_many(worker_queue, missing, pending.left()))
            except ShutDown:
                if client.returning:
                    raise
            return pending.messages()

    async def _wait_many(self, worker_queue: FairQueue, limit: int, seconds: float | None = None) -> list[Message]:
        """Wait as `_wait` does, for up to `limit` messages; an empty list when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._wait(worker_queue, 0, lambda: self._client.try_get_many(worker_queue, limit))
        return []

    async def run(self, handler: Callable[[Message], object]) -> None:
        """Call a handler for each message, up to `workers` at a time, until `stop`.

        Parameters
        ----------
        handler : coroutine function, or plain function
            Called with one `Message`. A coroutine function is awaited in the event loop. A plain function runs in its
            worker's own thread, so it may block; an awaitable that it returns is awaited in the event loop. When the
            handler returns, the message is acked unless it was settled or deferred; when the handler raises an
            `Exception`, the message is settled as `on_error` says.

        Raises
        ------
        ConfigurationError
            If `handler` is a generator function, or returns an object whose code would never run. The message is
            requeued.
        FairschedError
            If consuming cannot continue.
        BaseException
            The exception that ended a worker, such as the CancelledError of a task that the handler awaited.

        Notes
        -----
        Call it inside the ``async with`` block. After a stop, handlers have `shutdown_timeout`, minus the part reserved
        for closing, to finish; then they are cancelled and their messages requeued. The same happens if `run` itself is
        cancelled, or a worker ends by an exception. `run` waits for a handler that survives its cancellation, such as
        one that catches CancelledError, during half of the time that is left; then it returns, and what the handler
        does with its message has no effect. The end of the ``async with`` block waits for deferred messages. A plain
        function cannot be cancelled: it continues in its thread, and its settlements then have no effect.
        """
        awaited = is_coroutine_handler(handler)
        self._check_usable()
        client = self._client
        priorities = client.settings.priorities
        settings, limits, threads = client.settings, None if awaited else client.limits, list[HandlerThread]()
        if not awaited:
            plain = around_thread(settings, handler, limits)
            threads = [HandlerThread(plain, f"fairsched-worker-{n}") for n in range(len(priorities))]
        seconds = None if client.limits is None else client.limits.seconds
        calls: Sequence[Any] = [
            around_coroutine(settings, call, client.counters, threaded=not awaited, seconds=seconds)
            for call in (threads if not awaited else [handler] * len(priorities))
        ]
        hands = [_Hand() for _ in priorities]
        tasks = [
            asyncio.ensure_future(self._work(call, client.worker_queues.of_worker(number), priority, hands[number]))
            for number, (call, priority) in enumerate(zip(calls, priorities, strict=True))
        ]
        work = asyncio.gather(*tasks)
        deadline = asyncio.create_task(self._deadline())
        ends: set[asyncio.Future[Any]] = {work, deadline}
        watching = contextlib.ExitStack()
        try:
            if limits is not None:
                watching.enter_context(limits)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline.cancel()
            finished = work.done()
            if deadline.done() and not client.abandoned and not finished:
                _log.warning(
                    "%d handlers did not finish within the shutdown timeout of %g s: they are cancelled, and their "
                    "messages requeued",
                    sum(not task.done() for task in tasks), client.settings.options.shutdown_timeout,
                )  # fmt: skip
            for thread in threads:
                thread.leave()
            watching.close()
            work.add_done_callback(lambda work: work.cancelled() or work.exception())  # or it is never asked for
            await self._leave(tasks, hands)
        if finished:
            work.result()
        if self._client.error is not None:
            raise self._client.error

    async def _leave(self, tasks: Sequence[asyncio.Future[None]], hands: Sequence[_Hand]) -> None:
        """Cancel workers, and wait until they have ended, but not beyond the shutdown timeout: a handler may go on."""
        for task, hand in zip(tasks, hands, strict=True):
            hand.ended = True
            task.cancel()
        try:
            await asyncio.wait(tasks, timeout=self._client.time_to_leave())
        finally:
            left = [hand.message for hand in hands if hand.message is not None]
            for message in left:
                message.fail(asyncio.CancelledError())
        if left:
            _log.warning(
                "%d handlers go on although they were cancelled; their messages are requeued, and what the handlers do "
                "with them has no effect", len(left),
            )  # fmt: skip

    async def _deadline(self) -> None:
        """Return when a stopped consumer has used up its time."""
        await self._stopped.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), self._client.remaining())

    async def _work(
        self, handler: Callable[[Message], Awaitable[object]], worker_queue: FairQueue, priority: int, hand: _Hand
    ) -> None:
        client, turn = self._client, _Turn(self._client)
        take, handled, clock = client.try_get, client.handled, time.perf_counter_ns
        while not hand.ended:  # a handler may survive its cancellation
            try:
                message = take(worker_queue, priority)
                if message is None:
                    message = await self._wait_one(worker_queue, priority)
            except ShutDown:
                self._raise_problem()
                return
            begin = clock()
            hand.message = message
            await call_async(handler, message)
            hand.message = None
            end = clock()
            handled(worker_queue, message, end - begin)
            if turn.is_over(end):
                await turn.next()

    def stop(self, now: bool = False) -> None:
        """Ask the consumer to stop, as `fairsched.Consumer.stop` does.

        Parameters
        ----------
        now : bool
            Return buffered messages to their queues at once; running handlers finish and settle. If a second call asks
            for no more than an earlier one, running handlers are cancelled.

        Notes
        -----
        Returns at once. Safe from any thread, and from a handler.
        """
        self._client.stop(now)

    def set_weight(self, queue: Hashable, weight: int) -> None:
        """Change the weight of a queue, or with a `key` of a tenant, as `fairsched.Consumer.set_weight` does."""
        self._client.set_weight(queue, weight)

    async def add_queue(self, queue: str | Queue) -> None:
        """Consume another queue, from now on, too, as `fairsched.Consumer.add_queue` does.

        Cancelling the call does not undo it.
        """
        one = queue if isinstance(queue, Queue) else Queue(queue)
        self._client.settings.check_no_lane(one.name)
        added = uninterrupted(lambda: self._client.add_queues({one.name: one}))
        await asyncio.wrap_future(added[one.name])

    async def remove_queue(self, queue: str) -> None:
        """Stop consuming a queue, and forget it, as `fairsched.Consumer.remove_queue` does.

        Cancelling the call does not undo it.
        """
        self._client.settings.check_no_lane(queue)
        await asyncio.wrap_future(uninterrupted(lambda: self._client.begin_removal(queue)))

    def pause(self, queue: str) -> None:
        """Stop consuming a queue until `resume`, as `fairsched.Consumer.pause` does."""
        self._client.pause(queue, True)

    def resume(self, queue: str) -> None:
        """Consume a paused queue again, as `fairsched.Consumer.resume` does."""
        self._client.pause(queue, False)

    def explain(self, name: Hashable) -> Explanation:
        """Explain why a queue, or with a `key` a tenant, waits, as `fairsched.Consumer.explain` does.

        Safe from any thread.
        """
        return self._client.explain(name)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of this consumer, as `fairsched.Consumer.stats` does."""
        return self._client.stats()

    @property
    def state(self) -> ConsumerState:
        """The present state of this consumer, as of `fairsched.Consumer.state`.

        Safe from any thread; O(number of queues).
        """
        return self._client.state()


class _Hand:
    """The messages that a worker has in hand, and whether it is to take more."""

    __slots__ = ("ended", "message")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.ended = False


class _Turn:
    """A task's turn in the event loop: messages that are here are handed out without giving way, but not for long.

    One that always finds a message would otherwise never let other tasks run, nor the I/O thread, which waits for the
    GIL when it is to send what was settled.
    """

    __slots__ = ("_settlements", "_until")

    def __init__(self, client: Client) -> None:
        self._settlements = client.settlements
        self._until = time.perf_counter_ns() + _LONGEST_TURN

    def is_over(self, now: int) -> bool:
        """Whether it is others' turn at a time of `time.perf_counter_ns`."""
        return now >= self._until or self._settlements.flush_requested

    async def next(self) -> None:
        """Let others run."""
        await asyncio.sleep(0)
        self._until = time.perf_counter_ns() + _LONGEST_TURN


def _wait_for(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop, over: Callable[[], bool]) -> Any:
    """Return the result of an awaitable that runs in an event loop, from another thread; cancel it if it is over."""

    async def run() -> Any:
        return await awaitable

    running = asyncio.run_coroutine_threadsafe(run(), loop)
    while True:
        try:
            return running.result(_LOOK)
        except TimeoutError:
            if running.done():
                raise
            if over() or loop.is_closed():
                running.cancel()
                raise ShutDown("the consumer was stopped") from None


def _why_orphaned(consumer: Consumer | None) -> str:
    """Say why a consumer cannot be used any more, if so."""
    if consumer is None:
        return DROPPED
    loop = consumer._loop
    return "its event loop is closed" if loop is not None and loop.is_closed() else ""


def _tell(consumer: Consumer | None) -> None:
    """Have a consumer look at what has changed, in its event loop, if there is one still."""
    if consumer is not None:
        consumer._call(consumer._look)
