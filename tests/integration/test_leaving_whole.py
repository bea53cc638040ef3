"""Queues with a single active consumer are left whole: the next consumer begins when nothing is in hand any more."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.rabbitmq import Broker, numbered
from support.waiting import eventually, reach_in_loop

from fairsched import Consumer, Queue, aio
from fairsched.consumer.channels import ConsumerChannels

COUNT = 60
_numbers = itertools.count()


@pytest.fixture(params=["classic", "quorum"])
def lane(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Queue]:
    """A queue with a single active consumer and messages, none of which is persistent."""
    arguments = {"x-single-active-consumer": True, "x-queue-type": request.param}
    queue = Queue(f"whole-{next(_numbers)}", prefetch=10, durable=True, arguments=arguments)
    with broker.connect() as channel:
        channel.queue_declare(queue.name, durable=True, arguments=arguments)
    broker.publish(queue.name, numbered(COUNT))
    yield queue
    broker.delete(queue.name)


class Worker:
    """A consumer in a thread, whose handler stands still at some messages until it may go on."""

    def __init__(self, url: str, queue: Queue, held: set[int], **options: object) -> None:
        self.held = held
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.failing = False
        self.go_on = threading.Event()
        self.consumer = Consumer(url, [queue], **options)
        self.thread = threading.Thread(target=self.consumer.run, args=(self.handle,))

    def __enter__(self) -> Worker:
        self.thread.start()
        eventually(lambda: all(self.consumer.state.consuming.values()))
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        if not self.consumer.state.stopping:
            self.consumer.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def handle(self, message: object) -> None:
        number = int(message.body)
        self.begun.append(number)
        if number in self.held:
            self.go_on.wait(30)
        if self.failing:
            raise ValueError("not now")
        self.ended.append(number)


def stop(consumer: Consumer, _queue: str) -> None:
    consumer.stop()


def stop_now(consumer: Consumer, _queue: str) -> None:
    consumer.stop(now=True)


def remove(consumer: Consumer, queue: str) -> None:
    threading.Thread(target=consumer.remove_queue, args=(queue,), daemon=True).start()


def pause(consumer: Consumer, queue: str) -> None:
    consumer.pause(queue)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("leave", [stop, stop_now, remove, pause])
def test_the_next_consumer_begins_when_nothing_is_in_hand(
    broker: Broker, lane: Queue, leave: Callable[[Consumer, str], None]
) -> None:
    with Worker(broker.url, lane, {5}) as first, Worker(broker.url, lane, set()) as second:
        eventually(lambda: first.begun == [*range(6)] and first.consumer.stats()["received"] >= 15)
        leave(first.consumer, lane.name)
        eventually(lambda: first.consumer.stats()["buffered"] == 0)
        broker.publish(lane.name, [b"%d" % COUNT])  # at which a queue looks whom it may deliver to
        assert (first.begun, second.begun) == ([*range(6)], [])
        first.go_on.set()
        eventually(lambda: len(second.ended) == COUNT - 5)
        assert first.ended == [*range(6)]
        assert second.begun == [*range(6, COUNT + 1)]
    assert first.consumer.stats()["nacked"] == 0
    eventually(lambda: broker.left(lane.name) == 0)


def test_at_the_shutdown_timeout_it_is_left_anyway(broker: Broker, lane: Queue) -> None:
    with (
        Worker(broker.url, lane, {5}, shutdown_timeout=1.0) as first,
        Worker(broker.url, lane, set()) as second,
    ):
        eventually(lambda: first.begun == [*range(6)])
        first.consumer.stop()
        eventually(lambda: len(second.ended) == COUNT - 5)
        assert second.begun == [*range(5, COUNT)]
        assert first.begun == [*range(6)]


def test_a_paused_queue_is_consumed_again_in_order(broker: Broker, lane: Queue) -> None:
    with Worker(broker.url, lane, {5}) as worker:
        eventually(lambda: worker.begun == [*range(6)])
        worker.consumer.pause(lane.name)
        eventually(lambda: worker.consumer.stats()["buffered"] == 0)
        worker.go_on.set()
        eventually(lambda: broker.count(lane.name) == COUNT - 6)
        assert worker.ended == [*range(6)]
        worker.consumer.resume(lane.name)
        eventually(lambda: len(worker.ended) == COUNT)
        assert worker.ended == [*range(COUNT)]
    assert worker.consumer.stats()["reconnects"] == 0


def test_a_message_that_fails_while_its_queue_is_left_is_the_first_again(broker: Broker, lane: Queue) -> None:
    with Worker(broker.url, lane, {5}, on_error="requeue") as first, Worker(broker.url, lane, set()) as second:
        eventually(lambda: first.begun == [*range(6)])
        first.failing = True
        first.consumer.stop()
        eventually(lambda: first.consumer.stats()["buffered"] == 0)
        first.go_on.set()
        eventually(lambda: len(second.ended) == COUNT - 5)
        assert second.begun == [*range(5, COUNT)]


def test_an_iteration_leaves_it_whole_too(broker: Broker, lane: Queue) -> None:
    with Consumer(broker.url, [lane]) as first:
        messages = iter(first)
        message = next(messages)
        with Worker(broker.url, lane, set()) as second:
            first.stop()
            handed_out = [message, *messages]
            assert second.begun == []
            for one in handed_out:
                one.ack()
            eventually(lambda: len(second.ended) == COUNT - len(handed_out))
            assert second.begun == [*range(len(handed_out), COUNT)]


def test_a_queue_that_is_resumed_while_its_channel_is_opened(
    broker: Broker, lane: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(broker.url, lane, {5}) as worker:
        eventually(lambda: worker.begun == [*range(6)])

        def open_and_resume(channels: ConsumerChannels, transport: Any, name: str) -> None:
            opened(channels, transport, name)
            worker.consumer.resume(name)

        opened = ConsumerChannels.open
        monkeypatch.setattr(ConsumerChannels, "open", open_and_resume)
        worker.consumer.pause(lane.name)
        worker.go_on.set()
        eventually(lambda: len(worker.ended) == COUNT)
        assert worker.begun == [*range(COUNT)]


def test_a_coroutine_has_its_message_until_it_is_done(broker: Broker, lane: Queue) -> None:
    begun: list[int] = []

    async def main() -> None:
        go_on = asyncio.Event()

        async def handle(message: object) -> None:
            begun.append(int(message.body))
            if begun[-1] == 5:
                await go_on.wait()

        async with aio.Consumer(broker.url, [lane]) as first:
            running = asyncio.ensure_future(first.run(handle))
            await reach_in_loop(lambda: begun == [*range(6)])
            with Worker(broker.url, lane, set()) as second:
                first.stop()
                await reach_in_loop(lambda: first.stats()["buffered"] == 0)
                assert second.begun == []
                go_on.set()
                await running
                await reach_in_loop(lambda: len(second.ended) == COUNT - 6)
                assert second.begun == [*range(6, COUNT)]

    asyncio.run(main())
    assert begun == [*range(6)]


@pytest.mark.parametrize("lane", ["classic"], indirect=True)  # that of a quorum queue never changes
def test_a_window_grows_when_the_queue_is_left_and_consumed_again(broker: Broker, lane: Queue) -> None:
    other = replace(lane, name=f"{lane.name}-other", weight=4, prefetch=None)
    lane = replace(lane, weight=1, prefetch=None)
    handled: list[int] = []
    go_on = threading.Event()

    def handle(message: object) -> None:
        go_on.wait(30)
        handled.append(int(message.body))

    consumer = Consumer(broker.url, [lane, other], prefetch=50)
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    try:
        eventually(lambda: (consumer.stats()["received"], consumer.stats()["buffered"]) == (10, 9))
        consumer.set_weight(lane.name, 16)  # 40 of 50: its 10 unsettled messages go back, except the one in hand
        eventually(lambda: consumer.stats()["buffered"] == 0)
        assert handled == []
        go_on.set()
        eventually(lambda: len(handled) == COUNT)
        assert consumer._client.windows()[lane.name] == 40
    finally:
        consumer.stop()
        thread.join(30)
        broker.delete(other.name)
    assert handled == [*range(COUNT)]
