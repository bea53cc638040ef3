"""Which consumer to wake: every rule of the policy, from one thread, and against an oracle in plain Python."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from oracles.interest import INTERESTED, NOT_INTERESTED, NOTIFIED, ReferenceInterest

from fairsched import _probe_wakeup

NOT_MOVED, MOVED, OUTRANKED = 0, 1, 2


def consumers(*priorities: int) -> _probe_wakeup.ProbeWakeup:
    """Interested consumers of these priorities."""
    probe = _probe_wakeup.ProbeWakeup()
    for priority in priorities:
        probe.add(priority)
    return probe


def test_no_consumer() -> None:
    probe = consumers()
    assert (probe.one(), probe.outranked(-(2**31)), probe.possible) == (-1, False, False)


def test_one_for_each_piece_of_work_in_the_order_of_waiting() -> None:
    probe = consumers(0, 0, 0)
    assert [probe.one() for _ in range(4)] == [0, 1, 2, -1]
    probe.done(1)
    probe.done(0)
    assert [probe.one() for _ in range(3)] == [1, 0, -1]


def test_those_of_the_highest_priority_first_and_no_other_while_they_are_at_it() -> None:
    probe = consumers(0, 7, -3, 7)
    assert [probe.one() for _ in range(3)] == [1, 3, -1]
    probe.set(1, False)
    assert probe.one() == -1
    probe.set(3, False)
    assert [probe.one() for _ in range(2)] == [0, -1]


@pytest.mark.parametrize("state", ["interested", "notified"])
@pytest.mark.parametrize("kind", [None, 2])
def test_outranked_by_a_higher_one_that_is_interested_or_notified(state: str, kind: int | None) -> None:
    probe = _probe_wakeup.ProbeWakeup()
    probe.add(10, taste=1 << 2)
    if state == "notified":
        assert probe.notify(0) == MOVED
    assert [probe.outranked(priority, kind) for priority in (-(2**31), 9, 10, 2**31 - 1)] == [True, True, False, False]
    probe.set(0, False)
    assert not probe.outranked(9, kind)
    probe.set(0, True)
    assert probe.outranked(9, kind)


def test_a_browser_is_always_told_and_outranks_no_consumer() -> None:
    probe = _probe_wakeup.ProbeWakeup()
    probe.add(10, acquires=False)
    probe.add(0)
    assert probe.notify(0) == MOVED
    assert not probe.outranked(0)
    assert not probe.outranked(0, 5)
    assert [probe.one(), probe.one()] == [1, -1]


def test_a_consumer_that_refuses_the_work_is_passed_over_and_outranks_no_other() -> None:
    probe = _probe_wakeup.ProbeWakeup()
    probe.add(10, taste=1 << 1)
    probe.add(5, taste=1 << 1 | 1 << 2)
    probe.add(0, taste=1 << 3)
    assert [probe.one(3), probe.one(4)] == [2, -1]
    assert [probe.outranked(7, 2), probe.outranked(7, 1), probe.outranked(0, 2)] == [False, True, True]
    assert [probe.notify(0, 2), probe.notify(1, 1), probe.notify(1, 2), probe.notify(1, 2)] == [
        NOT_MOVED,
        OUTRANKED,
        MOVED,
        NOT_MOVED,
    ]
    assert [probe.one(2), probe.one(1)] == [-1, 0]


def test_a_hand_over_wakes_the_next_when_the_last_above_it_has_left() -> None:
    """A lower consumer sleeps while a higher one is at work; it is woken when that one is full."""
    probe = consumers(10, 0)
    assert [probe.one(), probe.one()] == [0, -1]
    assert probe.one() == -1  # too early: the higher one has not moved
    probe.set(0, False)
    assert probe.one() == 1


def test_a_look_sees_new_consumers_and_forgets_those_that_left() -> None:
    probe = consumers(1, 0)
    assert probe.possible
    assert [probe.one(), probe.one()] == [0, -1]
    probe.set(1, False)
    assert probe.one() == -1
    assert not probe.possible
    probe.set(1, True)
    assert probe.possible


class Oracle(ReferenceInterest):
    """The policy on the reference's lists."""

    tastes: list[int]

    def wants(self, number: int, kind: int | None) -> bool:
        return kind is None or bool(self.tastes[number] >> kind & 1)

    def outranked(self, priority: int, kind: int | None) -> bool:
        return any(
            self.nodes[number][0] > priority and self.wants(number, kind)
            for number in self.listed(INTERESTED) + self.listed(NOTIFIED)
        )

    def one(self, kind: int | None) -> int:
        for number in self.listed(INTERESTED):
            if self.wants(number, kind):
                if self.outranked(self.nodes[number][0], kind):
                    return -1
                self.notify(number)
                return number
        return -1


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.booleans(), st.booleans(), st.integers(0, 15)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.sampled_from([None, 0, 1, 2, 3])), max_size=40),
)
def test_against_the_oracle(
    members: list[tuple[int, bool, bool, int]], steps: list[tuple[int, int, int | None]]
) -> None:
    probe, oracle = _probe_wakeup.ProbeWakeup(), Oracle()
    oracle.tastes = [taste for *_, taste in members]
    for priority, desired, acquires, taste in members:
        probe.add(priority, desired, acquires, taste)
        oracle.add(oracle.make(priority, acquires), desired)
    for action, which, kind in steps:
        number = which % len(members)
        if action == 0:
            assert probe.one(kind) == oracle.one(kind)
        elif action == 1:
            assert probe.set(number, True) == oracle.set(number, True)
        elif action == 2:
            assert probe.set(number, False) == oracle.set(number, False)
        elif action == 3:
            assert probe.done(number) == oracle.done(number)
        elif action == 4:
            assert probe.outranked(which - 3, kind) == oracle.outranked(which - 3, kind)
        elif oracle.nodes[number][1]:
            priority, wanted = oracle.nodes[number][0], oracle.wants(number, kind)
            expected = OUTRANKED if oracle.outranked(priority, kind) else int(oracle.states[number] == INTERESTED)
            assert probe.notify(number, kind) == (expected if wanted else NOT_MOVED)
            if wanted and expected == MOVED:
                oracle.notify(number)
        assert [probe.state(number) for number in range(len(members))] == oracle.states
    assert probe.valid


@pytest.mark.parametrize("priorities", [(0,), (0, 0, 0), (0, 1, 2, 3)])
def test_consumers_that_follow_the_rules_leave_no_work_beside_one_that_sleeps(priorities: tuple[int, ...]) -> None:
    probe = consumers(*priorities)
    added = probe.hammer(1, 20_000, 0, len(priorities))
    taken, left = probe.finish()
    assert added == taken + left
    states = [probe.state(number) for number in range(len(priorities))]
    assert NOTIFIED not in states
    assert left == 0 or set(states) == {NOT_INTERESTED}
    assert probe.valid
