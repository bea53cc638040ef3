"""kombu and Celery by fairsched's transport, beside the same programs by py-amqp's.

Ratios are of processor time, of all threads and child processes, in runs that alternate. Only publishing with confirms
is compared by the clock as well: py-amqp waits for each confirm, and waiting costs no processor time.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kombu
import pytest
from interleave import medians, record
from support.kombu_workers import TRANSPORTS, connection, flood, processor_time, working
from support.rabbitmq import Node
from support.waiting import eventually

MESSAGES, PAIRS, CONFIRMS, TASKS, ROUNDS, WORKER_ROUNDS = 5000, 1000, 2000, 6000, 7, 3
WINDOW = 250
POOLS = {"prefork": ("-c", "2"), "solo": (), "threads": ("-c", "4")}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as found:
        yield found


def of_both(make: Callable[[str], Callable[[], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median of what each transport's function measures, called in turn."""
    return medians(rounds, **{name: make(name) for name in TRANSPORTS})


def consuming(node: Node, transport: str, size: int) -> Callable[[], int]:
    """Return a function that consumes and acknowledges, and returns its nanoseconds of processor time."""
    queue = f"kombu-{next(_numbers)}"
    node.declare(queue)

    def run() -> int:
        node.publish(queue, [bytes(size)] * MESSAGES)
        left = MESSAGES

        def handle(message: kombu.Message) -> None:
            nonlocal left
            message.ack()
            left -= 1

        with connection(transport, node.url) as link:
            channel = link.channel()
            entity = kombu.Queue(queue, no_declare=True)
            with kombu.Consumer(channel, entity, on_message=handle, prefetch_count=WINDOW):
                since = time.process_time_ns()
                while left:
                    link.drain_events(timeout=60)
                spent = time.process_time_ns() - since
        assert node.count(queue) == 0
        return spent

    return run


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", [100, 1024])
def test_consume_and_acknowledge(benchmark: Any, node: Node, size: int) -> None:
    """Processor time of a message by kombu's Consumer."""
    found = of_both(lambda transport: consuming(node, transport, size))
    each = {name: seconds / MESSAGES * 1e6 for name, seconds in found.items()}
    record(
        benchmark,
        {f"kombu's Consumer, {size} B: processor time, fairsched : py-amqp": (
            each["fairsched"] / each["pyamqp"], "<=", 1 / 8,
        )},
        pyamqp_us=each["pyamqp"], fairsched_us=each["fairsched"],
    )  # fmt: skip
    benchmark.pedantic(consuming(node, "fairsched", size), rounds=1)


def confirming(node: Node, transport: str, clock: Callable[[], int]) -> Callable[[], int]:
    """Return a function that publishes a batch with confirms, and returns the nanoseconds of a clock."""
    queue = f"kombu-{next(_numbers)}"
    node.declare(queue)

    def run() -> int:
        with connection(transport, node.url, transport_options={"confirm_publish": True}) as link:
            producer = kombu.Producer(link.channel())
            body = bytes(100)
            since = clock()
            # By py-amqp's transport, which has no batches, each message is confirmed before the next.
            with producer.batch(max_size=1000):
                for _ in range(CONFIRMS):
                    producer.publish(
                        body, routing_key=queue, content_type="application/data", content_encoding="binary", retry=False
                    )
            spent = clock() - since
        assert node.count(queue) == CONFIRMS
        with node.connect() as channel:
            channel.queue_purge(queue)
        return spent

    return run


@pytest.mark.timeout(1200)
def test_publish_with_confirms(benchmark: Any, node: Node) -> None:
    """Messages a second that are confirmed, and processor time of each."""
    by_clock = of_both(lambda transport: confirming(node, transport, time.perf_counter_ns))
    by_processor = of_both(lambda transport: confirming(node, transport, time.process_time_ns))
    record(
        benchmark,
        {
            "kombu's Producer.batch(), with confirms: messages a second, fairsched : py-amqp": (
                by_clock["pyamqp"] / by_clock["fairsched"], ">=", 10,
            ),
            "kombu's Producer.batch(), with confirms: processor time, fairsched : py-amqp": (
                by_processor["fairsched"] / by_processor["pyamqp"], "<=", 1,
            ),
        },
        pyamqp_us=by_processor["pyamqp"] / CONFIRMS * 1e6, fairsched_us=by_processor["fairsched"] / CONFIRMS * 1e6,
    )  # fmt: skip
    benchmark.pedantic(confirming(node, "fairsched", time.perf_counter_ns), rounds=1)


def pairing(node: Node, transport: str) -> Callable[[], int]:
    """Return a function that puts messages into a SimpleQueue and gets them."""
    queue = f"kombu-{next(_numbers)}"

    def run() -> int:
        with connection(transport, node.url) as link, link.SimpleQueue(queue) as simple:
            since = time.process_time_ns()
            for number in range(PAIRS):
                simple.put({"number": number})
                message = simple.get(timeout=60)
                assert message.payload == {"number": number}
                message.ack()
            return time.process_time_ns() - since

    return run


@pytest.mark.timeout(1200)
def test_simple_queue(benchmark: Any, node: Node) -> None:
    """Processor time of a put and a get of kombu's SimpleQueue."""
    found = of_both(lambda transport: pairing(node, transport))
    record(
        benchmark,
        {"kombu's SimpleQueue, put and get: processor time, fairsched : py-amqp": (
            found["fairsched"] / found["pyamqp"], "<=", 1 / 3,
        )},
        pyamqp_us=found["pyamqp"] / PAIRS * 1e6, fairsched_us=found["fairsched"] / PAIRS * 1e6,
    )  # fmt: skip
    benchmark.pedantic(pairing(node, "fairsched"), rounds=1)


class Pace(NamedTuple):
    """Tasks a second, and processor time of a worker and its processes for each."""

    rate: float
    seconds: float


def paced(node: Node, folder: Path, transport: str, pool: str) -> Pace:
    """Return the pace of a worker in the middle of a flood of tasks that do nothing."""
    queue = f"kombu-{next(_numbers)}"
    folder.mkdir()
    flood(node.url, queue, TASKS)
    with working(transport, node.url, queue, folder, "-P", pool, *POOLS[pool], window=WINDOW) as worker:
        eventually(lambda: node.left(queue) < 0.9 * TASKS, 120, every=0.05)
        first, seconds, since = node.left(queue), processor_time(worker), time.perf_counter()
        eventually(lambda: node.left(queue) < 0.1 * TASKS, 300, every=0.05)
        count = first - node.left(queue)
        pace = Pace(count / (time.perf_counter() - since), (processor_time(worker) - seconds) / count)
    node.delete(queue)
    return pace


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pool", list(POOLS))
def test_tasks_that_do_nothing(benchmark: Any, node: Node, tmp_path: Path, pool: str) -> None:
    """Tasks of a Celery worker for each second of its processor time."""
    paces: dict[str, list[Pace]] = {name: [] for name in TRANSPORTS}
    for number in range(WORKER_ROUNDS):
        for name, found in paces.items():
            found.append(paced(node, tmp_path / f"{name}-{number}", name, pool))
    rate = {name: statistics.median(pace.rate for pace in found) for name, found in paces.items()}
    seconds = {name: statistics.median(pace.seconds for pace in found) for name, found in paces.items()}
    record(
        benchmark,
        {f"Celery, {pool}: tasks for a second of processor time, fairsched : py-amqp": (
            seconds["pyamqp"] / seconds["fairsched"], ">=", 1.3,
        )},
        pyamqp_tasks_s=rate["pyamqp"], fairsched_tasks_s=rate["fairsched"], pyamqp_s=seconds["pyamqp"],
        fairsched_s=seconds["fairsched"],
    )  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
