"""Settlement from many threads while connections are lost, and what ends a consumer in the midst of a read."""

from __future__ import annotations

import logging
import threading
from collections import Counter

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched.consumer import Consumer

MESSAGES, CUTS = 20_000, 4


def test_sixteen_threads_settle_while_the_connection_is_cut(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [new_queue("settled") for _ in range(2)]
    for queue in queues:
        broker.publish(queue, numbered(MESSAGES // 2))
    handled: Counter[tuple[str, bytes]] = Counter()
    acked = [0] * 16
    guard = threading.Lock()

    def work(number: int) -> None:
        for message in consumer:
            with guard:
                handled[message.queue, message.body] += 1
            acked[number] += message.ack()
            assert not message.nack()

    with caplog.at_level(logging.WARNING), Proxy(broker.port) as proxy:
        with Consumer(behind(proxy, broker.url), queues, prefetch=200) as consumer:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
            for thread in threads:
                thread.start()
            for part in range(1, CUTS + 1):
                eventually(lambda part=part: len(handled) >= part * MESSAGES // (CUTS + 1), 60)
                proxy.cut()
                eventually(lambda part=part: consumer.stats()["reconnects"] >= part, 30)
            eventually(lambda: len(handled) == MESSAGES, 60, f"{len(handled)} handled")
            eventually(lambda: sum(broker.count(queue) for queue in queues) == 0)
            consumer.stop()
            for thread in threads:
                thread.join(30)
            stats = consumer.stats()
        eventually(lambda: sum(broker.count(queue) for queue in queues) == 0)
    assert set(handled) == {(queue, body) for queue in queues for body in numbered(MESSAGES // 2)}
    assert stats["acked"] == sum(acked)
    assert stats["acked"] + stats["stale_settlements"] == sum(handled.values())
    assert stats["reconnects"] == CUTS
    assert "PRECONDITION_FAILED" not in caplog.text
    assert "unknown delivery tag" not in caplog.text
    assert not any("channel of queue" in record.getMessage() for record in caplog.records)


class Unequal:
    """A tenant that can be hashed, and compared with none."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("not equal to anything")


def test_a_tenant_that_cannot_be_compared_ends_the_consumer(broker: Node, new_queue: Declare) -> None:
    """And does not have the connection made again for ever, each time with the same messages."""
    queue = new_queue("unequal")
    broker.publish(queue, numbered(3))
    consumer = Consumer(broker.url, [queue], key=lambda message: Unequal())
    with pytest.raises(ZeroDivisionError, match="not equal to anything"):
        consumer.run(lambda message: None)
    assert consumer.stats()["reconnects"] == 0
    eventually(lambda: broker.count(queue) > 0)
