"""FairQueue and its waiting rooms, hammered by threads that start together and capacities that are tiny."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import FairQueue, Limit, ShutDown

pytestmark = pytest.mark.stress


def produce(fair: FairQueue, me: int, count: int, subkeys: int, ready: threading.Barrier) -> None:
    """Put `count` numbers into a slot of one's own, singly or in batches."""
    ready.wait()
    whose = {"subkey": me} if subkeys else {}
    numbers = iter(range(count))
    for chunk in iter(lambda: list(itertools.islice(numbers, 1 + me % 7)), []):
        if me % 2 and subkeys:  # all producers use one slot
            fair.put_many(0, [(me, number) for number in chunk], subkeys=me)
        elif me % 2:
            fair.put_many(me, [(me, number) for number in chunk])
        else:
            for number in chunk:
                fair.put(0 if subkeys else me, (me, number), **whose)


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
@pytest.mark.parametrize("subkeys", [0, 1], ids=["", "subkeys"])
def test_every_item_exactly_once(threads: int, maxsize: int, subkeys: int) -> None:
    """Producers and consumers by every method at once; nothing lost, nothing twice, FIFO within a producer's."""
    each = 20_000 if maxsize > 100 else 4_000
    fair = FairQueue(default_quantum=3, maxsize=maxsize, subkey_quantum=1 if subkeys else None)
    ready = threading.Barrier(2 * threads)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(threads)]
    consumers = [start(lambda me=me: consume(fair, me, got[me], ready)) for me in range(threads)]
    producers = [start(lambda me=me: produce(fair, me, each, subkeys, ready)) for me in range(threads)]
    assert [result_of(producer) for producer in producers] == [None] * threads
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    everything = sorted(item for pairs in got for _, item in pairs)
    assert everything == [(me, number) for me in range(threads) for number in range(each)]
    for pairs in got:
        for me in range(threads):
            mine = [number for _, (producer, number) in pairs if producer == me]
            assert mine == sorted(mine)


def test_time_outs_race_with_puts() -> None:
    """Getters give up at any moment; each item is got by one that did not, and none sleeps beside an item."""
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
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    assert sorted(itertools.chain(*got)) == list(range(count))


@pytest.mark.parametrize("maxsize", [0, 3])
def test_priorities_time_outs_and_batches(maxsize: int) -> None:
    """Getters of several priorities wait, give up and come back; every item is got, and at the end all leave."""
    fair = FairQueue(default_quantum=2, maxsize=maxsize)
    count, threads = 2_000, 6
    ready = threading.Barrier(threads + 2)
    got: list[list[int]] = [[] for _ in range(threads)]

    def consume(me: int) -> None:
        ready.wait()
        timeout = None if me < 2 else 0.0002 * me
        while True:
            try:
                if me % 2:
                    got[me].extend(fair.get_many(1 + me % 3, timeout, priority=me % 3).items)
                else:
                    got[me].append(fair.get(timeout=timeout, priority=me % 3)[1])
            except queue.Empty:
                continue
            except ShutDown:
                return

    def produce(me: int) -> None:
        ready.wait()
        for i in range(me * count, (me + 1) * count, 2):
            while True:
                try:
                    fair.put_many(me, [i, i + 1], timeout=None if me else 0.001)
                    break
                except queue.Full:
                    continue

    consumers = [start(lambda me=me: consume(me)) for me in range(threads)]
    producers = [start(lambda me=me: produce(me)) for me in range(2)]
    assert [result_of(producer) for producer in producers] == [None, None]
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    assert sorted(itertools.chain(*got)) == list(range(2 * count))


def test_a_burst_reaches_all_that_wait() -> None:
    """As many items as getters, of descending priorities, again and again: each hand-over wakes the next."""
    fair = FairQueue({"a": 1})
    threads = 6
    for _ in range(200):
        getters = [start(lambda me=me: fair.get(timeout=SOON, priority=me)) for me in range(threads)]
        fair.put_many("a", range(threads))
        assert sorted(result_of(getter)[1] for getter in getters) == list(range(threads))


class Changing:
    """A queue whose slots come and go: each of its methods runs in threads, numbered by `me`."""

    names = ("a", "b", "stays")

    def __init__(self, subkeys: bool) -> None:
        self.subkeys = subkeys
        self.fair = FairQueue({"stays": 1}, subkey_quantum=1 if subkeys else None, sparse_boost=True)
        self.over = threading.Event()
        self.ready = threading.Barrier(7)
        self.put: list[list[Ticket]] = [[], []]
        self.got: list[list[Ticket]] = [[], [], [], []]

    def produce(self, me: int) -> None:
        self.ready.wait()
        for number in range(300_000):
            if number >= 3_000 and any(self.got[2:]):  # the changing threads may have had no turn of the GIL before
                return
            ticket = Ticket(me, number)
            with contextlib.suppress(KeyError):
                whose = {"subkey": number % 2} if self.subkeys else {}
                self.fair.put(self.names[number % 3], ticket, **whose)
                self.put[me].append(ticket)

    def consume(self, me: int) -> None:
        self.ready.wait()
        while True:
            try:
                self.got[me].extend(self.fair.get_many(3, 0.001).items)
            except queue.Empty:
                continue
            except ShutDown:
                return

    def change(self, me: int) -> None:
        self.ready.wait()
        for turn in itertools.count():
            if self.over.is_set():
                return
            name = self.names[turn % 2]
            with contextlib.suppress(ValueError, KeyError):
                self.fair.add_slot(name, 1 + turn % 3)
                self.fair.set_band(name, turn % 8)
                self.fair.set_limit(name, Limit(rate=1e6) if turn % 3 else None)
            some = [ticket for ticket in self.fair.items() if ticket.number % 7 == turn % 7]
            self.got[me].extend(self.fair.withdraw(some))
            with contextlib.suppress(KeyError):
                self.fair.hold(name, True)
                self.fair.retire(name)


@pytest.mark.parametrize("subkeys", [False, True])
def test_slots_come_and_go(subkeys: bool) -> None:
    """Slots are added, limited, withdrawn from and retired by several threads while others put and get."""
    world = Changing(subkeys)
    makers = [start(lambda me=me: world.produce(me)) for me in range(2)]
    others = [start(lambda me=me: world.consume(me)) for me in range(2)]
    changers = [start(lambda me=me: world.change(me)) for me in (2, 3)]
    world.ready.wait()
    assert [result_of(maker) for maker in makers] == [None, None]
    world.over.set()
    assert [result_of(changer) for changer in changers] == [None, None]
    world.fair.lift_limits()
    world.fair.shutdown()
    assert [result_of(other) for other in others] == [None, None]
    assert sorted(map(id, itertools.chain(*world.got))) == sorted(map(id, itertools.chain(*world.put)))
    assert sum(len(some) for some in world.got[2:]) > 0
    for name in {"a", "b"} & world.fair.stats().keys():
        world.fair.retire(name)
    assert list(world.fair.stats()) == ["stays"]


@dataclass(eq=False)
class Ticket:
    """An item with its producer and its number."""

    producer: int
    number: int
