"""`Consumer.get`, with and without a timeout, at the end of a consumer, and interrupted."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from types import CodeType, FrameType
from typing import Any

import pytest
from support.proxy import Proxy, behind
from support.rabbitmq import Node, eventually, numbered

from fairsched import ConfigurationError, FairQueue, aio
from fairsched.consumer import Consumer
from fairsched.consumer.batching.batches import plain_batches
from fairsched.consumer.batching.pending_batch import PendingBatch, each_batch, take
from fairsched.errors import ShutDown

Declare = Callable[..., str]


def test_messages_come_in_the_order_of_an_iteration(broker: Node, new_queue: Declare) -> None:
    queues = {new_queue("gold"): 3, new_queue("free"): 1}
    for queue in queues:
        broker.publish(queue, numbered(40))
    with Consumer(broker.url, queues, prefetch=400) as consumer:
        eventually(lambda: consumer.stats()["buffered"] == 80)
        found = []
        for _ in range(80):
            with consumer.get(timeout=30) as message:
                found.append((message.queue, message.body))
    orders = []
    for first in queues:
        served = FairQueue(queues)
        for queue in sorted(queues, key=lambda queue: queue != first):
            served.put_many(queue, numbered(40))
        orders.append(list(served.get_many(80)))
    assert found in orders
    assert not any(broker.count(queue) for queue in queues)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_without_a_message_in_time_it_is_empty(broker: Node, new_queue: Declare, timeout: float) -> None:
    queue = new_queue("quiet")
    with Consumer(broker.url, [queue]) as consumer:
        begin = time.monotonic()
        with pytest.raises(Empty):
            consumer.get(timeout)
        assert time.monotonic() - begin >= timeout
        broker.publish(queue, [b"x"])
        consumer.get(30).ack()


def test_a_long_wait_keeps_nothing_of_its_turns(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def counted(found: list[Any], *arguments: Any) -> None:
        lengths.append(len(found))
        take(found, *arguments)

    monkeypatch.setattr("fairsched.consumer.consumer.SLICE", 0.001)
    monkeypatch.setattr("fairsched.consumer.consumer.take", counted)
    with Consumer(broker.url, [new_queue("quiet")]) as consumer, pytest.raises(Empty):
        consumer.get(0.2)
    assert len(lengths) > 5
    assert not any(lengths)


def test_a_wait_ends_with_a_message_that_arrives(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("later")
    with Consumer(broker.url, [queue]) as consumer:
        later = threading.Timer(1.2, broker.publish, (queue, [b"x"]))  # later than the longest single wait
        later.start()
        message = consumer.get()
        assert message.body == b"x"
        message.ack()
        later.join()


def test_several_threads_get_each_message_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("shared")
    broker.publish(queue, numbered(2000))
    found: list[bytes] = []

    def work() -> None:
        while True:
            try:
                message = consumer.get()
            except ShutDown:
                return
            found.append(message.body)
            message.ack()

    with Consumer(broker.url, [queue]) as consumer:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(found) == 2000)
        consumer.stop()
        for thread in threads:
            thread.join(30)
    assert sorted(found) == sorted(numbered(2000))
    assert broker.count(queue) == 0


def test_a_stopped_consumer_hands_out_what_is_here_and_then_says_so(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("stopped")
    broker.publish(queue, numbered(3))
    with Consumer(broker.url, [queue]) as consumer:
        eventually(lambda: consumer.stats()["buffered"] == 3)
        consumer.stop()
        for number in range(3):
            message = consumer.get()
            assert message.body == numbered(3)[number]
            message.ack()
        with pytest.raises(ShutDown):
            consumer.get(30)
    assert broker.count(queue) == 0


def test_what_ends_the_io_thread_is_the_error_of_a_wait(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("ended")
    broker.publish(queue, [b"x"])

    def key(_message: object) -> str:
        raise SystemExit(3)

    def wait() -> None:
        with Consumer(broker.url, [queue], key=key) as consumer:
            consumer.get()

    with pytest.raises(SystemExit):
        wait()


def test_it_is_refused_where_an_iteration_is(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("refused")
    consumer = Consumer(broker.url, [queue])
    with pytest.raises(RuntimeError, match="inside 'with consumer:'"):
        consumer.get()
    with consumer:
        for wrong in (-1, float("nan"), "5"):
            wrong_timeout: Any = wrong
            with pytest.raises((TypeError, ValueError), match="timeout must be a number of seconds, 0 or more"):
                consumer.get(wrong_timeout)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.get()
    worker_queues = Consumer(broker.url, [queue], ordering_key=lambda message: message.body, workers=2)
    with worker_queues, pytest.raises(ConfigurationError, match="workers=1"):
        worker_queues.get()


def test_a_child_process_gets_nothing(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("forked")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            consumer.get(0)
        except RuntimeError as error:
            answers.put(str(error))

    with Consumer(broker.url, [queue]) as consumer:
        process = context.Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
    assert "fork" in answers.get()


def test_a_message_of_a_lost_connection_is_not_handed_out(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cut")
    broker.publish(queue, numbered(10))
    with Proxy(broker.port) as proxy, Consumer(behind(proxy, broker.url), [queue]) as consumer:
        eventually(lambda: consumer.stats()["buffered"] == 10)
        proxy.cut()
        eventually(lambda: consumer.stats()["reconnects"] == 1)
        for _ in range(10):
            consumer.get(30).ack()
        eventually(lambda: broker.count(queue) == 0)
    assert consumer.stats()["acked"] == 10


# Interrupts -----------------------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    """Raised by the handler of a signal."""


@contextmanager
def interrupts(codes: set[CodeType]) -> Iterator[list[None]]:
    """Raise `Interrupt` now and then while one of some functions runs; yield a list with an item for each time."""
    raised: list[None] = []

    def again() -> None:
        # Once only: a signal that came before its handler has returned would be handled inside it.
        signal.setitimer(signal.ITIMER_REAL, 2e-4)

    def handler(_number: int, frame: FrameType | None) -> None:
        again()
        if frame is not None and frame.f_code in codes:
            raised.append(None)
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    again()
    try:
        yield raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def code_of(*functions: Any) -> set[CodeType]:
    return {function.__code__ for function in functions}


#: Messages that are taken and requeued until so many interrupts came; then each is taken once more.
COUNT, INTERRUPTS = 50, 30


def test_interrupted_waits_lose_no_message(broker: Node, new_queue: Declare) -> None:
    """A message that was taken and lost would stay unsettled, and never come again while the consumer is open."""
    queue = new_queue("interrupted")
    with Consumer(broker.url, [queue]) as consumer:
        broker.publish(queue, numbered(COUNT))
        with interrupts(code_of(Consumer.get, take)) as raised:
            while len(raised) < INTERRUPTS:
                with suppress(Interrupt):
                    consumer.get(30).nack()
        seen: set[bytes] = set()
        while len(seen) < COUNT:
            message = consumer.get(30)
            seen.add(message.body)
            message.ack()
        eventually(lambda: broker.count(queue) == 0)


def test_interrupted_batches_lose_no_message(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("interrupted")
    codes = code_of(each_batch, take, plain_batches, PendingBatch.take, PendingBatch.messages, PendingBatch.missing)
    with Consumer(broker.url, [queue]) as consumer:
        broker.publish(queue, numbered(COUNT))
        with interrupts(codes) as raised:
            while len(raised) < INTERRUPTS:
                with suppress(Interrupt):
                    for batch in consumer.batches(10, 1e-4):
                        batch.nack()
        seen: set[bytes] = set()
        while len(seen) < COUNT:
            message = consumer.get(30)
            seen.add(message.body)
            message.ack()
        eventually(lambda: broker.count(queue) == 0)


def test_both_consumers_have_it() -> None:
    assert callable(Consumer.get)
    assert callable(aio.Consumer.get)
