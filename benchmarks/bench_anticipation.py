"""Shares when the broker is the bottleneck, with and without waiting for the slot whose turn it is.

Ten queues with quanta 4, 8, …, 40 on a real RabbitMQ, windows in proportion to the quanta (the defaults), handlers
that do nothing or compute for 20 us. Both sides take as many messages from the same broker, in turn.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from interleave import record
from support.rabbitmq import Node

from fairsched.consumer import Consumer

QUANTA = {f"turn-{number}": 4 * (number + 1) for number in range(10)}
WHOLE = sum(QUANTA.values())
#: Messages that are counted, after those of the start, which come one queue after the other.
TOTAL, START = 30_000, 2_000
ROUNDS = 7


class Run(NamedTuple):
    """What one side did: messages per second, and the share of each queue over its quantum's."""

    rate: float
    shares: tuple[float, ...]


class Meter:
    """A handler that computes for a while, counts, and takes the time."""

    def __init__(self, service: float) -> None:
        self.service = service
        self.counts: Counter[str] = Counter()
        self.seen = 0
        self.begin = self.end = 0.0

    def handle(self, queue: str) -> bool:
        """Handle one message; False when there were enough."""
        if self.service:
            end = time.perf_counter() + self.service
            while time.perf_counter() < end:
                pass
        self.seen += 1
        if self.seen == START:
            self.begin = time.perf_counter()
        elif START < self.seen <= START + TOTAL:
            self.counts[queue] += 1
        if self.seen == START + TOTAL:
            self.end = time.perf_counter()
        return self.seen < START + TOTAL

    def result(self) -> Run:
        shares = tuple(self.counts[queue] / TOTAL / (quantum / WHOLE) for queue, quantum in QUANTA.items())
        return Run(TOTAL / (self.end - self.begin), shares)


def run(node: Node, service: float, anticipation: float | None) -> Run:
    """Fill the queues, and consume most of what is in them."""
    node.delete(*QUANTA)
    node.declare(*QUANTA)
    for queue, quantum in QUANTA.items():
        # Twice its share: without the cure some take much more than theirs.
        node.publish(queue, [b"x" * 100] * (2 * (START + TOTAL) * quantum // WHOLE))
    meter = Meter(service)
    consumer = Consumer(node.url, QUANTA)
    consumer._client.settings.anticipation = anticipation
    consumer.run(lambda message: meter.handle(message.queue) or consumer.stop(now=True))
    return meter.result()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("service", "name"), [(0.0, "idle handler"), (20e-6, "20 us handler")])
def test_anticipation(benchmark: Any, node: Node, service: float, name: str) -> None:
    """Shares and throughput of the default, and of the same windows when nobody is waited for."""
    runs: dict[str, list[Run]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        runs["without"].append(run(node, service, 0.0))
        runs["with"].append(run(node, service, None))
    rate = {side: statistics.median(one.rate for one in found) for side, found in runs.items()}
    least = {side: statistics.median(min(one.shares) for one in found) for side, found in runs.items()}
    most = {side: statistics.median(max(one.shares) for one in found) for side, found in runs.items()}
    record(
        benchmark,
        {
            f"least share : its quantum's, {name}": (least["with"], ">=", 0.95),
            f"most share : its quantum's, {name}": (most["with"], "<=", 1.05),
            f"msg/s waiting for turns : without, {name}": (rate["with"] / rate["without"], ">=", 0.9),
        },
        with_msg_s=rate["with"],
        without_msg_s=rate["without"],
        without_least_share=least["without"],
        without_most_share=most["without"],
    )
    benchmark.pedantic(run, args=(node, service, None), rounds=1)
