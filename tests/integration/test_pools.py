"""Pools of workers against a real broker: those of a lower priority help only while all above them are busy."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import App, Consumer, FairQueue, Pool, aio

POOLS = [Pool(3), Pool(2, priority=10)]
IDLE = [10, 10, 0, 0, 0]


class Staff:
    """A consumer at work in pools, whose handlers can be kept busy."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.busy: list[str] = []
        self.handled: list[str] = []
        self.released = threading.Event()
        self.released.set()
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=consumer.run, args=(self._handle,))

    def _handle(self, message: object) -> None:
        name = threading.current_thread().name
        with self._guard:
            self.busy.append(name)
        self.released.wait(60)
        with self._guard:
            self.busy.remove(name)
            self.handled.append(name)

    def __enter__(self) -> Staff:
        self._thread.start()
        eventually(lambda: self.worker_queue.waiting() == IDLE)
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.consumer.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "the consumer hangs"

    @property
    def worker_queue(self) -> FairQueue:
        return self.consumer._client.worker_queues.only()


HIGH = {"fairsched-worker-0", "fairsched-worker-1"}


@pytest.mark.parametrize("kind", [Consumer, App])
def test_idle_workers_of_high_priority_take_everything(broker: Node, new_queue: Declare, kind: type) -> None:
    queue = new_queue("trickle")
    if kind is App:
        app = App(broker.url, workers=POOLS)
        app.consumer(queue)(print)
        consumer = app.make_consumer()
    else:
        consumer = Consumer(broker.url, [queue], workers=POOLS)
    with Staff(consumer) as staff:
        for count in range(1, 51):
            broker.publish(queue, [b"%d" % count])
            eventually(lambda count=count: len(staff.handled) == count and staff.worker_queue.waiting() == IDLE)
    assert set(staff.handled) == HIGH
    assert consumer.stats()["acked"] == 50


def test_the_others_help_while_all_above_them_are_busy(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("flood")
    consumer = Consumer(broker.url, [queue], workers=POOLS)
    with Staff(consumer) as staff:
        staff.released.clear()
        for count in range(1, 6):
            broker.publish(queue, [b"x"])
            eventually(lambda count=count: len(staff.busy) == count)
            assert set(staff.busy[:2]) <= HIGH
            assert staff.worker_queue.waiting() == IDLE[count:]
        staff.released.set()
        broker.publish(queue, numbered(1000))
        eventually(lambda: len(staff.handled) == 1005)
        eventually(lambda: staff.worker_queue.waiting() == IDLE)
    assert set(staff.handled) == {f"fairsched-worker-{number}" for number in range(5)}
    assert consumer.stats()["acked"] == 1005
    assert broker.count(queue) == 0


def test_coroutines_in_pools(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("coroutines")

    async def main() -> dict[str, object]:
        async with aio.Consumer(broker.url, [queue], workers=POOLS) as consumer:
            released = asyncio.Event()
            running = asyncio.create_task(consumer.run(lambda message: released.wait()))
            worker_queue = consumer._client.worker_queues.only()
            await asyncio.to_thread(eventually, lambda: worker_queue.waiting() == IDLE)
            for count in range(1, 6):
                await asyncio.to_thread(broker.publish, queue, [b"x"])
                await asyncio.to_thread(eventually, lambda count=count: worker_queue.waiting() == IDLE[count:])
            released.set()
            await asyncio.to_thread(eventually, lambda: worker_queue.waiting() == IDLE)
            await asyncio.to_thread(broker.publish, queue, numbered(500))
            await asyncio.to_thread(eventually, lambda: consumer.stats()["acked"] == 505)
            consumer.stop()
            await running
            return consumer.stats()

    stats = asyncio.run(asyncio.wait_for(main(), 60))
    assert (stats["acked"], stats["buffered"]) == (505, 0)
