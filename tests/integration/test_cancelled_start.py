"""A consumer whose start, or end, is cancelled: no thread goes on consuming, and the broker has its messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.waiting import eventually, reach_in_loop

from fairsched import aio

COUNT = 50


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("fairsched-")]


def io_thread_runs(_consumer: Any) -> bool:
    return "fairsched-io" in threads()


def subscribed(consumer: Any) -> bool:
    return io_thread_runs(consumer) and bool(consumer._client.io_thread.channels.by_queue)


def delivered(consumer: Any) -> bool:
    return io_thread_runs(consumer) and consumer._client.io_thread.channels.unsettled() > 0


MOMENTS: dict[str, Callable[[Any], bool]] = {
    "at once": lambda _: True,
    "the I/O thread runs": io_thread_runs,
    "a channel is asked for": subscribed,
    "messages are here": delivered,
}


@pytest.fixture
def far(broker: Node) -> Iterator[str]:
    """The broker, so far away that there is time to cancel between its answers."""
    with Proxy(broker.port, delay=0.05) as proxy:
        yield behind(proxy, broker.url)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_start_that_is_cancelled_leaves_nothing(
    broker: Node, new_queue: Declare, far: str, moment: str, times: int
) -> None:
    queues = [new_queue("cancelled") for _ in range(2)]
    for queue in queues:
        broker.publish(queue, numbered(COUNT))
    entered = []

    async def main() -> None:
        consumer = aio.Consumer(far, queues, prefetch=20)

        async def consume() -> None:
            async with consumer:
                entered.append(consumer)
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await reach_in_loop(lambda: MOMENTS[moment](consumer))
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        # Not some time later: when the start has ended.
        assert not io_thread_runs(consumer)

    asyncio.run(main())
    assert not entered
    eventually(lambda: threads() == [])
    eventually(lambda: [broker.count(queue) for queue in queues] == [COUNT, COUNT])


class Full:
    """An event loop's executor all of whose threads are busy."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self.executor = ThreadPoolExecutor(1)
        self.executor.submit(self._free.wait, 60)

    def release(self) -> None:
        self._free.set()
        self.executor.shutdown()


@pytest.fixture
def full() -> Iterator[Full]:
    found = Full()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(found.release)
        yield found


def test_a_start_that_is_cancelled_before_there_was_a_thread_for_it(
    broker: Node, new_queue: Declare, full: Full
) -> None:
    queue = new_queue("cancelled")
    broker.publish(queue, numbered(COUNT))

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(full.executor)
        consumer = aio.Consumer(broker.url, [queue])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), consumer:
                # A start that needs no thread of the executor comes here.
                await asyncio.get_running_loop().create_future()
        assert not io_thread_runs(consumer)
        full.release()

    asyncio.run(main())
    eventually(lambda: threads() == [])
    eventually(lambda: broker.count(queue) == COUNT)


@pytest.mark.parametrize("ending", ["cancelled", "executor full"])
def test_an_end_that_is_cancelled_is_an_end(
    broker: Node, new_queue: Declare, far: str, full: Full, ending: str
) -> None:
    queue = new_queue("cancelled")
    broker.publish(queue, numbered(COUNT))

    async def main() -> None:
        consumer = aio.Consumer(far, [queue])
        inside, go = asyncio.Event(), asyncio.Event()

        async def consume() -> None:
            async with consumer:
                inside.set()
                await go.wait()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(inside.wait(), 30)
        if ending == "executor full":
            asyncio.get_running_loop().set_default_executor(full.executor)
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        assert not io_thread_runs(consumer)
        full.release()

    asyncio.run(main())
    eventually(lambda: broker.count(queue) == COUNT)


def test_a_coroutine_that_is_closed_while_it_starts_leaves_nothing(broker: Node, new_queue: Declare, far: str) -> None:
    """As when the event loop was stopped, and what is left of its tasks is collected."""
    queue = new_queue("closed")
    broker.publish(queue, numbered(COUNT))
    loop = asyncio.new_event_loop()
    consumer = aio.Consumer(far, [queue])
    asyncio._set_running_loop(loop)
    try:
        starting = consumer.__aenter__()
        starting.send(None)
        eventually(lambda: io_thread_runs(consumer))
    finally:
        asyncio._set_running_loop(None)
    starting.close()
    eventually(lambda: threads() == [])
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    eventually(lambda: broker.count(queue) == COUNT)
