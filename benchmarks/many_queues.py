"""Ten thousand queues in one consumer: ``python benchmarks/many_queues.py``.

1. `add`: three queues are consumed by weight with a backlog while a thousand more are added: how long that takes, and
   the shares of the three meanwhile.
2. `idle`: 10 000 queues are known, of which a hundred get messages at random times: the processor time of the consumer
   while none comes, the wait from publish to handler of the first message of every queue, memory, start and stop.
3. `churn`: queues are added and removed, a thousand at a time: the time of each, and the memory after each tenth.

The consumer runs in a process of its own, so processor time and memory are its alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from lanes_flood import channel

from fairsched import Broker, Consumer, Publisher, Queue, QueueSource

#: How long the experiment waits for anything, in seconds, and how many queues change at a time.
PATIENCE, AT_A_TIME = 600.0, 1000
#: Weights of the queues whose shares are compared, and the time that a handler of theirs takes.
WEIGHTS, SERVICE = {"one": 1, "two": 2, "four": 4}, 0.0005


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait for a condition; return the seconds that it took."""
    begin = time.perf_counter()
    while not condition():
        if time.perf_counter() - begin > PATIENCE:
            raise TimeoutError(f"not within {PATIENCE:g} s")
        time.sleep(0.002)
    return time.perf_counter() - begin


class ChangingQueues:
    """A source of queues whose answer the experiment sets."""

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues

    def __call__(self) -> list[Queue]:
        """Return the queues."""
        return self.queues


@contextlib.contextmanager
def running(consumer: Consumer, handle: Callable[[Any], None]) -> Iterator[None]:
    """Consume in a thread of its own; yield when every queue is consumed."""
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    try:
        yield
    finally:
        consumer.stop(now=True)
        thread.join()


def all_consumed(consumer: Consumer, count: int) -> Callable[[], bool]:
    """Return the condition that so many queues are consumed, and no others known."""
    return lambda: [*consumer.state.consuming.values()] == [True] * count


def add(url: str, names: list[str], pipe: Connection) -> None:
    """Add queues while others are consumed; send the times and what was handled in each phase."""
    source = ChangingQueues([Queue(name, weight=weight, prefetch=200) for name, weight in WEIGHTS.items()])
    consumer = Consumer(url, QueueSource(source, every=0.01))
    handled: Counter[str] = Counter()

    def handle(message: Any) -> None:
        handled[message.queue] += 1
        time.sleep(SERVICE)

    with running(consumer, handle):
        wait_until(lambda: sum(handled.values()) > 200)
        windows = {name: consumer._client.windows()[name] for name in WEIGHTS}
        begin = Counter(handled)
        source.queues = [*source.queues, *(Queue(name, prefetch=10) for name in names)]
        seconds = wait_until(all_consumed(consumer, len(WEIGHTS) + len(names)))
        served = handled - begin
        kept = windows == {name: consumer._client.windows()[name] for name in WEIGHTS}
    whole = sum(served.values())
    shares = {name: round(served[name] / whole, 3) for name in WEIGHTS}
    pipe.send({"added": len(names), "seconds": seconds, "shares": shares, "windows_kept": kept, "served": whole})


def idle(url: str, names: list[str], pipe: Connection) -> None:
    """Consume many queues; send the figures when told that every message was published."""
    gc.collect()
    before, waits = resident(), []

    def handle(message: Any) -> None:
        waits.append(time.time() - float(message.body))

    consumer = Consumer(url, [Queue(name, prefetch=10) for name in names])
    begin, used = time.perf_counter(), time.process_time()
    with running(consumer, handle):
        wait_until(lambda: consumer.state.connected and all(consumer.state.consuming.values()))
        figures: dict[str, Any] = {
            "start": time.perf_counter() - begin, "start_processor": time.process_time() - used,
            "memory_per_queue": (resident() - before) / len(names),
        }  # fmt: skip
        time.sleep(2.0)  # until what a start leaves is done
        begin, used = time.perf_counter(), time.process_time()
        time.sleep(pipe.recv())
        figures["idle_percent"] = 100 * (time.process_time() - used) / (time.perf_counter() - begin)
        pipe.send("idle")
        wanted = pipe.recv()
        wait_until(lambda: len(waits) == wanted)
        begin = time.perf_counter()
    figures |= {"stop": time.perf_counter() - begin, "waits": waits}
    pipe.send(figures)


def churn(url: str, names: list[str], pipe: Connection) -> None:
    """Add and remove queues many times; send the times and the memory after each tenth."""
    times = pipe.recv()
    first = Queue(names[0], prefetch=10)
    others = [Queue(name, prefetch=10) for name in names[1:]]
    source = ChangingQueues([first])
    consumer = Consumer(url, QueueSource(source, every=0.01))
    memory, rounds = [], max(1, times // len(others))
    with running(consumer, lambda _message: None):
        wait_until(all_consumed(consumer, 1))
        begin = time.perf_counter()
        for number in range(rounds):
            source.queues = [first, *others]
            wait_until(all_consumed(consumer, len(names)))
            source.queues = [first]
            wait_until(all_consumed(consumer, 1))
            if (number + 1) % max(1, rounds // 10) == 0:
                gc.collect()
                memory.append(round(resident() / 1e6, 1))
        seconds = time.perf_counter() - begin
    pipe.send({"times": rounds * len(others), "seconds_per_1000": 1000 * seconds / rounds / len(others), "MB": memory})


@contextlib.contextmanager
def process(target: Callable[..., None], url: str, names: list[str]) -> Iterator[Connection]:
    """Run a function in a process of its own; yield a pipe to it."""
    start = multiprocessing.get_context("spawn")
    ours, theirs = start.Pipe()
    child = start.Process(target=target, args=(url, names, theirs))
    child.start()
    try:
        yield ours
    finally:
        child.join(PATIENCE)


@contextlib.contextmanager
def declared(url: str, names: list[str]) -> Iterator[None]:
    """Declare queues that exist meanwhile."""
    with channel(url) as declaring:
        for name in names:
            declaring.queue_declare(name)
    try:
        yield
    finally:
        with channel(url) as deleting:
            for name in names:
                deleting.queue_delete(name)


def publish_first(url: str, names: list[str], seconds: float) -> None:
    """Publish one message into each queue, at random times."""
    draw = random.Random(1)
    with Publisher(url) as publisher:
        begin = time.time()
        for at, name in sorted((draw.uniform(0, seconds), name) for name in names):
            time.sleep(max(0.0, begin + at - time.time()))
            publisher.publish(b"%r" % time.time(), name)


def measure_add(url: str, chosen: argparse.Namespace) -> Any:
    """Add queues while others are consumed."""
    names = [f"added.{chosen.run}.{number}" for number in range(chosen.added)]
    with declared(url, [*WEIGHTS, *names]):
        with Publisher(url) as publisher:
            for name in WEIGHTS:
                for _ in range(chosen.backlog):
                    publisher.publish(b"x", name)
        with process(add, url, names) as pipe:
            return pipe.recv()


def measure_idle(url: str, chosen: argparse.Namespace) -> Any:
    """Consume many queues of which a few are active."""
    names = [f"known.{chosen.run}.{number}" for number in range(chosen.known)]
    active = random.Random(2).sample(names, min(chosen.active, len(names)))
    with declared(url, names), process(idle, url, names) as pipe:
        pipe.send(chosen.idle)
        pipe.recv()
        publish_first(url, active, chosen.active / chosen.rate)
        pipe.send(len(active))
        figures = pipe.recv()
    waits = figures.pop("waits")
    first = dict(zip(("p50_ms", "p99_ms", "longest_ms"), 1e3 * np.quantile(waits, (0.5, 0.99, 1)), strict=True))
    return {"known": len(names), "active": len(active), **figures, **first}


def measure_churn(url: str, chosen: argparse.Namespace) -> Any:
    """Add and remove queues many times."""
    names = [f"churned.{chosen.run}.{number}" for number in range(AT_A_TIME + 1)]
    with declared(url, names), process(churn, url, names) as pipe:
        pipe.send(chosen.times)
        return pipe.recv()


#: What is measured, by name.
EXPERIMENTS: dict[str, Callable[[str, argparse.Namespace], Any]] = {
    "add": measure_add, "idle": measure_idle, "churn": measure_churn
}  # fmt: skip


def main() -> None:
    """Run the experiments and print their figures."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("experiments", nargs="*", default=list(EXPERIMENTS), help=", ".join(EXPERIMENTS))
    options.add_argument("--url", help="the broker; by default an embedded one")
    options.add_argument("--added", type=int, default=1000)
    options.add_argument(
        "--backlog", type=int, default=20_000, help="messages of each queue that is consumed meanwhile"
    )
    options.add_argument("--known", type=int, default=10_000)
    options.add_argument("--active", type=int, default=100)
    options.add_argument("--rate", type=float, default=50.0, help="messages a second")
    options.add_argument("--idle", type=float, default=60.0, help="seconds of which processor time is measured")
    options.add_argument("--times", type=int, default=100_000, help="how often a queue is added and removed")
    chosen = options.parse_args()
    chosen.run = uuid.uuid4().hex[:8]
    with contextlib.ExitStack() as stack:
        url = chosen.url or stack.enter_context(Broker()).url
        for name in chosen.experiments:
            print(json.dumps({name: EXPERIMENTS[name](url, chosen)}, indent=1, default=float), flush=True)


if __name__ == "__main__":
    main()
