"""FairQueue beside the queues people use today."""

from __future__ import annotations

import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from interleave import medians, record
from peers import ArticleLoop, PlainDrr

from fairsched import FairQueue

COUNT = 20_000


def pairs_of(put: Callable[[int], Any], get: Callable[[], Any]) -> Callable[[], None]:
    """A loop of COUNT puts, each followed by a get."""

    def loop() -> None:
        for i in range(COUNT):
            put(i)
            get()

    return loop


def test_put_get(benchmark: Any) -> None:
    """One thread: put, then get."""
    simple: queue.SimpleQueue[int] = queue.SimpleQueue()
    standard: queue.Queue[int] = queue.Queue()
    plain = PlainDrr(dict.fromkeys("abcdefghij", 4))
    fair = FairQueue(dict.fromkeys("abcdefghij", 4))

    def fair_loop() -> None:
        put, get = fair.put, fair.get
        for i in range(COUNT):
            put("c", i)
            get()

    def plain_loop() -> None:
        put, get = plain.put, plain.get
        for i in range(COUNT):
            put("c", i)
            get()

    took = medians(
        fair=fair_loop,
        simple=pairs_of(simple.put, simple.get),
        standard=pairs_of(standard.put, standard.get),
        plain=plain_loop,
    )
    record(
        benchmark,
        {
            "FairQueue : SimpleQueue, put+get, one thread": (took["fair"] / took["simple"], "<=", 2.0),
            "queue.Queue : FairQueue, put+get, one thread": (took["standard"] / took["fair"], ">=", 15),
            "plain Python DRR : FairQueue, put+get, one thread": (took["plain"] / took["fair"], ">=", 3),
        },
        **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(fair_loop, rounds=30)


def test_two_levels(benchmark: Any) -> None:
    """One thread, put and get among a hundred items: with a subkey for each, and without."""
    users = [f"user-{number}" for number in range(10)]
    plain = FairQueue(dict.fromkeys("abcdefghij", 4))
    divided = FairQueue(dict.fromkeys("abcdefghij", 4), subkey_quantum=1)
    for i in range(100):
        plain.put("abcdefghij"[i % 10], i)
        divided.put("abcdefghij"[i % 10], i, subkey=users[i // 10])

    def plain_loop() -> None:
        put, get = plain.put, plain.get
        for i in range(COUNT):
            put("c", i)
            get()

    def divided_loop() -> None:
        put, get = divided.put, divided.get
        for i in range(COUNT):
            put("c", i, subkey=users[i % 10])
            get()

    took = medians(plain=plain_loop, divided=divided_loop)
    record(
        benchmark,
        {"FairQueue with subkeys : without, put+get": (took["divided"] / took["plain"], "<=", 3)},
        **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(divided_loop, rounds=30)


def test_batches(benchmark: Any) -> None:
    """put_many + get_many of 256 objects, against the article's loop with a deque per slot."""
    size, repeat = 256, 20
    names, items = ["abcdefghij"[i % 10] for i in range(size)], [object() for _ in range(size)]
    fair, article = FairQueue(dict.fromkeys("abcdefghij", 4)), ArticleLoop(dict.fromkeys("abcdefghij", 4))

    def batches() -> None:
        for _ in range(repeat):
            fair.put_many(names, items)
            fair.get_many(size)

    def loop() -> None:
        for _ in range(repeat):
            for slot, item in zip(names, items, strict=True):
                article.push(slot, item)
            article.drain()

    took = medians(51, batches=batches, loop=loop)
    record(
        benchmark,
        {"article's loop : put_many+get_many of 256": (took["loop"] / took["batches"], ">=", 12)},
        **{f"{name}_ns": seconds / size / repeat * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(batches, rounds=30)


def wake_ups(put: Callable[[float], Any], get: Callable[[], float], computing: float, rounds: int) -> float:
    """Median seconds from a put to the return of a blocked get in another thread.

    The producer waits until the consumer is parked, puts the time, and goes on computing for a while.
    """
    latencies: list[float] = []
    asleep = threading.Event()

    def consume() -> None:
        for _ in range(rounds):
            asleep.set()
            sent = get()
            latencies.append(time.perf_counter() - sent)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(rounds):
        asleep.wait()
        asleep.clear()
        # The consumer goes from the event into its blocking get. Whether it is there, only one of the two queues could
        # say; so both are given the same time, many times what it takes.
        time.sleep(0.0005)
        put(time.perf_counter())
        until = time.perf_counter() + computing
        while time.perf_counter() < until:
            pass
    consumer.join()
    return statistics.median(latencies)


def test_wake_up(benchmark: Any) -> None:
    """A get that blocks, woken by a put in another thread; then the same with a producer that goes on computing."""
    simple: queue.SimpleQueue[float] = queue.SimpleQueue()
    fair = FairQueue({"a": 1})

    def one(computing: float) -> tuple[float, float]:
        ours = wake_ups(lambda t: fair.put("a", t), lambda: fair.get()[1], computing, 200)
        theirs = wake_ups(simple.put, simple.get, computing, 200)
        return ours, theirs

    idle = [one(0.0) for _ in range(7)]
    busy = [one(0.0005) for _ in range(7)]
    figures = {
        "fair_us": statistics.median(ours for ours, _ in idle) * 1e6,
        "simple_us": statistics.median(theirs for _, theirs in idle) * 1e6,
        "fair_computing_us": statistics.median(ours for ours, _ in busy) * 1e6,
        "simple_computing_us": statistics.median(theirs for _, theirs in busy) * 1e6,
    }
    record(
        benchmark,
        {
            "FairQueue : SimpleQueue, blocked get woken, p50": (figures["fair_us"] / figures["simple_us"], "<=", 0.6),
            "FairQueue : SimpleQueue, the same while the producer computes": (
                figures["fair_computing_us"] / figures["simple_computing_us"],
                "<=",
                0.1,
            ),
        },
        **figures,
    )
    benchmark.pedantic(lambda: wake_ups(lambda t: fair.put("a", t), lambda: fair.get()[1], 0.0, 100), rounds=5)


def hand_over(produce: Callable[[], None], consume: Callable[[], None]) -> None:
    """Run both to their end, in two threads."""
    producer = threading.Thread(target=produce)
    producer.start()
    consume()
    producer.join()


def test_hand_over(benchmark: Any) -> None:
    """From one thread to another in batches of 256, against SimpleQueue's only way: one by one."""
    size, batches = 256, 400
    simple: queue.SimpleQueue[int] = queue.SimpleQueue()
    fair = FairQueue(dict.fromkeys("abcdefghij", 4))
    names, items = ["abcdefghij"[i % 10] for i in range(size)], list(range(size))

    def produce_fair() -> None:
        for _ in range(batches):
            fair.put_many(names, items)

    def consume_fair() -> None:
        left = size * batches
        while left:
            left -= len(fair.get_many(size))

    def produce_simple() -> None:
        put = simple.put
        for _ in range(batches):
            for item in items:
                put(item)

    def consume_simple() -> None:
        get = simple.get
        for _ in range(size * batches):
            get()

    took = medians(
        15,
        fair=lambda: hand_over(produce_fair, consume_fair),
        simple=lambda: hand_over(produce_simple, consume_simple),
    )
    record(
        benchmark,
        {
            "SimpleQueue : FairQueue, hand-over between threads, batches of 256": (
                took["simple"] / took["fair"],
                ">=",
                2,
            )
        },
        **{f"{name}_ns": seconds / size / batches * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: hand_over(produce_fair, consume_fair), rounds=10)


MEMORY = """
import gc, os
from fairsched import FairQueue

def resident():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

messages, slots, item = 1_000_000, 100_000, object()
fair = FairQueue(dict.fromkeys("abcdefghij", 4))
before = resident()
for name in "abcdefghij":
    for _ in range(messages // 10):
        fair.put(name, item)
print((resident() - before) / messages)
before = resident()
tenants = FairQueue({f"tenant-{i:06}": 1 for i in range(slots)})
print((resident() - before) / slots)
"""


def test_memory(benchmark: Any) -> None:
    """Bytes beyond the object for each queued message, and for each idle slot, its name included.

    Measured in a fresh process: in this one, memory freed before would be used again and seem to cost nothing.
    """
    printed = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True).stdout
    per_message, per_slot = map(float, printed.split())
    record(
        benchmark,
        {
            "bytes a queued message : 48": (per_message / 48, "<=", 1),
            "bytes an idle slot, its name included : 512": (per_slot / 512, "<=", 1),
        },
        bytes_per_message=per_message,
        bytes_per_slot=per_slot,
    )
    benchmark.pedantic(lambda: FairQueue({f"tenant-{i:06}": 1 for i in range(100_000)}), rounds=5)
