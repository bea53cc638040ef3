"""Limits of queues and tenants against a real broker: never more in hand, the others go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import CoDel, Consumer, Limit, Queue, Tenant, aio


class Crew:
    """Handlers that note how many of each queue or tenant run at a time; they can be kept from returning."""

    def __init__(self, consumer: Consumer, of: Callable[[Any], str] = lambda message: message.queue) -> None:
        self.consumer = consumer
        self.of = of
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.handled: Counter[str] = Counter()
        self.times: dict[str, list[float]] = defaultdict(list)
        self.kept: set[str] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=consumer.run, args=(self._handle,))

    def _handle(self, message: Any) -> None:
        name = self.of(message)
        with self._changed:
            self.times[name].append(time.monotonic())
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
            self._changed.wait_for(lambda: name not in self.kept, 60)
            self.handled[name] += 1
            self.running[name] -= 1

    def release(self, name: str) -> None:
        with self._changed:
            self.kept.discard(name)
            self._changed.notify_all()

    def __enter__(self) -> Crew:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.kept):
            self.release(name)
        if not self.consumer.state.stopping:  # twice would mean at once
            self.consumer.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "the consumer hangs"


def test_a_queue_has_no_more_workers_than_its_limit_and_the_others_go_on(broker: Node, new_queue: Declare) -> None:
    slow, fast = new_queue("slow"), new_queue("fast")
    broker.publish(slow, numbered(50))
    consumer = Consumer(broker.url, [Queue(slow, limit=Limit(2), prefetch=20), Queue(fast, prefetch=20)], workers=4)
    with Crew(consumer) as crew:
        crew.kept = {slow}
        eventually(lambda: crew.running[slow] == 2)
        broker.publish(fast, numbered(500))
        eventually(lambda: crew.handled[fast] == 500)
        assert crew.running[slow] == 2
        why = consumer.explain(slow)
        assert (why.limited, why.concurrency, why.rank, why.retry_after) == (2, 2, None, None)
        assert "2 of at most 2 messages in hand: it is at its limit and takes no turns" in str(why)
        crew.release(slow)
        eventually(lambda: crew.handled[slow] == 50)
    assert crew.most[slow] == 2
    assert consumer.stats()["acked"] == 550
    assert broker.left(slow, fast) == 0


def test_tenants_in_one_queue(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    for tenant in ("noisy", "quiet", "vip"):
        broker.publish(queue, numbered(40), headers={"tenant": tenant})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", workers=6, prefetch=200,
        tenants={"*": Tenant(limit=Limit(1)), "vip": Tenant(limit=False), "quiet": Tenant(limit=Limit(2))},
    )  # fmt: skip
    with Crew(consumer, lambda message: message.slot) as crew:
        crew.kept = {"noisy", "quiet"}
        eventually(lambda: crew.handled["vip"] == 40)
        eventually(lambda: (crew.running["noisy"], crew.running["quiet"]) == (1, 2))
        assert "1 of at most 1 message in hand" in str(consumer.explain("noisy"))
        crew.release("noisy")
        crew.release("quiet")
        eventually(lambda: sum(crew.handled.values()) == 120)
        # A tenant that has nothing in hand, and no limit of its own, is forgotten as ever.
        eventually(lambda: set(consumer.stats()["slots"]) == {"vip", "quiet"})
    assert crew.most["noisy"] == 1
    assert crew.most["quiet"] <= 2
    assert broker.left(queue) == 0


def test_a_rate_holds_and_says_when_the_next_message_is_due(broker: Node, new_queue: Declare) -> None:
    slow, fast = new_queue("slow"), new_queue("fast")
    broker.publish(slow, numbered(30))
    broker.publish(fast, numbered(200))
    consumer = Consumer(broker.url, [Queue(slow, limit=Limit(rate=50, burst=5)), fast], workers=3)
    with Crew(consumer) as crew:
        eventually(lambda: crew.handled[fast] == 200)
        eventually(lambda: crew.handled[slow] == 30)
        assert consumer.explain(slow).concurrency is None
    times = crew.times[slow]
    # Handed out, that is, a little before the handler says so: the first may be late, and the last not.
    assert times[-1] - times[0] > 24 / 50 - 0.2
    assert broker.left(slow, fast) == 0


def test_out_of_tokens(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("hourly")
    broker.publish(queue, numbered(3))
    consumer = Consumer(broker.url, [Queue(queue, limit=Limit(rate="2/h"))], workers=2)
    with Crew(consumer) as crew:
        eventually(lambda: crew.handled[queue] == 1)
        eventually(lambda: consumer.explain(queue).buffered == 2)
        why = consumer.explain(queue)
        assert why.retry_after is not None
        assert 1000 < why.retry_after <= 1800
        assert "its rate allows the next message in 1" in str(why)
        consumer.stop(now=True)
    eventually(lambda: broker.count(queue) == 2)


def test_an_iteration_takes_no_more_than_the_limit_before_something_is_settled(
    broker: Node, new_queue: Declare
) -> None:
    queue, other = new_queue("q"), new_queue("q")
    broker.publish(queue, numbered(10))
    broker.publish(other, numbered(10))
    with Consumer(broker.url, [Queue(queue, limit=Limit(2)), other]) as consumer:
        eventually(lambda: consumer.stats()["received"] == 20)
        messages = iter(consumer)
        held = [next(messages) for _ in range(12)]
        assert Counter(message.queue for message in held) == {queue: 2, other: 10}
        mine = [message for message in held if message.queue == queue]
        mine[0].ack()
        later = next(messages)
        assert later.queue == queue
        mine[1].nack()  # returns to its queue, and comes again
        assert next(messages).queue == queue


def test_a_message_that_is_dropped_unsettled_is_in_hand_no_more(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(2))
    with Consumer(broker.url, [Queue(queue, limit=Limit(1))]) as consumer:
        messages = iter(consumer)
        dropped = next(messages)
        del dropped
        assert next(messages).body == b"1"


@pytest.mark.parametrize("size", [3, 100])
def test_batches(broker: Node, new_queue: Declare, size: int) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(20))
    seen: list[int] = []
    with Consumer(broker.url, [Queue(queue, limit=Limit(4))]) as consumer:
        for batch in consumer.batches(max_size=size, max_wait=0.01):
            with batch:
                seen.append(len(batch))
            if sum(seen) == 20:
                consumer.stop()
    assert max(seen) <= min(size, 4)
    assert broker.left(queue) == 0


def test_deferred_messages_stay_in_hand(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(4))
    deferred: list[Any] = []

    def handle(message: Any) -> None:
        message.defer()
        deferred.append(message)

    consumer = Consumer(broker.url, [Queue(queue, limit=Limit(2))], workers=4)
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    eventually(lambda: len(deferred) == 2 and consumer.explain(queue).buffered == 2)
    for count in (3, 4):
        deferred[count - 3].ack()
        eventually(lambda count=count: len(deferred) == count)
    for message in deferred:
        message.ack()
    consumer.stop()
    thread.join(40)
    assert not thread.is_alive()
    assert broker.left(queue) == 0


def test_failures_and_what_codel_returns_leave_their_places(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(200))
    failed: Counter[bytes] = Counter()

    def handle(message: Any) -> None:
        failed[message.body] += 1
        raise ValueError("no")

    consumer = Consumer(
        broker.url, [Queue(queue, limit=Limit(2, rate=1e6, burst=100))], workers=3, on_error="reject",
        codel=CoDel(1e-6, 1e-3, requeue=False),
    )  # fmt: skip
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    eventually(lambda: sum(failed.values()) + consumer.stats()["shed"] == 200)
    # The last one that failed is settled, and leaves its place, when its handler is over.
    eventually(lambda: consumer.explain(queue).limited == 0)
    consumer.stop()
    thread.join(40)
    assert not thread.is_alive()


def test_a_lost_connection_leaves_no_place_taken(broker: Node, new_queue: Declare) -> None:
    """A buffered message of a channel that is gone costs neither places nor tokens: it is thrown away at once."""
    queue = new_queue("q")
    broker.publish(queue, numbered(30))
    consumer = Consumer(broker.url, [Queue(queue, limit=Limit(1, rate=20, burst=1))], workers=2, prefetch=10)
    with Crew(consumer) as crew:
        crew.kept = {queue}
        eventually(lambda: crew.running[queue] == 1 and consumer.stats()["received"] >= 10)
        broker.close_connections()
        eventually(lambda: consumer.stats()["reconnects"] == 1 and consumer.stats()["received"] >= 20)
        crew.release(queue)
        eventually(lambda: consumer.stats()["acked"] == 30)
    assert crew.most[queue] == 1
    assert broker.left(queue) == 0


def test_coroutines(broker: Node, new_queue: Declare) -> None:
    slow, fast = new_queue("slow"), new_queue("fast")
    broker.publish(slow, numbered(20))
    broker.publish(fast, numbered(20))
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def main() -> int:
        async with aio.Consumer(
            broker.url, [Queue(slow, limit=Limit(2, rate=100, burst=4)), fast], workers=6
        ) as consumer:

            async def handle(message: Any) -> None:
                running[message.queue] += 1
                most[message.queue] = max(most[message.queue], running[message.queue])
                await asyncio.sleep(0.001)
                running[message.queue] -= 1

            task = asyncio.create_task(consumer.run(handle))
            await asyncio.to_thread(eventually, lambda: consumer.stats()["acked"] == 40)
            consumer.stop()
            await task
            return consumer.stats()["acked"]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == 40
    assert most[slow] <= 2
    assert broker.left(slow, fast) == 0


def test_an_asyncio_iteration_wakes_with_the_token(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(10))

    async def main() -> int:
        count = 0
        async with aio.Consumer(broker.url, [Queue(queue, limit=Limit(1, rate=50))]) as consumer:
            async for message in consumer:
                message.ack()
                count += 1
                if count == 10:
                    break
        return count

    assert asyncio.run(asyncio.wait_for(main(), 60)) == 10


def test_a_stop_gives_back_what_waits_for_a_limit(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(30))
    consumer = Consumer(broker.url, [Queue(queue, limit=Limit(1))], workers=2)
    with Crew(consumer) as crew:
        crew.kept = {queue}
        eventually(lambda: crew.running[queue] == 1 and consumer.state.buffered == 29)
        consumer.stop(now=True)
        eventually(lambda: consumer.state.buffered == 0)
    eventually(lambda: broker.count(queue) == 29)


def test_a_stop_handles_what_waits_for_a_limit(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("q")
    broker.publish(queue, numbered(30))
    consumer = Consumer(broker.url, [Queue(queue, limit=Limit(1))], workers=2)
    with Crew(consumer) as crew:
        crew.kept = {queue}
        eventually(lambda: crew.running[queue] == 1 and consumer.state.buffered == 29)
        consumer.stop()
    assert crew.handled[queue] == 30
    assert broker.left(queue) == 0
