"""FairQueue with limits, bands, boosts and many threads: each item is got, no more are in hand, no getter sleeps on."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections import Counter
from typing import Any

import pytest
from support.producing import put_numbers
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import FairQueue, Limit, ShutDown

pytestmark = pytest.mark.stress

SLOTS, MOST = 4, 2


class Hands:
    """The number of each slot in hand; each thread notes its own before it releases it."""

    def __init__(self) -> None:
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.guard = threading.Lock()

    def take(self, slot: int) -> None:
        with self.guard:
            self.now[slot] += 1
            self.most[slot] = max(self.most[slot], self.now[slot])

    def give_back(self, slot: int) -> None:
        with self.guard:
            self.now[slot] -= 1


def produce(
    fair: FairQueue, me: int, count: int, bands: bool, subkeys: int, priorities: int, ready: threading.Barrier
) -> None:
    """Put numbers into a slot of one's own, singly or in batches, and change debts, holds and bands meanwhile."""
    chance = random.Random(me)
    ready.wait()
    for _ in put_numbers(fair, me, count, chance, subkeys, priorities):
        if chance.random() < 0.05:
            difference, number = chance.randrange(-3, 4), chance.randrange(100)
            whose: dict[str, Any] = {"subkey": number % subkeys} if subkeys else {}
            fair.settle(me, difference, priority=number % (priorities or 1), **whose)
        if chance.random() < 0.05:
            with contextlib.suppress(KeyError):  # a tenant that was forgotten
                fair.hold(me, chance.random() < 0.5, chance.random() < 0.5)
        if bands and not priorities and chance.random() < 0.05:
            fair.set_band(chance.randrange(SLOTS), chance.randrange(8))


def consume(fair: FairQueue, me: int, got: list[tuple[Any, Any]], hands: Hands, ready: threading.Barrier) -> None:
    """Get by every method until the queue is shut down; release at once, or a few gets later."""
    chance = random.Random(me)
    mine: list[int] = []
    ready.wait()

    def put_down(least: int) -> None:
        while len(mine) > least:
            slot = mine.pop(chance.randrange(len(mine)))
            hands.give_back(slot)
            fair.release(slot)

    while True:
        try:
            what = chance.random()
            if what < 0.4:
                put_down(0)  # else all could wait for what one of them has
                found = [fair.get(timeout=SOON, priority=chance.randrange(2))]
            elif what < 0.6:
                found = [fair.get(timeout=0.0005)]
            elif what < 0.7:
                found = [fair.get(False)]
            else:
                put_down(0)
                found = list(fair.get_many(chance.randrange(1, 6)))
        except queue.Empty:
            assert what >= 0.4, "an item, or the end, was due long ago"
            continue
        except ShutDown:
            put_down(0)
            return
        for slot, _ in found:
            hands.take(slot)
            mine.append(slot)
        got += found
        put_down(chance.randrange(3))


@pytest.mark.parametrize(
    "limit",
    [None, Limit(MOST), Limit(MOST, rate=20_000, burst=3), Limit(rate=20_000, burst=3)],
    ids=["none", "cap", "both", "rate"],
)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("tenants", "bands"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("subkeys", "priorities"), [(0, 0), (5, 0), (0, 10)], ids=["", "subkeys", "priorities"])
def test_every_item_exactly_once_and_never_more_in_hand(
    threads: int, limit: Limit | None, tenants: bool, bands: bool, subkeys: int, priorities: int
) -> None:
    each, hands = 2000, Hands()
    quanta = None if tenants else dict.fromkeys(range(SLOTS), 2)
    fair = FairQueue(
        quanta, default_quantum=2 if tenants else None, limit=limit, anticipation=0.0005, sparse_boost=bands,
        subkey_quantum=1 if subkeys else None, priorities=priorities > 0,
    )  # fmt: skip
    ready = threading.Barrier(SLOTS + threads)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(threads)]
    producers = [start(lambda me=me: produce(fair, me, each, bands, subkeys, priorities, ready)) for me in range(SLOTS)]
    consumers = [start(lambda me=me: consume(fair, me, got[me], hands, ready)) for me in range(threads)]
    assert [result_of(producer) for producer in producers] == [None] * SLOTS
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    assert Counter(pair for one in got for pair in one) == Counter(
        (slot, n) for slot in range(SLOTS) for n in range(each)
    )
    assert fair.qsize() == 0
    if limit is not None and limit.concurrency is not None:
        assert max(hands.most.values()) <= MOST
        assert all(fair.outlook(slot).in_hand == 0 for slot in fair.stats())
