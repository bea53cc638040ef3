"""Targets beyond the cases of the oracle: batches, callbacks, waiting for several queues, what is refused."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import ShutDown
from fairsched.pullqueue import PullQueue, Target


def queues(count: int, **options: Any) -> tuple[list[PullQueue], Target]:
    made = [PullQueue(**options) for _ in range(count)]
    return made, Target([one.subscribe(f"q{number}") for number, one in enumerate(made)])


def items(entries: list[Any]) -> list[Any]:
    return [entry.item for entry in entries]


def test_a_queue_without_messages_is_passed_over() -> None:
    (red, green, blue), target = queues(3)
    for number in range(2):
        red.put(f"red {number}")
        blue.put(f"blue {number}")
    assert items(target.pull_many(9)) == ["red 0", "blue 0", "red 1", "blue 1"]
    green.put("green 0")
    red.put("red 2")
    assert items(target.pull_many(1)) == ["red 2"]  # the turn after blue
    assert items(target.pull_many(9)) == ["green 0"]


def test_pull_many_takes_no_more_than_it_may() -> None:
    (one, other), target = queues(2)
    for number in range(3):
        one.put(number)
        other.put(-number)
    assert items(target.pull_many(0)) == []
    assert items(target.pull_many(3)) == [0, 0, 1]
    assert items(target.pull_many(3)) == [-1, 2, -2]
    with pytest.raises(ValueError, match="-1"):
        target.pull_many(-1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_turns_are_those_of_a_list_of_queues(steps: list[tuple[int, int]]) -> None:
    """Puts and pulls in any order: each pull goes on where the last message came from."""
    made, target = queues(4)
    expected: list[list[int]] = [[] for _ in made]
    cursor = 0
    for serial, (at, pulls) in enumerate(steps):
        made[at].put(serial)
        expected[at].append(serial)
        for _ in range(pulls):
            turn = next((i % 4 for i in range(cursor, cursor + 4) if expected[i % 4]), None)
            entry = target.pull()
            assert (entry is None) is (turn is None)
            if turn is not None and entry is not None:
                assert entry.item == expected[turn].pop(0)
                cursor = turn + 1


# -- interest ---------------------------------------------------------------------------------------------------------


def test_only_changes_of_interest_are_told() -> None:
    """T, F, T, T, cancel: the queue sees a consumer that comes, goes, comes, and goes for good."""
    jobs = PullQueue()
    subscription = jobs.subscribe("one", interested=False)
    target = Target([subscription], interested=False)
    assert jobs.lists()["not_interested"] == ["one"]
    seen = []
    for interested in (True, False, True):
        target.interested = interested
        seen.append((jobs.lists()["interested"], subscription.interested))
    assert seen == [(["one"], True), ([], False), (["one"], True)]
    subscription.interested = False  # behind the target's back: what is the same is not told again
    target.interested = True
    assert not subscription.interested
    target.cancel()
    assert jobs.lists() == {"interested": [], "notified": [], "not_interested": [], "non_acquiring": []}
    target.interested = True
    assert not target.interested


def test_a_target_that_is_not_interested_is_passed_over_by_its_queues() -> None:
    (one, other), target = queues(2)
    peer = one.subscribe("peer")
    target.interested = False
    one.put("for the peer")
    assert target.pull() is None
    assert peer.notified_count == 1
    other.put("waits")
    target.interested = True
    assert items(target.pull_many(2)) == ["for the peer", "waits"]


def test_interest_changed_by_a_callback_while_it_is_told() -> None:
    """The call further out passes on what the inner one set."""
    made = [PullQueue() for _ in range(2)]
    made[0].put("work")
    targets: list[Target] = []

    def on_work(_: Any) -> None:
        if targets:
            targets[0].interested = False

    subscriptions = [one.subscribe(f"q{at}", interested=False, on_work=on_work) for at, one in enumerate(made)]
    targets.append(Target(subscriptions, interested=False))
    targets[0].interested = True
    assert not targets[0].interested
    assert [one.lists()["not_interested"] for one in made] == [["q0"], ["q1"]]


def test_unsettled_messages_come_back_when_wanted() -> None:
    (one, other), target = queues(2)
    one.put("a")
    other.put("b")
    assert items(target.pull_many(2)) == ["a", "b"]
    target.cancel(release=True)
    assert (one.available, other.available) == (1, 1)
    target.cancel()


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2])
def test_get_waits_for_any_of_the_queues(at: int) -> None:
    made, target = queues(3)
    waiting = start(lambda: target.get(SOON).item)
    made[at].put("here")
    assert result_of(waiting) == "here"


def test_get_takes_turns() -> None:
    (one, other), target = queues(2)
    for number in range(2):
        one.put(f"one {number}")
        other.put(f"other {number}")
    assert [target.get(0).item for _ in range(4)] == ["one 0", "other 0", "one 1", "other 1"]


def test_get_gives_up_when_its_time_is_over() -> None:
    _, target = queues(2)
    begun = time.monotonic()
    with pytest.raises(queue.Empty):
        target.get(0.02)
    assert time.monotonic() - begun >= 0.02
    with pytest.raises(queue.Empty):
        target.get(0)
    with pytest.raises(ValueError, match="-1"):
        target.get(-1)


def test_all_threads_that_wait_are_woken_though_the_queue_tells_once() -> None:
    (one, _), target = queues(2)
    waiting = [start(lambda: target.get(SOON).item) for _ in range(4)]
    for number in range(4):
        one.put(number)
    assert sorted(result_of(thread) for thread in waiting) == [0, 1, 2, 3]


def test_a_held_message_is_taken_when_it_is_due() -> None:
    (one, _), target = queues(2)
    one.put("later", not_before=time.monotonic() + 0.05)
    assert target.pull() is None
    assert target.get(SOON).item == "later"


def test_a_released_message_wakes_a_waiting_thread() -> None:
    (one, _), target = queues(2)
    one.put("again")
    entry = target.get(0)
    waiting = start(lambda: target.get(SOON))
    entry.release()
    assert result_of(waiting).redelivered


def test_closed_queues_are_emptied_first() -> None:
    made, target = queues(2)
    made[0].put("last")
    for one in made:
        one.close()
    assert target.get(0).item == "last"
    with pytest.raises(ShutDown):
        target.get()


def test_one_queue_that_goes_does_not_end_it() -> None:
    (one, other), target = queues(2)
    one.close()
    with pytest.raises(queue.Empty):
        target.get(0)
    waiting = start(lambda: target.get(SOON).item)
    other.put("still here")
    assert result_of(waiting) == "still here"


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_threads_that_wait_learn_of_the_end(end: str) -> None:
    made, target = queues(3)
    waiting = [start(target.get) for _ in range(3)]
    if end == "cancel":
        target.cancel()
    else:
        for one in made:
            one.close()
    assert [type(result_of(thread)) for thread in waiting] == [ShutDown] * 3


def test_a_filter_may_use_its_own_target() -> None:
    """One thread at a time pulls for a subscription: inside its filter the target passes over it."""
    jobs, other = PullQueue(), PullQueue()
    inner: list[Any] = []

    def accepts(item: Any) -> bool:
        if item == "filtered":
            other.put("plain")
            inner.append(target.pull())
        return True

    target = Target([other.subscribe(), jobs.subscribe(filter=accepts)])
    jobs.put("first")
    entry = target.pull()
    assert entry is not None
    jobs.put("filtered")  # no consumer is told, since this one is on its way: the filter is asked in the pull
    assert inner == []
    entry = target.pull()
    assert entry is not None
    assert entry.item == "filtered"
    assert items([one for one in inner if one is not None]) == ["plain"]


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_target_needs_subscriptions_of_its_own() -> None:
    jobs = PullQueue()
    mine = jobs.subscribe("mine")
    with pytest.raises(ValueError, match="at least one"):
        Target([])
    with pytest.raises(TypeError, match="'mine'"):
        Target(["mine"])  # type: ignore[list-item]
    target = Target([mine])
    fresh = jobs.subscribe("fresh")
    with pytest.raises(ValueError, match="'mine' belongs to a target"):
        Target([fresh, mine])
    with pytest.raises(ValueError, match="'fresh' belongs to a target"):
        Target([fresh, fresh])
    assert Target([fresh]).pull() is None
    assert target.subscriptions == (mine,)


def test_queues_of_a_target_have_one_clock() -> None:
    with pytest.raises(ValueError, match="clock"):
        Target([PullQueue().subscribe(), PullQueue(clock=lambda: 0.0).subscribe()])


def test_representation() -> None:
    _, target = queues(2)
    assert repr(target) == "<Target of 2 subscriptions>"
    target.interested = False
    assert repr(target) == "<Target of 2 subscriptions, not interested>"
    target.cancel()
    assert repr(target) == "<Target of 2 subscriptions, cancelled>"
