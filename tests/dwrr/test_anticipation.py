"""FairQueue with anticipation: which slots are waited for, how long, and which are not."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest
from support.clock import ManualClock
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import FairQueue, ShutDown


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fair(clock: ManualClock) -> FairQueue:
    """A queue whose slot "a" is held, whose "b" is not, and which waits for four seconds."""
    found = FairQueue({"a": 3, "b": 1}, anticipation=4.0, clock=clock)
    found.hold("a", True)
    return found


def poll(fair: FairQueue) -> Any:
    """Get without blocking; None when there is nothing to be got."""
    try:
        return fair.get(False)
    except queue.Empty:
        return None


class TestTurns:
    def test_an_empty_slot_keeps_its_turn_until_it_is_used_up(self, fair: FairQueue) -> None:
        fair.put("a", 1)
        fair.put_many("b", range(5))
        assert poll(fair) == ("a", 1)
        assert poll(fair) is None
        fair.put("a", 2)
        assert poll(fair) == ("a", 2)
        assert poll(fair) is None
        fair.put("a", 3)
        assert [poll(fair), poll(fair)] == [("a", 3), ("b", 0)]
        assert poll(fair) is None

    def test_the_wait_is_bounded(self, fair: FairQueue, clock: ManualClock) -> None:
        fair.put("a", 1)
        fair.put_many("b", range(5))
        assert poll(fair) == ("a", 1)
        assert poll(fair) is None
        clock.now = 3.9
        assert poll(fair) is None
        clock.now = 4.0
        assert [poll(fair) for _ in range(5)] == [("b", number) for number in range(5)]

    def test_the_bound_is_for_the_waits_of_a_turn_and_not_for_service(
        self, fair: FairQueue, clock: ManualClock
    ) -> None:
        fair.put("a", 1)
        fair.put("b", 0)
        assert poll(fair) == ("a", 1)
        clock.now = 100.0  # a slot was at work: no getter waited
        assert poll(fair) is None
        clock.now = 103.0
        fair.put("a", 2)
        assert poll(fair) == ("a", 2)
        clock.now = 200.0
        assert poll(fair) is None
        assert fair.anticipated() == pytest.approx(1.0)
        clock.now = 201.0
        assert poll(fair) == ("b", 0)

    def test_what_is_kept_is_made_up_for(self, fair: FairQueue, clock: ManualClock) -> None:
        fair.put("a", 1)
        fair.put_many("b", range(4))
        assert [poll(fair), poll(fair)] == [("a", 1), None]
        clock.now = 4.0
        assert poll(fair) == ("b", 0)
        fair.put_many("a", range(10))
        assert [poll(fair)[0] for _ in range(7)] == ["a"] * 5 + ["b", "a"]

    def test_a_slot_waited_for_in_vain_is_not_waited_for_until_held_anew(
        self, fair: FairQueue, clock: ManualClock
    ) -> None:
        fair.put("a", 1)
        fair.put_many("b", range(100))
        assert [poll(fair), poll(fair)] == [("a", 1), None]
        clock.now = 4.0
        assert poll(fair) == ("b", 0)
        fair.put("a", 2)
        assert [poll(fair), poll(fair)] == [("a", 2), ("b", 1)]
        assert not fair.hold("a", True)
        assert fair.hold("a", True)
        fair.put("a", 3)
        assert [poll(fair), poll(fair)] == [("a", 3), None]

    def test_a_slot_that_is_not_held_is_not_waited_for(self, fair: FairQueue) -> None:
        fair.hold("a", False)
        fair.put("a", 1)
        fair.put("b", 2)
        assert [poll(fair), poll(fair), poll(fair)] == [("a", 1), ("b", 2), None]

    def test_a_slot_can_be_held_without_being_waited_for(self, fair: FairQueue) -> None:
        assert fair.hold("a", True, awaited=False)
        fair.put("a", 1)
        fair.put("b", 2)
        assert [poll(fair), poll(fair)] == [("a", 1), ("b", 2)]
        assert fair.stats()["a"].deficit == 2

    def test_letting_go_ends_the_wait(self, fair: FairQueue) -> None:
        fair.put("a", 1)
        fair.put("b", 2)
        assert [poll(fair), poll(fair)] == [("a", 1), None]
        fair.hold("a", False)
        assert poll(fair) == ("b", 2)

    def test_without_patience_no_slot_is_waited_for(self, fair: FairQueue) -> None:
        fair.put("a", 1)
        fair.put_many("b", [2, 3])
        assert [poll(fair), poll(fair)] == [("a", 1), None]
        fair.anticipate(0.0)
        assert [poll(fair), poll(fair)] == [("b", 2), ("b", 3)]

    def test_a_turn_is_over_when_the_next_message_would_presumably_not_fit(self) -> None:
        fair = FairQueue({"a": 10, "b": 10}, anticipation=4.0)
        fair.hold("a", True)
        fair.put("a", 1, cost=6)
        fair.put("b", 2, cost=6)
        assert [poll(fair), poll(fair)] == [("a", 1), ("b", 2)]

    def test_a_batch_ends_where_a_slot_is_waited_for(self, fair: FairQueue) -> None:
        fair.put_many("a", [1, 2])
        fair.put_many("b", range(5))
        assert fair.get_many(10) == [("a", 1), ("a", 2)]
        fair.put("a", 3)
        assert fair.get_many(10) == [("a", 3), ("b", 0)]

    def test_a_callback_is_not_called_again_and_again_while_a_turn_is_waited_for(self, fair: FairQueue) -> None:
        calls: list[int] = []
        fair.put("a", 1)
        fair.put("b", 0)
        assert poll(fair) == ("a", 1)
        assert poll(fair) is None
        waiter = fair.call_when_ready(lambda: calls.append(1))
        assert (poll(fair), calls) == (None, [])
        waiter.again()
        assert calls == []
        fair.put("b", 1)  # it may look, but must wait on
        assert (poll(fair), calls) == (None, [1])
        waiter.again()
        assert calls == [1]
        fair.put("a", 2)
        assert (poll(fair), calls) == (("a", 2), [1, 1])
        waiter.leave()


class TestWaiting:
    def test_a_getter_waits_for_the_slot_whose_turn_it_is(self) -> None:
        fair = FairQueue({"a": 2, "b": 1}, anticipation=SOON)
        fair.hold("a", True)
        fair.put("a", 1)
        fair.put("b", 2)
        assert fair.get() == ("a", 1)
        getter = start(fair.get)
        fair.put("b", 3)
        assert getter[1] == []
        fair.put("a", 4)
        assert result_of(getter) == ("a", 4)
        assert fair.get() == ("b", 2)

    @pytest.mark.parametrize("get", [lambda fair: fair.get()[1], lambda fair: fair.get_many(1).items[0]])
    def test_a_getter_goes_on_when_the_turn_has_passed(self, get: Any) -> None:
        fair = FairQueue({"a": 2, "b": 1}, anticipation=0.05)
        fair.hold("a", True)
        fair.put("a", 1)
        fair.put("b", 2)
        begin = time.monotonic()
        assert [get(fair), get(fair)] == [1, 2]
        assert 0.04 <= time.monotonic() - begin < SOON

    def test_a_time_out_of_the_callers_own_comes_first(self) -> None:
        fair = FairQueue({"a": 2, "b": 1}, anticipation=SOON)
        fair.hold("a", True)
        fair.put("a", 1)
        fair.put("b", 2)
        assert fair.get() == ("a", 1)
        for timeout in (0.0, 0.01):
            with pytest.raises(queue.Empty):
                fair.get(timeout=timeout)
            with pytest.raises(queue.Empty):
                fair.get_many(3, timeout=timeout)

    def test_all_waiting_getters_get_on(self) -> None:
        """Items put while one getter waits for a turn wake no other: a getter that takes an item wakes the next."""
        fair = FairQueue({"a": 9, "b": 1}, anticipation=0.02)
        fair.hold("a", True)
        fair.put("a", 0)
        assert fair.get() == ("a", 0)
        getters = [start(fair.get) for _ in range(5)]
        fair.put_many("b", range(4))
        fair.put("a", 4)
        assert sorted(result_of(getter)[1] for getter in getters) == [0, 1, 2, 3, 4]

    def test_shutting_down_ends_the_wait(self) -> None:
        fair = FairQueue({"a": 2, "b": 1}, anticipation=SOON)
        fair.hold("a", True)
        fair.put("a", 1)
        fair.put("b", 2)
        assert fair.get() == ("a", 1)
        getter = start(fair.get)
        fair.shutdown()
        assert result_of(getter) == ("b", 2)
        fair.anticipate(1.0)
        with pytest.raises(ShutDown):
            fair.get()


class TestForThoseWhoDoNotBlock:
    def test_how_long_to_wait(self, fair: FairQueue, clock: ManualClock) -> None:
        assert fair.anticipated() is None
        fair.put("a", 1)
        assert (fair.anticipated(), poll(fair), fair.anticipated()) == (None, ("a", 1), None)
        fair.put("b", 2)
        assert poll(fair) is None
        clock.now = 1.0
        assert fair.anticipated() == pytest.approx(3.0)
        fair.put("a", 3)
        assert fair.anticipated() is None


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 3601, "1", None, True])
def test_bad_patience(seconds: Any) -> None:
    with pytest.raises(ValueError, match="anticipation must be a number of seconds from 0 to 3600, got"):
        FairQueue({"a": 1}, anticipation=seconds)
