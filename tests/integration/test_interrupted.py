"""Only an `Exception` is a handler's failure: what ends the program or a task returns the message."""

from __future__ import annotations

import asyncio

import pytest
from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import aio
from fairsched.consumer import Consumer

ENDINGS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
#: Each of these drops a message whose handler failed, for want of a dead-letter exchange.
POLICIES = ["reject", lambda message, _error: message.reject()]


def end_a_block(consumer: Consumer, error: type[BaseException]) -> None:
    with consumer:
        for message in consumer:
            with message:
                raise error


def assert_all_returned(stats: dict[str, int]) -> None:
    """The message went back: each time, for it may come again before the consumer has left its queue."""
    assert stats["nacked"] == stats["received"] >= 1


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_with_block_that_is_ended_returns_its_message(
    broker: Node, new_queue: Declare, ending: type[BaseException], policy: object
) -> None:
    queue = new_queue("ended")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url, [queue], on_error=policy)
    with pytest.raises(ending):
        end_a_block(consumer, ending)
    assert (consumer.stats()["rejected"], consumer.stats()["errors"]) == (0, 0)
    eventually(lambda: broker.count(queue) == 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_is_ended_returns_its_message(
    broker: Node, new_queue: Declare, ending: type[BaseException]
) -> None:
    queue = new_queue("ended")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url, [queue], on_error="reject")

    def handler(message: object) -> None:
        raise ending

    with pytest.raises(ending):
        consumer.run(handler)
    assert (consumer.stats()["rejected"], consumer.stats()["errors"]) == (0, 0)
    eventually(lambda: broker.count(queue) == 1)


def test_an_on_error_function_that_is_ended_returns_the_message(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("ended")
    broker.publish(queue, [b"x"])

    def leave(message: object, error: BaseException) -> None:
        raise SystemExit(3)

    consumer = Consumer(broker.url, [queue], on_error=leave)
    with pytest.raises(SystemExit):
        end_a_block(consumer, ValueError)
    assert_all_returned(consumer.stats())
    eventually(lambda: broker.count(queue) == 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["iterate", "run"])
def test_a_cancelled_task_returns_its_message(broker: Node, new_queue: Declare, policy: object, how: str) -> None:
    queue = new_queue("cancelled")
    broker.publish(queue, [b"x"])

    async def main() -> dict[str, int]:
        consumer = aio.Consumer(broker.url, [queue], on_error=policy)
        begun = asyncio.Event()

        async def work(message: object) -> None:
            with message:
                begun.set()
                await asyncio.get_running_loop().create_future()

        async def consume() -> None:
            async with consumer:
                if how == "run":
                    await consumer.run(work)
                async for message in consumer:
                    await work(message)

        task = asyncio.create_task(consume())
        await asyncio.wait_for(begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return consumer.stats()

    stats = asyncio.run(main())
    assert (stats["rejected"], stats["errors"]) == (0, 0)
    assert_all_returned(stats)
    eventually(lambda: broker.count(queue) == 1)


def test_a_generator_that_is_closed_returns_its_message(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("closed")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url, [queue], on_error="reject")

    def bodies() -> object:
        with consumer:
            for message in consumer:
                with message:
                    yield message.body

    generator = bodies()
    assert next(generator) == b"x"
    generator.close()
    assert consumer.stats()["rejected"] == 0
    eventually(lambda: broker.count(queue) == 1)
