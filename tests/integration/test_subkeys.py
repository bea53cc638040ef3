"""Two levels against a real broker: the users of a tenant, a tenant that makes users up, and what explain says."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import Consumer, Limit, Tenant, aio


def publish(broker: Node, queue: str, tenant: str, users: dict[str, int]) -> None:
    for user, count in users.items():
        broker.publish(queue, numbered(count), headers={"tenant": tenant, "user": user}, app_id=user)


def order_of(consumer: Consumer, count: int) -> list[tuple[Any, Any]]:
    """Take and acknowledge so many messages: whose they were."""
    found = []
    messages = iter(consumer)
    for _ in range(count):
        message = next(messages)
        found.append((message.slot, message.subkey))
        message.ack()
    return found


@pytest.mark.parametrize("fast", [None, False], ids=["fast", "pika"])
@pytest.mark.parametrize("subkey", ["header:user", "property:app_id", lambda message: message.headers["user"]])
def test_a_flood_of_one_user_delays_no_other_and_no_user_gains_by_splitting(
    broker: Node, new_queue: Declare, subkey: Any, fast: bool | None
) -> None:
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {"flood": 300, "ann": 3, "bob": 3})
    publish(broker, queue, "sybil", {f"user-{number}": 3 for number in range(100)})
    publish(broker, queue, "gold", {"me": 200})
    consumer = Consumer(broker.url, [queue], key="header:tenant", tenants={"gold": 2}, subkey=subkey, prefetch=1000)
    consumer._client.settings.fast = fast
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 806)
        why = consumer.explain("acme")
        assert (why.subkeys, why.busiest) == (3, (("flood", 300), ("ann", 3), ("bob", 3)))
        assert "by subkey: 300 of 'flood', 3 of 'ann', 3 of 'bob'; " in str(why)
        assert consumer.explain("sybil").subkeys == 100
        assert "and some of 97 more" in str(consumer.explain("sybil"))
        order = order_of(consumer, 400)
        shares = Counter(tenant for tenant, _ in order)
        assert shares == {"acme": 100, "sybil": 100, "gold": 200}
        acme = [user for tenant, user in order if tenant == "acme"]
        assert acme[:9] == ["flood", "ann", "bob"] * 3
        assert set(acme[9:]) == {"flood"}
        assert len({user for tenant, user in order if tenant == "sybil"}) == 100
        assert len(order_of(consumer, 406)) == 406
        assert consumer.explain("gold").busiest == ()
    assert broker.left(queue) == 0


def test_without_a_key_each_queue_is_divided(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue("gold"), new_queue("free")
    for queue in (gold, free):
        publish(broker, queue, "", {"a": 60, "b": 60})
    with Consumer(broker.url, {gold: 3, free: 1}, subkey="header:user", prefetch={gold: 200, free: 200}) as consumer:
        eventually(lambda: consumer.stats()["received"] == 240)
        order = Counter(order_of(consumer, 80))
        assert order == {(gold, "a"): 30, (gold, "b"): 30, (free, "a"): 10, (free, "b"): 10}
        order_of(consumer, 160)
    assert broker.left(gold, free) == 0


def test_messages_without_a_subkey_are_of_one(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    broker.publish(queue, numbered(20))
    broker.publish(queue, numbered(2), headers={"user": "ann"})
    with Consumer(broker.url, [queue], subkey="header:user", prefetch=100) as consumer:
        eventually(lambda: consumer.stats()["received"] == 22)
        assert consumer.explain(queue).busiest == (("", 20), ("ann", 2))
        assert order_of(consumer, 22)[:5] == [(queue, ""), (queue, "ann")] * 2 + [(queue, "")]


def test_the_time_of_a_handler_is_charged_to_the_user(broker: Node, new_queue: Declare) -> None:
    """With messages of 10 ms and of none in one tenant, the quick ones do not wait for as many slow ones."""
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {"slow": 60, "quick": 200})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", subkey="header:user", cost="time", prefetch=1000, workers=1
    )
    handled: list[str] = []
    pause = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.subkey)
        if message.subkey == "slow":
            pause.wait(0.01)
        if len(handled) == 260:
            consumer.stop()

    consumer.run(handle)
    assert Counter(handled) == {"slow": 60, "quick": 200}
    assert Counter(handled[:150])["slow"] < 40
    assert broker.left(queue) == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_nothing_is_lost_or_out_of_order_when_a_consumer_with_limits_stops(
    broker: Node, new_queue: Declare, ordered: bool
) -> None:
    queue = new_queue("jobs")
    for tenant in ("a", "b", "c"):
        publish(broker, queue, tenant, {"x": 100, "y": 50})
    handled: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    guard = threading.Lock()

    def consume() -> None:
        options: dict[str, Any] = (
            {"ordering_key": "header:user"} if ordered else {"tenants": {"*": Tenant(limit=Limit(1))}}
        )
        consumer = Consumer(
            broker.url, [queue], key="header:tenant", subkey="header:user", workers=3, prefetch=100, **options
        )

        def handle(message: Any) -> None:
            with guard:
                handled[message.slot, message.subkey].append(int(message.body))
                if sum(map(len, handled.values())) in (90, 200, 450):
                    consumer.stop()

        consumer.run(handle)

    while broker.left(queue):
        consume()
    assert {who: sorted(numbers) for who, numbers in handled.items()} == {
        (tenant, user): list(range(count)) for tenant in "abc" for user, count in (("x", 100), ("y", 50))
    }
    if ordered:
        assert all(numbers == sorted(numbers) for numbers in handled.values())


def test_in_asyncio(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    publish(broker, queue, "acme", {"flood": 100, "ann": 2})
    order: list[Any] = []

    async def main() -> None:
        async with aio.Consumer(
            broker.url, [queue], key="header:tenant", subkey="header:user", prefetch=200
        ) as consumer:
            await asyncio.to_thread(eventually, lambda: consumer.stats()["received"] == 102)
            async for message in consumer:
                order.append(message.subkey)
                message.ack()
                if len(order) == 102:
                    return

    asyncio.run(main())
    assert order[:5] == ["flood", "ann", "flood", "ann", "flood"]
    assert broker.left(queue) == 0
