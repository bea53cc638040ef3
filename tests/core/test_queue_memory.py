"""The memory of a pull queue in the engine: no more than its messages and its consumers need."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from fairsched import _probe_queue
from fairsched.pullqueue import PullQueue
from fairsched.pullqueue._pullqueue import Subscription

KINDS = ["standard", "priority", "sorted", "last-value", "fair"]
kinds = pytest.mark.parametrize("kind", KINDS)


def queue_of(kind: str, **options: Any) -> PullQueue:
    return PullQueue(kind, quanta={"a": 1} if kind == "fair" else None, **options)


def put(queue: PullQueue, kind: str, number: int) -> None:
    key = number * 7919 % 101 if kind in ("sorted", "last-value") else None
    queue.put(number, priority=number % 10, key=key, slot="a" if kind == "fair" else None)


@kinds
def test_a_browser_that_rests_keeps_nothing(kind: str) -> None:
    """Each of 1000 messages comes and goes behind its cursor, or before it: it stands on one of them at most."""
    queue = queue_of(kind)
    worker = queue.subscribe("worker")
    browser = queue.subscribe("browser", acquires=False, sees_requeues=True)
    put(queue, kind, 0)
    assert (browser.pull() is not None, browser.pull()) == (True, None)
    for number in range(1, 1000):
        put(queue, kind, number)
        for entry in worker.pull_many(10):
            if number % 3 == 0:
                entry.release()
                worker.pull().ack()
            else:
                entry.ack()
        kept = _probe_queue.kept(queue)
        assert (kept["messages"] <= 2, kept["late"]) == (True, 0), (number, kept)
    assert browser.pull() is None


@kinds
def test_what_a_resting_browser_is_to_see_goes_with_the_messages(kind: str) -> None:
    queue = queue_of(kind)
    browsers = [queue.subscribe(acquires=False) for _ in range(3)]
    worker = queue.subscribe("worker")
    put(queue, kind, 0)
    for browser in browsers:
        assert (browser.pull() is not None, browser.pull()) == (True, None)
    for number in range(1, 101):
        put(queue, kind, number)
        assert _probe_queue.kept(queue)["late"] <= 3 * queue.depth
    browsers.pop().cancel()
    assert _probe_queue.kept(queue)["late"] <= 2 * queue.depth
    left = queue.depth
    for entry in worker.pull_many(1000):
        entry.ack()
        left -= 1
        assert _probe_queue.kept(queue)["late"] <= 2 * left
    assert _probe_queue.kept(queue)["late"] == 0


@pytest.mark.parametrize("kind", ["priority", "sorted"])
@pytest.mark.parametrize("seed", range(20))
def test_a_browser_sees_what_came_behind_it_in_order(kind: str, seed: int) -> None:
    """Some of it is gone before it looks; some comes after it has begun."""
    chance = random.Random(seed)
    queue = PullQueue(kind)
    browser, worker = queue.subscribe(acquires=False), queue.subscribe()
    places: dict[int, Any] = {}
    seen: set[int] = set()
    number = 0
    for _ in range(200):
        what = chance.random()
        if what < 0.6:
            level, key = chance.randrange(10), f"{chance.randrange(1000):03}"
            queue.put(number, priority=level, key=key if kind == "sorted" else None)
            places[number] = (-level, number) if kind == "priority" else (key, number)
            number += 1
        elif what < 0.75 and (entry := worker.pull()) is not None:
            entry.ack()
            del places[entry.item]
        elif what > 0.9:
            expected = sorted(set(places) - seen, key=lambda item: places[item])
            taken = chance.randrange(len(expected) + 2)
            got = [entry.item for entry in browser.pull_many(taken)]
            assert got == expected[:taken]
            seen.update(got)


def test_a_fair_queue_forgets_what_filters_refused_that_are_gone() -> None:
    queue = queue_of("fair")
    for number in range(100):
        put(queue, "fair", number)
    staying = queue.subscribe("staying", filter=lambda item: False)
    assert staying.pull() is None
    assert _probe_queue.kept(queue)["notes"] == 100
    for _ in range(20):
        passing = queue.subscribe(filter=lambda item: False)
        assert passing.pull() is None
        passing.cancel()
        assert _probe_queue.kept(queue)["notes"] == 100
    staying.cancel()
    assert _probe_queue.kept(queue)["notes"] == 0


@kinds
@pytest.mark.parametrize("cancelled", ["before", "after"])
def test_a_queue_forgets_a_consumer_that_rejected_and_is_gone(kind: str, cancelled: str) -> None:
    queue = queue_of(kind)
    for number in range(100):
        put(queue, kind, number)
    for _ in range(3):
        passing = queue.subscribe()
        entries = passing.pull_many(100)
        assert len(entries) == 100
        if cancelled == "before":
            passing.cancel()
        for entry in entries:
            assert entry.reject()
        if cancelled == "after":
            assert passing.pull() is None
            assert _probe_queue.kept(queue)["notes"] == 100
            passing.cancel()
        assert _probe_queue.kept(queue)["notes"] == 0


def subscriptions() -> int:
    gc.collect()
    return sum(type(each) is Subscription for each in gc.get_objects())


def test_a_queue_that_is_garbage_leaves_no_subscription() -> None:
    """Some of them would take others' places, and browsers are told of that whatever there is."""
    before = subscriptions()
    for live in (0, 1, 2):
        queue = PullQueue(live_consumers=live)
        for number in range(100):
            queue.subscribe(acquires=number % 2 == 0, filter=(lambda item: True) if number % 5 == 0 else None)
        queue.put(1)
        del queue
    assert subscriptions() == before


def test_a_browser_that_goes_leaves_no_notes() -> None:
    queue = PullQueue()
    only = queue.subscribe("A")
    for item in range(9):
        queue.put(item)
    entries = only.pull_many(8)
    browser = queue.subscribe("B", acquires=False)
    assert [entry.item for entry in browser.pull_many(9)] == [8]
    assert _probe_queue.kept(queue)["late"] == 8
    entries.pop().ack()
    assert _probe_queue.kept(queue)["late"] == 7
    browser.cancel()
    assert _probe_queue.kept(queue)["late"] == 0
    assert [entry.release() for entry in entries] == [True] * 7
