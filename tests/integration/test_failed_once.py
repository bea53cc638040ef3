"""Handlers that survive the failure of a message, or fail twice: at a broker nothing is acknowledged that failed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Broker, numbered
from support.waiting import eventually

from fairsched import Consumer, Retry, aio

MESSAGES = 10
DEEDS = ("ack", "reject", "nack", "defer", "finish")


class Failing:
    """Counts how often each message failed."""

    def __init__(self, through: bool = False) -> None:
        self.calls: Counter[bytes] = Counter()
        self.through = through

    def __call__(self, message: Any) -> None:
        """Fail inside a block, and survive it unless `through`."""
        self.calls[message.body] += 1
        with contextlib.nullcontext() if self.through else contextlib.suppress(ValueError), message:
            raise ValueError("bad")

    def all_failed(self, times: int) -> bool:
        return len(self.calls) == MESSAGES and min(self.calls.values()) >= times


def by_run(consumer: Consumer, handler: Failing) -> None:
    consumer.run(handler)


def by_iterating(consumer: Consumer, handler: Failing) -> None:
    with consumer:
        for message in consumer:
            handler(message)
            message.ack()


def by_batches(consumer: Consumer, handler: Failing) -> None:
    with consumer:
        acked_after_failure(consumer.batches(5, 0.01), handler)


def by_arrow_batches(consumer: Consumer, handler: Failing) -> None:
    pytest.importorskip("pyarrow")
    with consumer:
        acked_after_failure(consumer.arrow_batches(5, 0.01), handler)


def acked_after_failure(batches: Iterable[Any], handler: Failing) -> None:
    for batch in batches:
        handler.calls.update(message.body for message in batch)
        with contextlib.suppress(ValueError), batch:
            raise ValueError("bad")
        assert batch.ack() == 0


def nested_in_batches(consumer: Consumer, handler: Failing) -> None:
    with consumer:
        for batch in consumer.batches(5, 0.01):
            with batch:
                for message in batch:
                    handler(message)


def by_asyncio(consumer: aio.Consumer, handler: Failing) -> None:
    async def main() -> None:
        async with consumer:
            await consumer.run(handle)

    async def handle(message: Any) -> None:
        handler(message)

    asyncio.run(main())


def by_asyncio_in_threads(consumer: aio.Consumer, handler: Failing) -> None:
    async def main() -> None:
        async with consumer:
            await consumer.run(handler)

    asyncio.run(main())


WAYS: list[tuple[type[Any], Callable[[Any, Failing], None], dict[str, Any]]] = [
    (Consumer, by_run, {}),
    (Consumer, by_run, {"workers": 4, "ordering_key": lambda message: message.body}),
    (Consumer, by_iterating, {}),
    (Consumer, by_batches, {}),
    (Consumer, by_arrow_batches, {}),
    (Consumer, nested_in_batches, {}),
    (aio.Consumer, by_asyncio, {"workers": 3}),
    (aio.Consumer, by_asyncio_in_threads, {"workers": 2}),
]


@contextlib.contextmanager
def consuming(consumer: Any, way: Callable[[Any, Failing], None], handler: Failing) -> Any:
    thread = threading.Thread(target=way, args=(consumer, handler))
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(("kind", "way", "options"), WAYS)
def test_a_message_that_fails_again_and_again_stays_in_its_queue(
    broker: Broker, new_queue: Declare, kind: type[Any], way: Any, options: dict[str, Any]
) -> None:
    queue = new_queue("failing")
    broker.publish(queue, numbered(MESSAGES))
    consumer, handler = kind(broker.url, [queue], **options), Failing()
    with consuming(consumer, way, handler):
        eventually(lambda: handler.all_failed(3))
    stats = consumer.stats()
    assert (stats["acked"], stats["rejected"]) == (0, 0)
    eventually(lambda: broker.count(queue) == MESSAGES)


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize(("kind", "way", "options"), WAYS[:2] + WAYS[-2:])
def test_a_retry_is_one_attempt_however_often_its_handler_fails(
    broker: Broker, new_queue: Declare, kind: type[Any], way: Any, options: dict[str, Any], through: bool
) -> None:
    queue = new_queue("retried")
    broker.publish(queue, numbered(MESSAGES))
    consumer = kind(broker.url, [queue], retry=Retry(3, backoff=0.05, jitter=False), **options)
    handler = Failing(through)
    with consuming(consumer, way, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == MESSAGES)
    stats = consumer.stats()
    assert (stats["errors"], stats["acked"], stats["retried"]) == (3 * MESSAGES, 3 * MESSAGES, 2 * MESSAGES)
    assert set(handler.calls.values()) == {3}
    assert broker.count(f"{queue}.dead-letter") == MESSAGES
    assert broker.count(queue) == 0


def test_a_message_whose_copy_is_not_confirmed_stays_in_its_queue(mortal: Broker) -> None:
    """Copies wait for the end of an alarm, and then the broker is gone: the originals are still there."""
    mortal.declare("q")
    mortal.publish("q", numbered(MESSAGES), delivery_mode=2)
    consumer = Consumer(mortal.url, ["q"], retry=Retry(3, backoff=60), shutdown_timeout=2)

    def handler(message: Any) -> None:
        with contextlib.suppress(ValueError), message:
            raise ValueError("bad")
        assert not getattr(message, DEEDS[int(message.body) % len(DEEDS)])()

    thread = threading.Thread(target=consumer.run, args=[handler])
    mortal.raise_memory_alarm()
    thread.start()
    eventually(lambda: consumer.stats()["retrying"] == MESSAGES)
    assert consumer.stats()["acked"] == 0
    mortal.restart()
    consumer.stop(now=True)
    thread.join(30)
    assert not thread.is_alive()
    stats = consumer.stats()
    letters = sum(count for name, count in mortal.messages().items() if name.startswith("q"))
    assert letters >= MESSAGES  # a copy that was published as the broker came back is one more
    assert stats["acked"] == stats["retried"]
