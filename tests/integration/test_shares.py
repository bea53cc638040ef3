"""The share of each queue, against a real broker."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import Counter

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import busy, consume
from support.waiting import eventually

from fairsched.amqp.transport import Transport
from fairsched.consumer import Consumer, Message
from fairsched.fairness import jain

pytestmark = pytest.mark.steady


def test_the_seed_experiment_gives_every_queue_its_share(broker: Node, new_queue: Declare) -> None:
    quanta = {new_queue("seed"): 4 * (number + 1) for number in range(10)}
    total = 20_000
    for queue, quantum in quanta.items():
        # A tenth more than its share, so that no queue runs dry before the end.
        broker.publish(queue, [b"x" * 100] * int(total * quantum / 220 * 1.1 + 100))
    counts: Counter[str] = Counter()
    consumer = Consumer(broker.url, quanta, prefetch=dict.fromkeys(quanta, 50))

    def handler(message: object) -> None:
        if counts.total() < total:
            busy(100e-6)
            counts[message.queue] += 1
            if counts.total() == total:
                consumer.stop(now=True)

    consumer.run(handler)
    for queue, quantum in quanta.items():
        assert counts[queue] / total == pytest.approx(quantum / 220, rel=0.03), counts
    assert jain([counts[queue] / quantum for queue, quantum in quanta.items()]) >= 0.9999


def test_the_first_messages_are_shared_too(broker: Node, new_queue: Declare) -> None:
    queues = {new_queue("first"): 1, new_queue("first"): 1, new_queue("first"): 2}
    for queue in queues:
        broker.publish(queue, numbered(300))
    order: list[str] = []
    consumer = Consumer(broker.url, queues, prefetch=400)

    def handler(message: object) -> None:
        order.append(message.queue)
        if len(order) == 80:
            consumer.stop(now=True)

    consumer.run(handler)
    counts = Counter(order[:80])
    assert all(counts[queue] == 20 * weight for queue, weight in queues.items()), counts


def test_tenants_by_header_share_by_weight(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("tenants")
    for tenant in ("gold", "free", None):
        headers = {"tenant": tenant} if tenant else None
        broker.publish(queue, numbered(400), headers=headers)
    order: list[str] = []
    consumer = Consumer(broker.url, [queue], prefetch=1200, key="header:tenant", tenants={"gold": 6, "*": 2})
    buffered = threading.Event()

    def handler(message: object) -> None:
        if not order:
            # The first message may be served before the others have come; the shares are of what waits here.
            eventually(lambda: consumer.stats()["received"] == 1200)
            buffered.set()
        order.append(message.headers.get("tenant", ""))
        if len(order) == 1200:
            consumer.stop()

    consumer.run(handler)
    first = Counter(order[:501])
    assert first["gold"] == pytest.approx(300, abs=8)
    assert first["free"] == pytest.approx(100, abs=8)
    assert first[""] == pytest.approx(100, abs=8)


def test_cost_time_shares_working_time(broker: Node, new_queue: Declare) -> None:
    slow, quick = new_queue("slow"), new_queue("quick")
    broker.publish(slow, numbered(600))
    broker.publish(quick, numbered(2400))
    spent: Counter[str] = Counter()
    consumer = Consumer(broker.url, [slow, quick], cost="time", prefetch={slow: 100, quick: 400})

    def handler(message: object) -> None:
        begin = time.perf_counter()
        busy(2e-3 if message.queue == slow else 0.5e-3)
        if sum(spent.values()) < 1.0:
            spent[message.queue] += time.perf_counter() - begin
        else:
            consumer.stop(now=True)

    consumer.run(handler)
    assert spent[slow] / (spent[slow] + spent[quick]) == pytest.approx(0.5, abs=0.05)


def test_cost_bytes_shares_volume(broker: Node, new_queue: Declare) -> None:
    large, small = new_queue("large"), new_queue("small")
    broker.publish(large, [b"x" * 5000] * 400)
    broker.publish(small, [b"x" * 1000] * 2000)
    volume: Counter[str] = Counter()
    consumer = Consumer(broker.url, [large, small], cost="bytes", prefetch={large: 100, small: 400})

    def handler(message: object) -> None:
        busy(200e-6)
        volume[message.queue] += len(message.body)
        if volume.total() > 2_000_000:
            consumer.stop(now=True)

    consumer.run(handler)
    assert volume[large] / volume.total() == pytest.approx(0.5, abs=0.05)


def test_windows_too_small_for_the_measured_round_trip_are_reported_once(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queues = {new_queue("flat"): 100, new_queue("flat"): 1}
    for queue in queues:
        broker.publish(queue, numbered(1500))
    with caplog.at_level(logging.WARNING, "fairsched.consumer"):
        consume(Consumer(broker.url, queues, prefetch=20), 3000)
    warnings = [record.getMessage() for record in caplog.records if "shares will flatten" in record.getMessage()]
    assert len(warnings) == 1
    assert "and needs 100 * (1 + ceil(" in warnings[0]


def test_shares_hold_with_measured_windows_and_a_consumer_that_reads_itself(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows start narrow and are replaced while the thread that consumes has the connection."""
    units = {new_queue("auto"): number for number in (1, 2, 4)}
    start, total = 10_000, 24_000
    for queue, unit in units.items():
        broker.publish(queue, [b"x"] * int(total * unit / 7 * 1.1 + 100))
    borrowed: list[int] = []
    count = Transport.count

    def noted(self: Transport, received: int, *more: int) -> None:
        borrowed.append(received)
        count(self, received, *more)

    monkeypatch.setattr(Transport, "count", noted)
    counts: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    # Long enough for the slowest of machines: this is about shares, and not about time.
    consumer = Consumer(broker.url, units, prefetch="auto")
    consumer._client.settings.anticipation = 5.0

    def handler(message: Message) -> None:
        counts[message.queue] += 1
        if counts.total() == start:
            shares.update({queue: -number for queue, number in counts.items()})
        if counts.total() == total:
            shares.update(counts)
            consumer.stop(now=True)

    consumer.run(handler)
    assert not hasattr(select, "epoll") or sum(borrowed) > 0
    for queue, unit in units.items():
        assert shares[queue] / (total - start) == pytest.approx(unit / 7, rel=0.05), (counts, shares)


def test_shares_hold_when_the_broker_is_the_bottleneck(broker: Node, new_queue: Declare) -> None:
    """A handler that does nothing empties every slot at once; without waiting for turns shares are 0.8 to 1.5."""
    quanta = {new_queue("idle"): 4 * (number + 1) for number in range(10)}
    start, total = 1000, 20_000
    for queue, quantum in quanta.items():
        broker.publish(queue, [b"x"] * (2 * (start + total) * quantum // 220))
    order: list[str] = []
    # Long enough for the slowest of machines: this is about shares, and not about time.
    consumer = Consumer(broker.url, quanta)
    consumer._client.settings.anticipation = 5.0

    def handler(message: object) -> None:
        order.append(message.queue)
        if len(order) == start + total:
            consumer.stop(now=True)

    consumer.run(handler)
    # Without those of the start, when queues are subscribed one after the other.
    counts = Counter(order[start : start + total])
    for queue, quantum in quanta.items():
        assert counts[queue] / total == pytest.approx(quantum / 220, rel=0.05), counts


def test_a_queue_that_has_run_dry_is_not_waited_for(broker: Node, new_queue: Declare) -> None:
    """Its last messages fill the window, so that it is held; the broker says that there are no more."""
    dry, full = new_queue("dry"), new_queue("full")
    broker.publish(dry, numbered(300))
    broker.publish(full, numbered(3000))
    left: list[float] = []
    consumer = Consumer(broker.url, [dry, full], prefetch={dry: 100, full: 100})
    consumer._client.settings.anticipation = 60.0

    def handler(message: object) -> None:
        left.append(time.monotonic())
        if len(left) == 3300:
            consumer.stop()

    begin = time.monotonic()
    consumer.run(handler)
    assert left[-1] - begin < 30
