"""FairQueue and its waiting rooms, hammered by threads that start together and capacities that are tiny."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import Any

import pytest
from threads import SOON, result_of, start

from fairsched import FairQueue, ShutDown, _probe

pytestmark = pytest.mark.stress


def produce(fair: FairQueue, me: int, count: int, ready: threading.Barrier) -> None:
    """Put `count` numbers into a slot of one's own, singly or in batches."""
    ready.wait()
    numbers = iter(range(count))
    for chunk in iter(lambda: list(itertools.islice(numbers, 1 + me % 7)), []):
        if me % 2:
            fair.put_many(me, chunk)
        else:
            for number in chunk:
                fair.put(me, number)


def consume(fair: FairQueue, me: int, got: list[tuple[Any, Any]], ready: threading.Barrier) -> None:
    """Get, singly or in batches, until the queue is shut down."""
    ready.wait()
    while True:
        try:
            if me % 2:
                got.extend(fair.get_many(1 + me % 5))
            else:
                got.append(fair.get(timeout=SOON))
        except ShutDown:
            return


@pytest.mark.parametrize("maxsize", [8, 512])
@pytest.mark.parametrize("threads", [2, 8])
def test_every_item_exactly_once(threads: int, maxsize: int) -> None:
    """Producers and consumers by every method at once; nothing lost, nothing twice, FIFO within a producer's slot."""
    each = 20_000 if maxsize > 100 else 4_000
    fair = FairQueue(default_quantum=3, maxsize=maxsize)
    ready = threading.Barrier(2 * threads)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(threads)]
    consumers = [start(lambda me=me: consume(fair, me, got[me], ready)) for me in range(threads)]
    producers = [start(lambda me=me: produce(fair, me, each, ready)) for me in range(threads)]
    assert [result_of(producer) for producer in producers] == [None] * threads
    fair.close()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    everything = sorted(pair for pairs in got for pair in pairs)
    assert everything == [(me, number) for me in range(threads) for number in range(each)]
    for pairs in got:
        for me in range(threads):
            mine = [number for producer, number in pairs if producer == me]
            assert mine == sorted(mine)


def test_time_outs_race_with_puts() -> None:
    """Getters give up at any moment; whatever was put is got by one that did not, and nobody sleeps beside an item."""
    fair = FairQueue({"a": 1})
    count, threads = 3_000, 4
    ready = threading.Barrier(threads + 1)
    got: list[list[int]] = [[] for _ in range(threads)]

    def try_to_consume(me: int) -> None:
        ready.wait()
        while True:
            try:
                got[me].append(fair.get(timeout=0.0001 * me)[1])
            except queue.Empty:
                continue
            except ShutDown:
                return

    consumers = [start(lambda me=me: try_to_consume(me)) for me in range(threads)]
    ready.wait()
    for i in range(count):
        fair.put("a", i)
    fair.close()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    assert sorted(itertools.chain(*got)) == list(range(count))


@pytest.mark.parametrize("timeout_ns", [-1, 1_000])
def test_every_permit_is_collected_once(timeout_ns: int) -> None:
    """Waiters that time out race with wakers; permits and registrations balance whenever all is quiet."""
    parking = _probe.ProbeParking(threading.Lock())
    stop = threading.Event()
    ready = threading.Barrier(5)

    def waiter() -> None:
        ready.wait()
        while not stop.is_set():
            parking.wait(timeout_ns)

    threads = [threading.Thread(target=waiter) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    woken = 0
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        woken += parking.wake(2)
    stop.set()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline, "a waiter was never woken"
        woken += parking.wake(4)
    assert woken > 0
    assert parking.balance == (0, woken)
