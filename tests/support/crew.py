"""Threads that consume one PullQueue, and wait for what others bring about. No thread polls the queue."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import ShutDown


def check_lists(queue: Any, consumers: int) -> None:
    """Every consumer is in one list."""
    names = [name for listed in queue.lists().values() for name in listed]
    assert len(names) == len(set(names)) == consumers


class Crew:
    """Threads that consume one queue, and what each of them has done."""

    def __init__(self, queue: Any, threads: int, consume: Callable[[Crew, int], None]) -> None:
        self.queue = queue
        self.got: list[list[Any]] = [[] for _ in range(threads)]
        self.subscriptions: list[Any] = [None] * threads
        self.ready = threading.Barrier(threads + 1)
        self.threads = [start(lambda me=me: consume(self, me)) for me in range(threads)]
        self.ready.wait(SOON)

    def subscribe(self, me: int, **options: Any) -> Any:
        self.subscriptions[me] = self.queue.subscribe(f"c{me}", **options)
        return self.subscriptions[me]

    def produce(self, threads: int, each: int, put: Callable[[int, int], None]) -> None:
        """Put from so many threads at once, and wait until all was consumed."""
        ready = threading.Barrier(threads)

        def run(me: int) -> None:
            ready.wait(SOON)
            for number in range(each):
                put(me, number)

        for producer in [start(lambda me=me: run(me)) for me in range(threads)]:
            assert result_of(producer) is None
        reach(lambda: self.queue.depth == 0, f"stalled: {self.queue.lists()}, {self.queue.available} available")

    def finish(self) -> list[Any]:
        self.queue.close()
        assert [result_of(thread) for thread in self.threads] == [None] * len(self.threads)
        return sorted(item for items in self.got for item in items)


def restless(crew: Crew, me: int) -> None:
    """Get and ack; now and then flip, release, or leave and come back, with what one has."""
    chance = random.Random(me)
    subscription = crew.subscribe(me)
    crew.ready.wait(SOON)
    while True:
        try:
            entry = subscription.get(timeout=SOON)
        except ShutDown:
            return
        what = chance.random()
        if what < 0.1:
            subscription.interested = False
            subscription.interested = True
        if what < 0.02:
            entry.release()
            continue
        if what < 0.03:
            subscription.cancel()
            subscription = crew.subscribe(me)
            entry.release()
            continue
        crew.got[me].append(entry.item)
        entry.ack()
