"""FairQueue while slots are held and let go at any moment: every item is got, and no getter sleeps beside one."""

from __future__ import annotations

import queue
import random
import threading
from typing import Any

import pytest
from support.producing import put_numbers
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import FairQueue, ShutDown

pytestmark = pytest.mark.stress

SLOTS = 4


def produce(fair: FairQueue, me: int, count: int, ready: threading.Barrier) -> None:
    """Put numbers into a slot of one's own, singly or in batches, holding it and letting it go."""
    chance = random.Random(me)
    ready.wait()
    for _ in put_numbers(fair, me, count, chance):
        if chance.random() < 0.3:
            fair.hold(me, chance.random() < 0.6)
        if chance.random() < 0.01:
            fair.anticipate(chance.choice([0.0, 0.0002, 0.002]))


def consume(fair: FairQueue, me: int, got: list[tuple[Any, Any]], ready: threading.Barrier) -> None:
    """Get by every method until the queue is shut down."""
    chance = random.Random(me)
    ready.wait()
    while True:
        try:
            what = chance.random()
            if what < 0.4:
                got.append(fair.get(timeout=SOON))
            elif what < 0.6:
                got.append(fair.get(timeout=0.0005))
            elif what < 0.7:
                got.append(fair.get(False))
            else:
                got.extend(fair.get_many(chance.randrange(1, 6)))
        except queue.Empty:
            assert what >= 0.4, "an item, or the end, was due long ago"
        except ShutDown:
            return


@pytest.mark.parametrize("threads", [1, 4])
def test_every_item_exactly_once(threads: int) -> None:
    each = 6_000
    fair = FairQueue({slot: slot + 1 for slot in range(SLOTS)}, anticipation=0.0005)
    ready = threading.Barrier(SLOTS + threads)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(threads)]
    consumers = [start(lambda me=me: consume(fair, me, got[me], ready)) for me in range(threads)]
    producers = [start(lambda me=me: produce(fair, me, each, ready)) for me in range(SLOTS)]
    assert [result_of(producer) for producer in producers] == [None] * SLOTS
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    everything = sorted(pair for pairs in got for pair in pairs)
    assert everything == [(slot, number) for slot in range(SLOTS) for number in range(each)]


def test_getters_go_on_when_the_one_that_waits_for_a_turn_gives_up() -> None:
    """Items are put while a getter waits for another slot; it gives up at any moment, and the rest must not sleep."""
    for seed in range(200):
        fair = FairQueue({"held": 9, "other": 1}, anticipation=0.01)
        fair.hold("held", True)
        fair.put("held", 0)
        assert fair.get() == ("held", 0)
        patient = [start(fair.get) for _ in range(2)]
        fair.put("other", 1)
        hasty = start(lambda fair=fair, seed=seed: fair.get(timeout=seed * 0.0001))
        fair.put_many("other", [2, 3])
        assert {result_of(getter)[1] for getter in patient} <= {1, 2, 3}
        result_of(hasty)
