"""BackloggedSlots: which slots are held, and which of them are waited for."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.consumer.prefetch.hold import (
    LEAST_PATIENCE,
    LONGEST_PENALTY,
    MOST_ASKED,
    MOST_PATIENCE,
    PERIOD,
    BackloggedSlots,
    _Penalty,
    patience,
)
from fairsched.consumer.prefetch.measure import Measurements
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.worker_queues import WorkerQueues

URL = "amqp://guest:guest@localhost/"


class Timers:
    """The timers of an I/O loop, moved by hand."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        self.due.append((delay, function))

    def pass_a_period(self) -> None:
        due, self.due = self.due, []
        for delay, function in due:
            assert delay == PERIOD
            function()


class Workshop:
    """Two queues with windows of ten, whose backlog the test knows."""

    def __init__(self, anticipation: float | None = None, **options: Any) -> None:
        settings = ConsumerSettings(URL, {"a": 2, "b": 1}, prefetch={"a": 10, "b": 10}, **options)
        settings.anticipation = anticipation
        self.backlog = {"a": True, "b": True}
        self.timers, self.worker_queues, self.measurements = Timers(), WorkerQueues(settings), Measurements()
        self.found = {name: self.channel(name) for name in ("a", "b")}
        self.backlogged = BackloggedSlots(
            self.timers, settings, self.measurements, self.worker_queues, lambda queue: self.found[queue]
        )

    def channel(self, name: str) -> Any:
        return SimpleNamespace(queue=name, window=10, asking=False, backlogged=lambda may_ask: self.backlog[name])

    def held(self) -> set[object]:
        return {name for name, slot in self.worker_queues.stats().items() if slot.held}


def test_a_queue_is_held_from_filling_its_window_until_it_is_empty() -> None:
    shop = Workshop()
    shop.backlogged.note_fill(shop.found["a"])
    assert shop.held() == {"a"}
    shop.timers.pass_a_period()
    assert shop.held() == {"a"}
    shop.backlog["a"] = False
    shop.timers.pass_a_period()
    assert (shop.held(), shop.timers.due) == (set(), [])
    shop.backlogged.note_fill(shop.found["a"])
    assert shop.held() == {"a"}


def test_tenants_are_not_held() -> None:
    shop = Workshop(key="header:tenant")
    shop.backlogged.note_fill(shop.found["a"])
    assert (shop.held(), shop.timers.due) == (set(), [])


def test_a_few_of_many_queues_are_asked_about_in_a_period_and_all_in_turn() -> None:
    shop = Workshop()
    asked: list[str] = []

    def doubtful(name: str) -> Any:
        found = SimpleNamespace(queue=name, window=10, asking=False)

        def backlogged(may_ask: bool) -> bool:
            found.asking = may_ask
            if may_ask:
                asked.append(name)
            return True

        found.backlogged = backlogged
        return found

    names = [f"q-{number}" for number in range(100)]
    settings = ConsumerSettings(URL, names)
    found = {name: doubtful(name) for name in names}
    backlogged = BackloggedSlots(shop.timers, settings, shop.measurements, WorkerQueues(settings), found.get)
    for one in found.values():
        backlogged.note_fill(one)
    for period in range(1, 26):
        shop.timers.pass_a_period()
        assert len(asked) == period * MOST_ASKED
    assert set(asked) == set(names)


def wait_in_vain(shop: Workshop) -> bool:
    """Whether slot "a", which gets nothing more, was waited for before "b" was served."""
    (worker_queue,) = shop.worker_queues.queues
    worker_queue.put("a", 1)
    worker_queue.put("b", 2)
    assert worker_queue.get() == ("a", 1)
    try:
        assert worker_queue.get(False) == ("b", 2)
    except queue.Empty:
        assert worker_queue.get() == ("b", 2)
        return True
    return False


def test_a_queue_waited_for_in_vain_is_left_alone_longer_each_time() -> None:
    shop = Workshop(anticipation=0.001)
    shop.backlogged.note_fill(shop.found["a"])
    periods = []
    for period in range(40):
        if wait_in_vain(shop):
            periods.append(period)
        shop.timers.pass_a_period()
    assert periods == [0, 1, 3, 6, 11, 20, 37]


def test_a_window_smaller_than_a_turn_is_not_waited_for() -> None:
    shop = Workshop(anticipation=5.0)
    shop.found["a"].window = 1
    shop.backlogged.note_fill(shop.found["a"])
    assert not wait_in_vain(shop)
    assert shop.held() == {"a"}


def test_no_queue_is_waited_for_where_that_is_not_wanted() -> None:
    shop = Workshop(anticipation=0.0)
    shop.backlogged.note_fill(shop.found["a"])
    assert not wait_in_vain(shop)


@pytest.mark.parametrize(
    ("round_trip", "seconds"), [(None, LEAST_PATIENCE), (0.0, LEAST_PATIENCE), (0.1, 0.4), (100, MOST_PATIENCE)]
)
def test_patience(round_trip: float | None, seconds: float) -> None:
    assert patience(round_trip) == pytest.approx(seconds)
    assert patience(round_trip, None, 0.001) == pytest.approx(seconds)


@given(st.lists(st.booleans(), max_size=300))
def test_a_penalty_is_bounded_and_ends_with_a_success(in_vain: list[bool]) -> None:
    penalty = _Penalty()
    for failed in in_vain:
        periods = 0
        while not penalty.over():
            periods += 1
        assert periods <= LONGEST_PENALTY
        penalty.renew(failed)
        if not failed:
            assert penalty.over()
            penalty.renew(False)
