"""Queues while the collector runs all the time, and finds garbage whose finalizers are Python code."""

from __future__ import annotations

import os
import queue
import random
import time
from typing import Any

import pytest
from support.littering import Litter, nothing, often
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import FairQueue, ShutDown
from fairsched.pullqueue import PullQueue, Target

pytestmark = pytest.mark.stress

#: How long it takes. What is looked for came about three times in six runs of 40 seconds.
SECONDS = float(os.environ.get("STRESS_SECONDS", "2"))


@pytest.mark.parametrize("maxsize", [0, 4])
def test_time_outs_among_garbage(maxsize: int) -> None:
    """Getters and putters give up while a finalizer lets others in: each call returns, and no item is lost.

    Some getters give up soon and some never, and batches wake several of them at once, in one chain.
    """
    fair = FairQueue(default_quantum=1, maxsize=maxsize)
    threads = 5
    until = time.monotonic() + SECONDS
    got: list[list[Any]] = [[] for _ in range(threads)]
    put: list[list[Any]] = [[] for _ in range(2)]

    def consume(me: int) -> None:
        chance = random.Random(me)
        while True:
            Litter(nothing)
            try:
                got[me].append(fair.get(timeout=chance.choice([0.00005, 0.0002, SOON]) if me else 0.0001)[1])
            except queue.Empty:
                continue
            except ShutDown:
                return

    def produce(me: int) -> None:
        chance = random.Random(me)
        number = 0
        while time.monotonic() < until:
            Litter(nothing)
            batch = [(me, number + i) for i in range(chance.randrange(1, 5))]
            try:
                fair.put_many([item[1] % 3 for item in batch], batch, timeout=chance.choice([0.0, 0.00005, 0.0003]))
            except queue.Full:
                continue
            put[me].extend(batch)
            number += len(batch)
            while fair.qsize() > 2 and time.monotonic() < until:  # so that most getters have to wait
                time.sleep(0)

    with often(interval=0.00005, threshold=5):
        consumers = [start(lambda me=me: consume(me)) for me in range(threads)]
        producers = [start(lambda me=me: produce(me)) for me in range(2)]
        assert [result_of(producer) for producer in producers] == [None, None]
        fair.shutdown()
        assert [result_of(consumer) for consumer in consumers] == [None] * threads
    assert sorted(item for items in got for item in items) == sorted(item for items in put for item in items)


def test_finalizers_that_use_the_queue() -> None:
    """Garbage puts when it is found, into the queue in whose calls it is found."""
    fair = FairQueue(default_quantum=1)
    threads = 3
    until = time.monotonic() + SECONDS / 2
    got: list[list[Any]] = [[] for _ in range(threads)]
    put: list[int] = []

    def found() -> None:
        if len(put) < 200_000 and fair.qsize() < 50:
            number = len(put)
            put.append(number)
            fair.put(number % 4, number)

    def consume(me: int) -> None:
        while True:
            Litter(found)
            try:
                got[me].append(fair.get(timeout=0.0001 * me, priority=me)[1])
            except queue.Empty:
                if time.monotonic() > until:
                    return

    with often(interval=0.00005, threshold=5):
        consumers = [start(lambda me=me: consume(me)) for me in range(threads)]
        assert [result_of(consumer) for consumer in consumers] == [None] * threads
    rest = [fair.get(False)[1] for _ in range(fair.qsize())]
    numbers = [item for items in got for item in items] + rest
    assert len(numbers) == len(put)
    assert sorted(numbers) == sorted(put)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("overflow", ["none", "flow"])
def test_pulling_among_garbage(overflow: str, together: bool) -> None:
    """Consumers of a PullQueue, singly or by a Target, whose time is over while a finalizer lets others in."""
    pull: Any = PullQueue(max_depth=3 if overflow == "flow" else 0, overflow=overflow)
    threads = 3
    until = time.monotonic() + SECONDS / 2
    got: list[list[Any]] = [[] for _ in range(threads)]
    put: list[list[Any]] = [[] for _ in range(threads)]

    def consume(me: int) -> None:
        chance = random.Random(me)
        subscription = pull.subscribe(f"c{me}", priority=me % 2)
        taker = Target([subscription]) if together else subscription
        while True:
            Litter(nothing)
            try:
                entry = taker.get(timeout=chance.choice([0.0, 0.00005, 0.0003]))
            except queue.Empty:
                continue
            except ShutDown:
                return
            if chance.random() < 0.1:
                entry.release()
            else:
                got[me].append(entry.item)
                entry.ack()

    def produce(me: int) -> None:
        chance = random.Random(me)
        number = 0
        while time.monotonic() < until:
            Litter(nothing)
            try:
                pull.put((me, number), timeout=chance.choice([0.0, 0.00005, 0.0003]))
            except queue.Full:
                continue
            put[me].append((me, number))
            number += 1

    with often(interval=0.00005, threshold=5):
        consumers = [start(lambda me=me: consume(me)) for me in range(threads)]
        producers = [start(lambda me=me: produce(me)) for me in range(threads)]
        assert [result_of(producer) for producer in producers] == [None] * threads
        left = [item for item, _ in pull.close()]
        assert [result_of(consumer) for consumer in consumers] == [None] * threads
    left += [item for item, _ in pull.undelivered]
    taken = [item for items in got for item in items]
    assert sorted(taken + left) == sorted(item for items in put for item in items)
