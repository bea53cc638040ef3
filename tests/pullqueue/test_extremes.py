"""Times and sizes at the ends of what is allowed: against Python's integers, which do not overflow."""

from __future__ import annotations

import math
import queue as queues
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock

from fairsched.pullqueue import PullQueue, Subscription

SIZE_MAX = 2**62 - 1
TOTAL_MAX = 2**63 - 1

SECONDS = st.one_of(
    st.sampled_from([0, 1, -1, 1.7e9, 8e9, 8.99e9, -8.99e9, 9e9 - 2**20]),
    st.floats(-8.999e9, 8.999e9),
    st.integers(-8_999_999_999, 8_999_999_999),
)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def test_a_long_life_by_a_wall_clock_is_not_over_at_once() -> None:
    queue = PullQueue(clock=ManualClock(1.7e9), ttl=8.9e9)
    worker = queue.subscribe()
    queue.put("m", ttl=8e9)
    assert queue.expire() == 0
    entry = worker.pull()
    assert entry is not None
    assert entry.item == "m"


@given(SECONDS, SECONDS.filter(lambda s: s >= 0), SECONDS, st.booleans())
def test_a_message_expires_when_its_time_is_past(start: float, life: float, later: float, own: bool) -> None:
    clock = ManualClock(start)
    queue = PullQueue(clock=clock, ttl=None if own else life)
    worker = queue.subscribe()
    queue.put("m", ttl=life if own else None)
    clock.now = later
    end = min(nanoseconds(start) + nanoseconds(life), TOTAL_MAX)
    assert (worker.pull() is None) == (nanoseconds(later) > (end or 1))


@given(SECONDS, SECONDS)
def test_a_message_is_held_until_its_time(start: float, until: float) -> None:
    clock = ManualClock(start)
    queue = PullQueue(clock=clock)
    worker = queue.subscribe()
    queue.put("m", not_before=until)
    assert (worker.pull() is None) == ((nanoseconds(until) or 1) >= nanoseconds(start))


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, 1e10, -1e10, 10**400, 1e300])
def test_a_clock_that_cannot_be_is_named(now: float) -> None:
    clock = ManualClock()
    queue = PullQueue(clock=clock)
    worker = queue.subscribe()
    queue.put("m", ttl=5)
    clock.now = now
    for call in (
        worker.pull,
        lambda: worker.pull_many(2),
        queue.expire,
        lambda: queue.put("n"),
        lambda: queue.subscribe("new"),
        worker.cancel,
    ):
        with pytest.raises(ValueError, match="a clock must return a number of seconds between"):
            call()
    clock.now = 1
    assert queue.lists()["notified"] == [worker.name]
    entries = worker.pull_many(5)
    assert [entry.item for entry in entries] == ["m"]
    clock.now = now
    with pytest.raises(ValueError, match="a clock"):
        entries[0].ack()
    clock.now = 1
    assert entries[0].ack()
    assert queue.depth == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 9e9, 10**400, -1])
def test_times_that_cannot_be_are_named(value: float) -> None:
    queue = PullQueue()
    with pytest.raises(ValueError, match="ttl must be a number of seconds, 0 or more and below 9e9"):
        queue.put("m", ttl=value)
    if value != -1:
        with pytest.raises(ValueError, match="not_before must be a number of seconds between"):
            queue.put("m", not_before=value)
    assert queue.depth == 0


SIZES = st.one_of(st.sampled_from([0, 1, 2**61 - 1, 2**61, 2**61 + 1, SIZE_MAX]), st.integers(0, SIZE_MAX))


@given(st.lists(SIZES, max_size=6), st.integers(1, 3))
def test_messages_of_any_size_are_taken_with_credit(sizes: list[int], credit: int) -> None:
    queue = PullQueue()
    worker = queue.subscribe(credit=credit)
    browser = queue.subscribe(credit=credit, acquires=False)
    queued: list[int] = []
    for size in sizes:
        if sum(queued) + size <= TOTAL_MAX:
            queue.put(size, size=size)
            queued.append(size)
        else:
            with pytest.raises(queues.Full, match=f"a message of {size} bytes does not fit"):
                queue.put(size, size=size)
    assert (queue.bytes, queue.depth) == (sum(queued), len(queued))
    for subscription in (browser, worker):
        assert settled_by(subscription, credit) == queued
    assert (queue.bytes, queue.depth) == (0, 0)


def settled_by(subscription: Subscription, credit: int) -> list[int]:
    """Take all, as many at a time as there is credit for."""
    found: list[int] = []
    while entries := subscription.pull_many(10):
        assert len(entries) <= credit
        assert subscription.credit == credit - len(entries)
        assert subscription.interested == (len(entries) < credit)
        found += [entry.item for entry in entries]
        assert [entry.ack() for entry in entries] == [True] * len(entries)
        assert subscription.credit == credit
        assert subscription.interested
    return found


@given(
    st.lists(SIZES, min_size=1, max_size=6),
    SIZES.filter(bool),
    st.sampled_from(["ring", "reject"]),
)
def test_limits_of_any_size_hold(sizes: list[int], limit: int, overflow: Any) -> None:
    queue = PullQueue(max_bytes=limit, overflow=overflow)
    queued: list[int] = []
    for size in sizes:
        fits = size <= limit if overflow == "ring" else sum(queued) + size <= limit
        if not fits:
            with pytest.raises(queues.Full):
                queue.put(size, size=size)
            continue
        queue.put(size, size=size)
        queued.append(size)
        while sum(queued) > limit:
            del queued[0]
    assert queue.bytes == sum(queued)
    assert [entry.item for entry in queue.subscribe().pull_many(9)] == queued


@given(st.integers(-(2**64), 2**64))
def test_credit_of_any_size_is_counted(credit: int) -> None:
    queue = PullQueue()
    worker = queue.subscribe()
    for item in range(3):
        queue.put(item)
    if not 0 <= credit <= SIZE_MAX:
        with pytest.raises((ValueError, OverflowError), match="credit must be"):
            worker.credit = credit
        return
    worker.credit = credit
    entries = worker.pull_many(2)
    assert len(entries) == min(credit, 2)
    assert worker.credit == credit - len(entries)
    worker.credit = credit
    assert worker.credit == credit
    assert [entry.release() for entry in entries] == [True] * len(entries)
