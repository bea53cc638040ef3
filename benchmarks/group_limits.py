"""Throughput under limits of a group: ``python benchmarks/group_limits.py``.

Eight processes consume one queue with the messages of 200 tenants, once without limits and once with a limit of the
group that each tenant's share of the workers stays below. Rounds alternate; the results are the medians of the ratios
of messages per second, and of processor time per message of all processes with the embedded broker. Both count from the
first tenth of the messages to the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pika

from fairsched import Broker, Consumer, Limit, Publisher, Tenant

#: Threads of each process, and the window of each.
WORKERS, PREFETCH = 4, 400
#: How long the experiment waits for anything, in seconds.
PATIENCE = 300.0


def work(url: str, queue: str, limit: Limit | None, seconds: float, handled: Any, used: Any, stop: Event) -> None:
    """Consume until told to stop; `handled` has the number of messages, and `used` the processor time."""
    pause = threading.Event()
    guard = threading.Lock()

    def handle(_message: object) -> None:
        pause.wait(seconds)
        with guard:
            handled.value += 1
            used.value = time.process_time()

    tenants = {"*": Tenant(limit=limit)}
    options: dict[str, Any] = {} if limit is None else {"tenants": tenants, "share_group": queue}
    consumer = Consumer(url, [queue], key="header:tenant", workers=WORKERS, prefetch=PREFETCH, **options)
    threading.Thread(target=lambda: (stop.wait(), consumer.stop(now=True)), daemon=True).start()
    consumer.run(handle)


@contextlib.contextmanager
def filled(url: str, count: int, tenants: int) -> Iterator[str]:
    """Yield the name of a queue with messages of tenants in random order."""
    queue = f"limits-{uuid.uuid4().hex}"
    names = [f"t{number % tenants}" for number in range(count)]
    random.Random(count).shuffle(names)
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        connection.channel().queue_declare(queue)
    with Publisher(url) as publisher:
        for name in names:
            publisher.publish(b"x" * 100, queue, headers={"tenant": name})
    try:
        yield queue
    finally:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            connection.channel().queue_delete(queue)


def measure(url: str, queue: str, limit: Limit | None, given: argparse.Namespace) -> tuple[float, float]:
    """Return messages per second of all processes, and microseconds of processor time per message."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    counts = [context.Value("q", 0, lock=False) for _ in range(given.processes)]
    used = [context.Value("d", 0.0, lock=False) for _ in range(given.processes)]
    processes = [
        context.Process(target=work, args=(url, queue, limit, given.work, *each, stop))
        for each in zip(counts, used, strict=True)
    ]
    for process in processes:
        process.start()

    def reach(count: int) -> tuple[float, float, int]:
        deadline = time.perf_counter() + PATIENCE
        while sum(one.value for one in counts) < count:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{sum(one.value for one in counts)} of {count} messages after {PATIENCE:g} s")
            time.sleep(0.01)
        seconds = time.process_time() + sum(one.value for one in used)
        return time.perf_counter(), seconds, sum(one.value for one in counts)

    try:
        begin = reach(given.messages // 10)
        end = reach(given.messages * 9 // 10)
    finally:
        stop.set()
        for process in processes:
            process.join(PATIENCE)
    time_passed, seconds, messages = (after - before for after, before in zip(end, begin, strict=True))
    return messages / time_passed, seconds / messages * 1e6


def ratio(runs: dict[str, list[float]]) -> float:
    """Return the median of the ratios with limits to without."""
    return statistics.median(limited / free for limited, free in zip(runs["group"], runs["none"], strict=True))


def main() -> None:
    """Run the rounds, and print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a broker; by default an embedded one")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--messages", type=int, default=40_000, help="in each run")
    parser.add_argument("--work", type=float, default=0.005, help="seconds for which a handler waits")
    parser.add_argument("--concurrency", type=int, default=8, help="of each tenant")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"none": [], "group": []}
    costs: dict[str, list[float]] = {"none": [], "group": []}
    with contextlib.ExitStack() as stack:
        url = given.url or stack.enter_context(Broker()).url
        for number in range(given.rounds):
            for kind in [*rates][:: 1 if number % 2 else -1]:
                limit = Limit(given.concurrency, scope="group") if kind == "group" else None
                with filled(url, given.messages, given.tenants) as queue:
                    rate, cost = measure(url, queue, limit, given)
                rates[kind].append(rate)
                costs[kind].append(cost)
    found = {
        "messages_per_second": rates,
        "microseconds_of_processor_per_message": costs,
        "ratio": ratio(rates),
        "ratio_of_processor": ratio(costs),
    }
    text = json.dumps(found, indent=1)
    print(text)
    Path("build").mkdir(exist_ok=True)
    Path("build/group_limits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
