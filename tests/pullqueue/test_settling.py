"""The fate of a message that was pulled: ack, release, reject, expiry, attempts."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.clock import ManualClock
from support.collecting import skip_if_traced
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled

from fairsched.pullqueue import PullQueue


def filled(engine: Engine, count: int, **options: Any) -> tuple[Any, Any]:
    queue = engine(**options)
    for item in range(count):
        queue.put(item)
    return queue, queue.subscribe("A")


@on_both
def test_ack_takes_it_out(engine: Engine) -> None:
    queue, only = filled(engine, 2)
    entry = only.pull()
    assert (queue.depth, queue.available) == (2, 1)
    assert entry.ack() is True
    assert (queue.depth, queue.available) == (1, 1)


@on_both
@pytest.mark.parametrize("first", ["ack", "release", "reject"])
def test_the_first_settlement_decides(engine: Engine, first: str) -> None:
    queue, only = filled(engine, 1)
    entry = only.pull()
    assert getattr(entry, first)() is True
    depths = queue.depth, queue.available
    assert [entry.ack(), entry.release(), entry.reject()] == [False] * 3
    assert (queue.depth, queue.available) == depths
    assert depths == ((0, 0) if first == "ack" else (1, 1))


@on_both
def test_a_released_message_is_delivered_again_alone(engine: Engine) -> None:
    _, only = filled(engine, 3)
    entries = drain(only)
    assert [(e.item, e.redelivered, e.delivery_count) for e in entries] == [(i, False, 0) for i in range(3)]
    entries[0].release()
    again = drain(only)
    assert [(e.item, e.redelivered, e.delivery_count) for e in again] == [(0, True, 1)]
    assert drain(only) == []


@on_both
def test_two_are_released_in_any_order(engine: Engine) -> None:
    _, only = filled(engine, 3)
    entries = drain(only)
    entries[2].release()
    entries[0].release()
    assert [(e.item, e.redelivered) for e in drain(only)] == [(0, True), (2, True)]


@on_both
def test_a_release_is_delivered_to_exactly_one_of_two(engine: Engine) -> None:
    queue = engine()
    one, two = queue.subscribe("A"), queue.subscribe("B")
    queue.put(0)
    queue.put(1)
    first, second = one.pull(), two.pull()
    assert (first.item, second.item) == (0, 1)
    assert (drain(one), drain(two)) == ([], [])
    before = one.notified_count + two.notified_count
    first.release()
    assert one.notified_count + two.notified_count == before + 1  # not both
    assert lists_of(queue) == "I[B] N[A]"
    assert items(drain(one)) + items(drain(two)) == [0]


@on_both
def test_a_released_message_comes_before_later_ones(engine: Engine) -> None:
    _, only = filled(engine, 5)
    first, second = only.pull(), only.pull()
    second.release()
    first.release()
    assert items(drain(only)) == [0, 1, 2, 3, 4]


@on_both
def test_an_expired_message_is_not_sent_again(engine: Engine) -> None:
    clock = ManualClock()
    queue = engine(clock=clock)
    only = queue.subscribe("A")
    queue.put("m", ttl=10)
    entry = only.pull()
    clock.now = 11
    assert queue.depth == 1  # acquired messages do not expire
    entry.release()
    assert (queue.depth, queue.available, only.pull()) == (0, 0, None)


@on_both
def test_a_message_expires_strictly_after_its_time(engine: Engine) -> None:
    clock = ManualClock()
    queue = engine(clock=clock)
    queue.put("m", ttl=10)
    clock.now = 10
    queue.expire()
    assert queue.depth == 1
    clock.now = 10.001
    queue.expire()
    assert queue.depth == 0


@on_both
def test_a_pull_finds_what_has_expired(engine: Engine) -> None:
    clock, dead = ManualClock(), []
    queue = engine(clock=clock, alternate=lambda item, reason: dead.append((item, reason)))
    only = queue.subscribe("A")
    queue.put("early", ttl=1)
    queue.put("late", ttl=100)
    clock.now = 2
    assert pulled(only) == "late"
    assert (queue.depth, dead) == (1, [("early", "expired")])


@on_both
@pytest.mark.parametrize(
    ("own", "queues", "expected"),
    [(5, None, 5), (None, 5, 5), (5, 20, 5), (20, 5, 5), (None, None, None), (0, None, 0)],
)
def test_the_smaller_time_to_live_counts(
    engine: Engine, own: float | None, queues: float | None, expected: float | None
) -> None:
    clock = ManualClock()
    queue = engine(clock=clock, ttl=queues)
    queue.put("m", ttl=own)
    clock.now = 1e6 if expected is None else expected
    queue.expire()
    assert queue.depth == 1
    clock.now += 0.001
    queue.expire()
    assert queue.depth == (expected is None)


@on_both
def test_a_held_message_is_overtaken(engine: Engine) -> None:
    clock = ManualClock()
    queue = engine(clock=clock)
    only = queue.subscribe("C")
    queue.put("A", not_before=10)
    assert lists_of(queue) == "I[C]"
    assert (queue.depth, queue.available, only.pull()) == (1, 1, None)
    queue.put("B")
    assert items(drain(only)) == ["B"]
    clock.now = 10  # held while not_before >= now
    queue.expire()
    assert only.pull() is None
    clock.now = 10.001
    before = only.notified_count
    queue.expire()
    assert only.notified_count == before + 1
    assert items(drain(only)) == ["A"]


@on_both
def test_a_hold_in_the_past_is_none(engine: Engine) -> None:
    clock = ManualClock()
    clock.now = 5
    queue = engine(clock=clock)
    only = queue.subscribe("A")
    queue.put("m", not_before=4)
    assert lists_of(queue) == "N[A]"
    assert pulled(only) == "m"


@on_both
def test_a_rejected_message_goes_to_others(engine: Engine) -> None:
    queue = engine()
    one, two = queue.subscribe("A"), queue.subscribe("B")
    queue.put("m")
    entry = one.pull()
    entry.reject()
    assert lists_of(queue) == "N[A,B]"
    assert one.pull() is None
    entry = two.pull()
    assert (entry.item, entry.redelivered, entry.delivery_count) == ("m", True, 0)
    entry.reject()
    assert (one.pull(), two.pull(), queue.available) == (None, None, 1)
    three = queue.subscribe("C")
    assert pulled(three) == "m"


@on_both
def test_a_rejected_message_is_for_a_lower_priority_at_once(engine: Engine) -> None:
    """no_higher_priority asks whether the higher one "has interest in this entry": not what it rejected."""
    queue = engine()
    queue.put(1)
    queue.put(2)
    high = queue.subscribe("H", priority=1)
    high.pull().reject()
    assert lists_of(queue) == "N[H]"  # for 2
    low = queue.subscribe("L")
    assert (lists_of(queue), low.notified_count) == ("N[H,L]", 1)
    assert (pulled(low), pulled(high)) == (1, 2)


@on_both
def test_a_rejecter_gets_the_rest(engine: Engine) -> None:
    _, only = filled(engine, 4)
    entries = only.pull_many(3)
    entries[1].reject()
    entries[0].release()
    assert items(drain(only)) == [0, 3]


@on_both
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_message_goes_to_the_alternate_after_so_many_deliveries(engine: Engine, limit: int) -> None:
    dead: list[tuple[Any, str]] = []
    _, only = filled(engine, 1, max_deliveries=limit, alternate=lambda item, reason: dead.append((item, reason)))
    for attempt in range(limit):
        assert dead == []
        entry = only.pull()
        assert (entry.delivery_count, entry.redelivered) == (attempt, attempt > 0)
        entry.release()
    assert dead == [(0, "delivery_limit")]
    assert only.pull() is None


@on_both
def test_a_reject_is_no_failed_delivery(engine: Engine) -> None:
    queue, one = filled(engine, 1, max_deliveries=1)
    one.pull().reject()
    assert queue.depth == 1
    queue.subscribe("B").pull().release()
    assert queue.depth == 0


@on_both
def test_the_alternate_may_be_a_queue(engine: Engine) -> None:
    graveyard = engine()
    _, only = filled(engine, 2, max_deliveries=1, alternate=graveyard)
    for entry in drain(only):
        entry.release()
    assert items(drain(graveyard.subscribe("G"))) == [0, 1]


@on_both
def test_entries_outlive_their_subscription(engine: Engine) -> None:
    queue, one = filled(engine, 3)
    entries = drain(one)
    one.cancel()
    one.cancel()
    assert (one.pull(), one.interested, queue.depth, queue.available) == (None, False, 3, 0)
    two = queue.subscribe("B")
    entries[0].ack()
    entries[1].release()
    assert [(e.item, e.redelivered) for e in drain(two)] == [(1, True)]


@on_both
def test_pull_many_takes_what_there_is(engine: Engine) -> None:
    queue, only = filled(engine, 5)
    assert items(only.pull_many(2)) == [0, 1]
    assert lists_of(queue) == "N[A]"
    assert items(only.pull_many(10)) == [2, 3, 4]
    assert lists_of(queue) == "I[A]"
    assert only.pull_many(10) == []


def test_what_was_pulled_may_be_taken_back_while_its_entries_are_made() -> None:
    skip_if_traced()
    queue = PullQueue()
    one, two = queue.subscribe("A"), queue.subscribe("B")
    for number in range(20):
        queue.put([number])
    others: list[Any] = []

    def take_back(phase: str, _: object) -> None:
        if phase == "start" and not others:
            one.cancel(release=True)
            others.extend(two.pull_many(20))
            assert all(entry.ack() for entry in others[:10])

    threshold = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(take_back)
    gc.set_threshold(10)  # from Python 3.12 on a collection waits until nothing is half done
    try:
        entries = one.pull_many(20)
        tracked: list[Any] = []
        while not others:
            tracked.append([])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(take_back)
    assert [entry.item for entry in entries] == [[number] for number in range(20)]
    assert [entry.item for entry in others] == [[number] for number in range(20)]
    assert [entry.ack() for entry in entries] == [False] * 20
    assert [entry.ack() for entry in others[10:]] == [True] * 10
    assert queue.depth == 0
