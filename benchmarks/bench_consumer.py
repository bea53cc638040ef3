"""The consumer on a real RabbitMQ beside the article's loop over pika, in one interleaved run.

Ten queues with quanta 4, 8, …, 40, messages of 100 bytes, a handler that computes for 20 us, acks exact. Both sides
take as many messages from the same broker. What is compared is messages per second, the client's CPU per message
(user and system time of this process; far steadier than wall time), and how near the shares are to the quanta.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from interleave import record
from peers import consume_as_the_article
from support.rabbitmq import Node

from fairsched.consumer import Consumer

QUANTA = {f"bench-{number}": 4 * (number + 1) for number in range(10)}
TOTAL = 20_000
ROUNDS = 5
SERVICE = 20e-6
#: How many equal queues are compared, and how many messages are handled of all together.
FEW, MANY, MANY_TOTAL = 5, 100, 30_000


class Run(NamedTuple):
    """What one side did."""

    rate: float
    cpu: float
    least_share: float
    most_share: float


class Meter:
    """A handler that computes, counts, and measures from its first message to its last."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.left = TOTAL
        self._begin = (0.0, 0.0)
        self._end = (0.0, 0.0)

    def handle(self, queue: str) -> bool:
        """Handle one message; False when there were enough."""
        if self.left == TOTAL:
            self._begin = time.perf_counter(), cpu_seconds()
        end = time.perf_counter() + SERVICE
        while time.perf_counter() < end:
            pass
        self.counts[queue] += 1
        self.left -= 1
        if self.left == 0:
            self._end = time.perf_counter(), cpu_seconds()
        return self.left > 0

    def result(self) -> Run:
        wall, cpu = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        whole = sum(QUANTA.values())
        shares = [self.counts[queue] / TOTAL / (quantum / whole) for queue, quantum in QUANTA.items()]
        return Run(TOTAL / wall, cpu / TOTAL, min(shares), max(shares))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def consumer_run(node: Node) -> Run:
    """Ours, with the defaults."""
    meter = Meter()
    consumer = Consumer(node.url, QUANTA)

    def handler(message: Any) -> None:
        # The worker may begin another message before it sees the stop; it is deferred, and so requeued.
        if meter.left == 0:
            message.defer()
        elif not meter.handle(message.queue):
            consumer.stop(now=True)

    consumer.run(handler)
    return meter.result()


def article_run(node: Node) -> Run:
    meter = Meter()
    consume_as_the_article(node.url, QUANTA, meter.handle)
    return meter.result()


def fill(node: Node) -> None:
    """Give every queue a fifth more than its share of TOTAL, and something for the windows."""
    whole = sum(QUANTA.values())
    node.delete(*QUANTA)
    node.declare(*QUANTA)
    for queue, quantum in QUANTA.items():
        node.publish(queue, [b"x" * 100] * (TOTAL * quantum * 6 // (5 * whole) + 200))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as found:
        yield found


@pytest.mark.timeout(600)
def test_consumer_beside_the_articles_loop(benchmark: Any, node: Node) -> None:
    """Messages per second and client CPU per message, ten queues, 20 us handler."""
    runs: dict[str, list[Run]] = {"ours": [], "article": []}
    for _ in range(ROUNDS):
        for name, run in (("article", article_run), ("ours", consumer_run)):
            fill(node)
            runs[name].append(run(node))
    rate = {name: statistics.median(run.rate for run in found) for name, found in runs.items()}
    cpu = {name: statistics.median(run.cpu for run in found) for name, found in runs.items()}
    least = statistics.median(run.least_share for run in runs["ours"])
    most = statistics.median(run.most_share for run in runs["ours"])
    record(
        benchmark,
        {
            "consumer : article's loop over pika, msg/s, 20 us handler": (rate["ours"] / rate["article"], ">=", 2.0),
            "consumer : article's loop over pika, client CPU a message": (cpu["ours"] / cpu["article"], "<=", 0.5),
            "least share : its quantum's, consumer": (least, ">=", 0.97),
            "most share : its quantum's, consumer": (most, "<=", 1.03),
        },
        ours_msg_s=rate["ours"],
        article_msg_s=rate["article"],
        ours_cpu_us=cpu["ours"] * 1e6,
        article_cpu_us=cpu["article"] * 1e6,
    )
    fill(node)
    benchmark.pedantic(consumer_run, args=(node,), rounds=1)


def equal_queues(count: int) -> list[str]:
    return [f"equal-{count}-{number}" for number in range(count)]


def processor_time(node: Node, count: int) -> float:
    """Seconds of this process a message with so many equal queues, a handler that does nothing, and the defaults."""
    queues = equal_queues(count)
    node.delete(*queues)
    node.declare(*queues)
    for queue in queues:
        node.publish(queue, [b"x" * 100] * (MANY_TOTAL * 6 // (5 * count) + 100))
    consumer = Consumer(node.url, queues)
    # Counted from the tenth part on: starting a hundred consumers is not what is asked here.
    marks: dict[int, float] = {}
    handled = 0

    def handler(message: Any) -> None:
        nonlocal handled
        handled += 1
        if handled in (MANY_TOTAL // 10, MANY_TOTAL):
            marks[handled] = cpu_seconds()
        if handled == MANY_TOTAL:
            consumer.stop(now=True)
        elif handled > MANY_TOTAL:
            message.defer()

    consumer.run(handler)
    return (marks[MANY_TOTAL] - marks[MANY_TOTAL // 10]) / (MANY_TOTAL - MANY_TOTAL // 10)


@pytest.mark.timeout(600)
def test_a_hundred_queues_beside_five(benchmark: Any, node: Node) -> None:
    """Client CPU per message."""
    runs: dict[int, list[float]] = {FEW: [], MANY: []}
    for _ in range(ROUNDS):
        for count, found in runs.items():
            found.append(processor_time(node, count))
    few, many = statistics.median(runs[FEW]), statistics.median(runs[MANY])
    record(
        benchmark,
        {"100 equal queues : 5, client CPU a message, defaults": (many / few, "<=", 1.5)},
        few_cpu_us=few * 1e6,
        many_cpu_us=many * 1e6,
    )
    benchmark.pedantic(processor_time, args=(node, MANY), rounds=1)
