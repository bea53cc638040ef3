"""The asyncio consumer, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import aio


def test_async_iteration(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(200))

    async def main() -> tuple[list[bytes], dict[str, object]]:
        seen = []
        async with aio.Consumer(broker.url, [queue], prefetch=20) as consumer:
            async for message in consumer:
                with message:
                    await asyncio.sleep(0)
                    seen.append(message.body)
                if len(seen) == 200:
                    consumer.stop()
        return seen, consumer.stats()

    seen, stats = asyncio.run(main())
    assert seen == numbered(200)
    assert stats["acked"] == 200
    assert broker.count(queue) == 0


def test_async_handlers_run_side_by_side(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(100))
    running = most = 0
    done: list[bytes] = []

    async def main() -> dict[str, object]:
        async with aio.Consumer(broker.url, [queue], workers=10, on_error="reject") as consumer:

            async def handler(message: object) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.002)
                running -= 1
                done.append(message.body)
                if len(done) == 100:
                    consumer.stop()
                if message.body == b"50":
                    raise ValueError("not this one")

            await consumer.run(handler)
        return consumer.stats()

    stats = asyncio.run(main())
    assert most == 10
    assert sorted(done, key=int) == numbered(100)
    assert (stats["acked"], stats["rejected"]) == (99, 1)
    assert broker.count(queue) == 0


def test_async_handlers_are_cancelled_when_their_time_is_over(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(3))

    async def main() -> dict[str, object]:
        async with aio.Consumer(broker.url, [queue], workers=3, shutdown_timeout=0.2) as consumer:

            async def handler(message: object) -> None:
                consumer.stop()
                await asyncio.get_running_loop().create_future()

            await consumer.run(handler)
        return consumer.stats()

    stats = asyncio.run(main())
    assert stats["acked"] == 0
    eventually(lambda: broker.count(queue) == 3)


def test_async_handlers_that_are_not_done_are_named_when_the_time_is_over(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(3))

    async def main() -> None:
        running = 0
        async with aio.Consumer(broker.url, [queue], workers=3, shutdown_timeout=1.0) as consumer:

            async def handler(message: object) -> None:
                nonlocal running
                running += 1
                if running == 2:
                    consumer.stop()
                if message.body != b"2":
                    await asyncio.get_running_loop().create_future()

            await consumer.run(handler)

    asyncio.run(main())
    assert "2 handlers did not finish within the shutdown timeout of 1 s" in caplog.text
    eventually(lambda: broker.count(queue) == 2)


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_a_run_ended_by_a_handler_does_not_look_finished(
    broker: Node, new_queue: Declare, error: type[BaseException]
) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(3))

    async def handler(message: object) -> None:
        raise error  # as awaiting a cancelled task does

    async def main() -> None:
        async with aio.Consumer(broker.url, [queue]) as consumer:
            with pytest.raises(error):
                await consumer.run(handler)

    asyncio.run(main())
    eventually(lambda: broker.count(queue) == 3)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_coroutine_that_survives_its_cancellation_does_not_hold_up_the_end(
    broker: Node, new_queue: Declare, cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And gets no message after the deadline; what it does with its own has no effect."""
    queue = new_queue("survivor")
    broker.publish(queue, numbered(4))
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message)
        if len(seen) == 2:
            both.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        if message.body == b"0":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(release.wait(), 60)

    async def main() -> float:
        nonlocal both, release
        both, release = asyncio.Event(), asyncio.Event()
        async with aio.Consumer(broker.url, [queue], workers=2, shutdown_timeout=2) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await asyncio.wait_for(both.wait(), 30)
            began = time.monotonic()
            if cancelled:
                running.cancel()
            else:
                consumer.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            took = time.monotonic() - began
            late = [message for message in seen if not message.settled]
            assert not any(message.ack() for message in seen)
            assert late == []
        release.set()
        return took

    both: asyncio.Event
    release: asyncio.Event
    assert asyncio.run(main()) < 2.5
    assert len(seen) == 2
    assert "1 handlers go on although they were cancelled" in caplog.text
    eventually(lambda: broker.count(queue) >= 3)


def test_the_end_of_one_worker_ends_the_others(broker: Node, new_queue: Declare) -> None:
    """They are cancelled, and take no more messages."""
    queue = new_queue("others")
    broker.publish(queue, numbered(10))
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message)
        if len(seen) == 2:
            raise asyncio.CancelledError  # as of a task that it awaited
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async def main() -> None:
        async with aio.Consumer(broker.url, [queue], workers=2, shutdown_timeout=2) as consumer:
            with pytest.raises(asyncio.CancelledError):
                await consumer.run(handle)
            await asyncio.sleep(0)

    asyncio.run(main())
    assert len(seen) == 2
