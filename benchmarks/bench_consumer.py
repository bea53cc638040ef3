"""The consumer on a real RabbitMQ beside the article's loop over pika, in one interleaved run.

Ten queues with quanta 4, 8, …, 40, messages of 100 bytes, a handler that computes for 20 us, acks exact. Both sides
take as many messages from the same broker. What is compared is messages per second, the client's CPU per message
(user and system time of this process; far steadier than wall time), and how near the shares are to the quanta.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from interleave import record
from peers import consume_as_the_article
from support.rabbitmq import Node
from support.running import busy

from fairsched.consumer import Consumer

QUANTA = {f"bench-{number}": 4 * (number + 1) for number in range(10)}
TOTAL = 20_000
ROUNDS = 5
SERVICE = 20e-6
#: How many equal queues are compared, and how many messages are handled of all together.
FEW, MANY, MANY_TOTAL = 5, 100, 30_000
#: Messages of a run in a share group: several seconds, since workers exchange their totals once a second.
GROUP, GROUP_TOTAL, GROUP_ROUNDS = "bench", 200_000, 9
#: Another worker of the group, in a process of its own, until its input ends.
OTHER_WORKER = """
import sys
from fairsched import Consumer
url, group = sys.argv[1:]
with Consumer(url, ["bench-other"], share_group=group):
    print("consuming", flush=True)
    sys.stdin.read()
"""


class Run(NamedTuple):
    """What one side did."""

    rate: float
    cpu: float
    least_share: float
    most_share: float


class Meter:
    """A handler that computes, counts, and measures from its first message to its last."""

    def __init__(self, total: int = TOTAL) -> None:
        self.counts: Counter[str] = Counter()
        self.total = self.left = total
        self._begin = (0.0, 0.0)
        self._end = (0.0, 0.0)

    def handle(self, queue: str) -> bool:
        """Handle one message; False when there were enough."""
        if self.left == self.total:
            self._begin = time.perf_counter(), cpu_seconds()
        busy(SERVICE)
        self.counts[queue] += 1
        self.left -= 1
        if self.left == 0:
            self._end = time.perf_counter(), cpu_seconds()
        return self.left > 0

    def result(self) -> Run:
        wall, cpu = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        whole = sum(QUANTA.values())
        shares = [self.counts[queue] / self.total / (quantum / whole) for queue, quantum in QUANTA.items()]
        return Run(self.total / wall, cpu / self.total, min(shares), max(shares))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def consumer_run(node: Node, total: int = TOTAL, **options: Any) -> Run:
    """Ours, with the defaults unless options say otherwise."""
    meter = Meter(total)
    consumer = Consumer(node.url, QUANTA, **options)

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


def fill(node: Node, total: int = TOTAL) -> None:
    """Give every queue a fifth more than its share of the total, and something for the windows."""
    whole = sum(QUANTA.values())
    node.delete(*QUANTA)
    node.declare(*QUANTA)
    for queue, quantum in QUANTA.items():
        node.publish(queue, [b"x" * 100] * (total * quantum * 6 // (5 * whole) + 200))


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


@contextlib.contextmanager
def other_worker(node: Node) -> Iterator[None]:
    """Another member of the share group, which has nothing to do."""
    node.declare("bench-other")
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_WORKER, node.url, GROUP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "consuming\n"
        yield
    finally:
        process.communicate("", timeout=60)


@pytest.mark.timeout(900)
def test_a_share_group(benchmark: Any, node: Node) -> None:
    """Messages per second and client CPU per message of a worker that keeps shares with another, and of one alone."""
    runs: dict[str | None, list[Run]] = {None: [], GROUP: []}
    with other_worker(node):
        for number in range(GROUP_ROUNDS):
            for group, found in [*runs.items()][:: 1 if number % 2 else -1]:
                fill(node, GROUP_TOTAL)
                found.append(consumer_run(node, GROUP_TOTAL, share_group=group))
    # Round by round: how fast the machine is changes more from one to the next than by the group.
    pairs = list(zip(runs[GROUP], runs[None], strict=True))
    record(
        benchmark,
        {
            "in a share group : alone, msg/s, 20 us handler": (
                statistics.median(ours.rate / alone.rate for ours, alone in pairs), ">=", 0.99,
            ),
            "in a share group : alone, client CPU a message": (
                statistics.median(ours.cpu / alone.cpu for ours, alone in pairs), "<=", 1.01,
            ),
        },
        rate_in_group=statistics.median(run.rate for run in runs[GROUP]),
        rate_alone=statistics.median(run.rate for run in runs[None]),
    )  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
