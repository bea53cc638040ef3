"""The sparse-slot boost against a real broker: a quiet tenant among busy ones, and nothing lost."""

from __future__ import annotations

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import Consumer


@pytest.mark.parametrize("boost", [False, True])
def test_a_quiet_tenant_among_busy_ones(broker: Node, new_queue: Declare, boost: bool) -> None:
    queue = new_queue("jobs")
    for tenant in ("a", "b", "c", "d"):
        broker.publish(queue, numbered(100), headers={"tenant": tenant})
    consumer = Consumer(
        broker.url, [queue], key="header:tenant", tenants={"*": 5, "other": 1}, prefetch=1000,
        sparse_boost=boost,
    )  # fmt: skip
    order = []
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 400)
        messages = iter(consumer)

        def take() -> None:
            message = next(messages)
            order.append(message.slot)
            message.ack()

        for _ in range(42):  # two rounds, and into a turn
            take()
        broker.publish(queue, numbered(2), headers={"tenant": "quiet"})
        eventually(lambda: consumer.stats()["received"] == 402)
        rank = consumer.explain("quiet").rank
        for _ in range(402 - 42):
            take()
    assert rank == (0 if boost else 4)
    begun = order.index("quiet") - 42
    assert begun == 0 if boost else begun >= 15
    assert order.count("quiet") == 2
    assert consumer.stats()["acked"] == 402
    assert broker.left(queue) == 0
