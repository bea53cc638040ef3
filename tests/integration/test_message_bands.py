"""Priorities of messages against a real broker: order, shares, limits, figures, and that nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import App, CoDel, Consumer, Limit, Tenant, aio


def publish(broker: Node, queue: str, tenant: str, counts: dict[int, int]) -> None:
    """Publish so many messages of each priority, which the property and a header say."""
    for priority, count in counts.items():
        headers = {"tenant": tenant, "rank": priority}
        broker.publish(queue, numbered(count), headers=headers, priority=priority)


def order_of(consumer: Consumer, count: int) -> list[tuple[Any, Any]]:
    """Take and acknowledge so many messages: the tenant and the priority of each."""
    found = []
    messages = iter(consumer)
    for _ in range(count):
        message = next(messages)
        found.append((message.slot, message.priority))
        message.ack()
    return found


BANDS = ["property:priority", "header:rank", lambda message: message.properties.priority]


@pytest.mark.parametrize("fast", [None, False], ids=["fast", "pika"])
@pytest.mark.parametrize("band", BANDS, ids=["property", "header", "function"])
def test_priorities_are_strict_and_tenants_share_each_of_them(
    broker: Node, new_queue: Declare, band: Any, fast: bool | None
) -> None:
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {0: 60, 5: 60, 9: 20})
    publish(broker, queue, "gold", {0: 60, 5: 60})
    consumer = Consumer(broker.url, [queue], key="header:tenant", tenants={"gold": 2}, band=band, prefetch=1000)
    consumer._client.settings.fast = fast
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 260)
        why = consumer.explain("gold")
        assert (why.priority, why.above, why.rank, why.others, why.buffered) == (5, 20, 1, 1, 120)
        assert "20 messages of higher priorities (that of its next message is 5) are served first" in str(why)
        assert (consumer.explain("acme").priority, consumer.explain("acme").above) == (9, 0)
        order = order_of(consumer, 260)
        assert consumer.stats()["slots"]["gold"].served == 120
    assert [priority for _, priority in order] == [9] * 20 + [5] * 120 + [0] * 120
    for part in (order[20:110], order[140:230]):
        assert Counter(tenant for tenant, _ in part) == {"gold": 60, "acme": 30}
    assert broker.left(queue) == 0


def test_without_a_key_queues_share_each_priority(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue("gold"), new_queue("free")
    for queue in (gold, free):
        publish(broker, queue, "", {1: 60, 8: 60})
    weights = {gold: 3, free: 1}
    with Consumer(broker.url, weights, band="property:priority", prefetch={gold: 200, free: 200}) as consumer:
        eventually(lambda: consumer.stats()["received"] == 240)
        order = Counter(order_of(consumer, 80))
        assert order == {(gold, 8): 60, (free, 8): 20}
        order_of(consumer, 160)
    assert broker.left(gold, free) == 0


def test_messages_without_a_priority_are_the_last(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    broker.publish(queue, numbered(3))
    broker.publish(queue, numbered(1), headers={"rank": "high"})
    broker.publish(queue, numbered(2), headers={"rank": 1})
    with Consumer(broker.url, [queue], band="header:rank", prefetch=100) as consumer:
        eventually(lambda: consumer.stats()["received"] == 6)
        assert order_of(consumer, 6) == [(queue, 1)] * 2 + [(queue, 0)] * 4


def test_a_limit_of_a_tenant_holds_over_its_priorities(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {0: 20, 9: 20})
    publish(broker, queue, "gold", {0: 10})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", tenants={"acme": Tenant(limit=Limit(2))}, band="property:priority",
        workers=4, prefetch=100,
    )  # fmt: skip
    guard, gate = threading.Lock(), threading.Event()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    handled: list[tuple[str, int]] = []

    def handle(message: Any) -> None:
        gate.wait(60)
        with guard:
            now[message.slot] += 1
            most[message.slot] = max(most[message.slot], now[message.slot])
            handled.append((message.slot, message.priority))
        with guard:
            now[message.slot] -= 1
            if len(handled) == 50:
                consumer.stop()

    runner = threading.Thread(target=consumer.run, args=(handle,))
    runner.start()
    eventually(lambda: consumer.stats()["received"] == 50)
    eventually(lambda: consumer.explain("acme").limited == 2)
    gate.set()
    runner.join(60)
    assert most["acme"] <= 2
    assert Counter(handled) == {("acme", 0): 20, ("acme", 9): 20, ("gold", 0): 10}
    assert broker.left(queue) == 0


def test_a_limit_of_the_group_holds_over_priorities_and_each_consumer_keeps_them(
    broker: Node, new_queue: Declare
) -> None:
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {0: 20, 9: 20})
    publish(broker, queue, "gold", {0: 10})
    guard, gate = threading.Lock(), threading.Event()
    now, most = 0, 0
    handled: list[tuple[int, str, int]] = []
    later: dict[int, list[int]] = {0: [], 1: []}  # of acme, begun when all messages were here
    consumers = [
        Consumer(
            broker.url, [queue], key="header:tenant", tenants={"acme": Tenant(limit=Limit(2, scope="group"))},
            band="property:priority", share_group=queue, workers=4, prefetch=100,
        )
        for _ in range(2)
    ]  # fmt: skip

    def handle(number: int, message: Any) -> None:
        nonlocal now, most
        acme = message.slot == "acme"
        with guard:
            now += acme
            most = max(most, now)
            if acme and gate.is_set():
                later[number].append(message.priority)
        if acme:
            gate.wait(60)
        with guard:
            now -= acme
            handled.append((number, message.slot, message.priority))
            if len(handled) == 50:
                for consumer in consumers:
                    consumer.stop()

    runners = [
        threading.Thread(target=consumer.run, args=(functools.partial(handle, number),))
        for number, consumer in enumerate(consumers)
    ]
    for runner in runners:
        runner.start()
    eventually(lambda: sum(consumer.stats()["received"] for consumer in consumers) == 50)
    eventually(lambda: most == 2)
    gate.set()
    for runner in runners:
        runner.join(60)
    assert most == 2
    assert Counter(one[1:] for one in handled) == {("acme", 0): 20, ("acme", 9): 20, ("gold", 0): 10}
    assert all(priorities == sorted(priorities, reverse=True) for priorities in later.values())
    assert broker.left(queue) == 0


def test_the_time_of_a_handler_is_charged_within_its_priority(broker: Node, new_queue: Declare) -> None:
    """A tenant that was slow in one priority owes nothing in another."""
    queue = new_queue("jobs")
    publish(broker, queue, "slow", {9: 40, 0: 100})
    publish(broker, queue, "quick", {9: 40, 0: 100})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", band="property:priority", cost="time", prefetch=1000, workers=1
    )
    handled: list[tuple[str, int]] = []
    pause = threading.Event()

    def handle(message: Any) -> None:
        handled.append((message.slot, message.priority))
        if message.slot == "slow" and message.priority == 9:
            pause.wait(0.01)
        if len(handled) == 280:
            consumer.stop()

    consumer.run(handle)
    assert [priority for _, priority in handled] == [9] * 80 + [0] * 200
    first = Counter(tenant for tenant, _ in handled[:50])
    assert first["quick"] == 40
    assert broker.left(queue) == 0


def test_codel_judges_each_priority_by_itself(broker: Node, new_queue: Declare) -> None:
    """Messages of a high priority, which do not wait, hide from no law that those of a low one do."""
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {0: 30, 9: 30})
    law = CoDel(0.02, 0.02, requeue=False, when_alone=True)
    consumer = Consumer(broker.url, [queue], key="header:tenant", band="property:priority", codel=law, prefetch=100)
    pause = threading.Event()
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 60)
        for message in consumer:
            pause.wait(0.005)
            message.ack()
            stats = consumer.stats()
            if stats["acked"] + stats["codel"]["slots"]["acme"].returned == 60:
                break
        found = consumer.stats()["codel"]["slots"]
        assert found["acme"].asked == 60
        assert found["acme"].returned >= 1
        assert consumer.explain(queue).returned is None
    assert broker.left(queue) == 0


def test_nothing_is_lost_when_a_consumer_stops_and_each_tenant_keeps_the_order_of_a_priority(
    broker: Node, new_queue: Declare
) -> None:
    queue = new_queue("jobs")
    for tenant in ("a", "b", "c"):
        publish(broker, queue, tenant, {0: 50, 3: 60, 9: 40})
    handled: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    guard = threading.Lock()

    def consume() -> None:
        consumer = Consumer(
            broker.url, [queue], key="header:tenant", band="header:rank", workers=3, prefetch=100,
            tenants={"*": Tenant(limit=Limit(1))},
        )  # fmt: skip

        def handle(message: Any) -> None:
            with guard:
                handled[message.slot, message.priority].append(int(message.body))
                if sum(map(len, handled.values())) in (90, 200, 450):
                    consumer.stop()

        consumer.run(handle)

    while broker.left(queue):
        consume()
    assert {who: sorted(numbers) for who, numbers in handled.items()} == {
        (tenant, priority): list(range(count)) for tenant in "abc" for priority, count in ((0, 50), (3, 60), (9, 40))
    }


def test_in_an_event_loop_and_in_an_app(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("jobs"), new_queue("other")
    order: list[Any] = []

    async def consume() -> None:
        async with aio.Consumer(broker.url, [queue], band="property:priority", prefetch=100) as consumer:
            await asyncio.to_thread(eventually, lambda: consumer.stats()["received"] == 20)
            async for message in consumer:
                order.append(message.priority)
                message.ack()
                if len(order) == 20:
                    return

    publish(broker, queue, "", {2: 10, 7: 10})
    asyncio.run(asyncio.wait_for(consume(), 60))
    assert order == [7] * 10 + [2] * 10

    publish(broker, other, "", {2: 10, 7: 10})
    app = App(broker.url, band="property:priority", prefetch=100)
    found: list[Any] = []
    gate = threading.Event()

    @app.consumer(other)
    def handle(message: Any) -> None:
        gate.wait(60)
        found.append(message.priority)
        if len(found) == 20:
            app.stop()

    runner = threading.Thread(target=app.run)
    runner.start()
    eventually(lambda: app.stats().get("received") == 20)
    gate.set()
    runner.join(60)
    assert found[1:] == sorted(found[1:], reverse=True)
    assert broker.left(queue, other) == 0
