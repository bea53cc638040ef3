"""Strict bands against a real broker: what is served first, what a limit leaves to the others, what explain says."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import Consumer, Limit, Queue, Tenant


class Handler:
    """Notes whose messages are handled, in order; they stay in hand until the gate is open."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.order: list[str] = []
        self.gate = threading.Event()
        self._thread = threading.Thread(target=consumer.run, args=(self._handle,))

    def _handle(self, message: Any) -> None:
        self.order.append(message.slot)
        self.gate.wait(60)

    def __enter__(self) -> Handler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        if not self.consumer.state.stopping:  # twice would mean at once
            self.consumer.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "the consumer hangs"


def test_what_comes_later_in_a_band_before_is_handled_first(broker: Node, new_queue: Declare) -> None:
    bulk, gold = new_queue("bulk"), new_queue("gold")
    broker.publish(bulk, numbered(50))
    consumer = Consumer(broker.url, [Queue(bulk, weight=9, prefetch=50), Queue(gold, band=0, prefetch=20)])
    with Handler(consumer) as handler:
        eventually(lambda: handler.order == [bulk])
        broker.publish(gold, numbered(20))
        eventually(lambda: consumer.stats()["received"] == 70)
        why = consumer.explain(bulk)
        assert (why.band, why.above, why.rank, why.others) == (4, 20, 1, 1)
        assert "20 messages of earlier bands (its own is 4) are served first" in str(why)
        assert (consumer.explain(gold).band, consumer.explain(gold).above) == (0, 0)
        handler.gate.set()
        eventually(lambda: len(handler.order) == 70)
    assert handler.order == [bulk] + [gold] * 20 + [bulk] * 49
    assert consumer.stats()["acked"] == 70
    assert broker.left(bulk, gold) == 0


def test_tenants_of_one_queue_and_a_limit_against_starvation(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("jobs")
    for tenant in ("reports", "a", "alarms", "b"):
        broker.publish(queue, numbered(10), headers={"tenant": tenant})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", workers=3, prefetch=100,
        tenants={"alarms": Tenant(band=0, limit=Limit(2)), "reports": Tenant(band=7)},
    )  # fmt: skip
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 40)
        messages = iter(consumer)
        held = [next(messages) for _ in range(6)]
        assert [message.slot for message in held] == ["alarms", "alarms", "a", "b", "a", "b"]
        held.pop(0).ack()
        held.append(next(messages))
        assert held[-1].slot == "alarms"
        for message in held:
            message.ack()
        order = []
        for _ in range(40 - 7):
            message = next(messages)
            order.append(message.slot)
            message.ack()
        assert order == ["alarms"] * 7 + ["a", "b"] * 8 + ["reports"] * 10
    assert broker.left(queue) == 0


def test_shares_within_a_band_hold_while_another_interrupts(broker: Node, new_queue: Declare) -> None:
    gold, three, one = new_queue("gold"), new_queue("three"), new_queue("one")
    broker.publish(three, numbered(300))
    broker.publish(one, numbered(300))
    consumer = Consumer(broker.url, [Queue(gold, band=1), Queue(three, weight=3), Queue(one)], prefetch=600)
    with consumer:
        eventually(lambda: consumer.stats()["received"] >= 400)
        messages = iter(consumer)
        order = []
        for number in range(100):
            if number % 10 == 5:
                broker.publish(gold, numbered(3))
                eventually(lambda: consumer.explain(gold).buffered == 3)
            message = next(messages)
            order.append(message.slot)
            message.ack()
        assert order.count(gold) == 30
        assert abs(order.count(three) - 3 * order.count(one)) <= 6


@pytest.mark.parametrize("ordering", [None, "header:key"])
def test_nothing_is_lost_when_a_consumer_with_bands_stops(
    broker: Node, new_queue: Declare, ordering: str | None
) -> None:
    first, last = new_queue("first"), new_queue("last")
    broker.publish(first, numbered(100))
    broker.publish(last, numbered(100))
    consumer = Consumer(
        broker.url, [Queue(first, band=0), Queue(last, band=7)], prefetch=400, workers=2, ordering_key=ordering
    )
    with Handler(consumer) as handler:
        eventually(lambda: consumer.stats()["received"] == 200)
        consumer.stop(now=True)
        handler.gate.set()
    eventually(lambda: broker.left(first, last) == 200 - consumer.stats()["acked"])
