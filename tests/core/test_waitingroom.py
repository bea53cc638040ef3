"""Threads that wait for a stock: which are woken, in which order, for how much; and the seats they leave behind."""

from __future__ import annotations

from typing import Any

import pytest
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import _probe_room


def seated(room: _probe_room.ProbeRoom, *priorities: int, amount: int = 1) -> list[Any]:
    """Start threads that wait, one after the other, each with its priority."""
    waiters = []
    for priority in priorities:
        waiting = room.lists[0]
        waiters.append(start(lambda priority=priority: room.take(SOON, priority, amount)))
        reach(lambda waiting=waiting: room.lists[0] == waiting + 1)
    return waiters


def finished(waiters: list[Any]) -> list[bool]:
    return [bool(outcome) for _, outcome in waiters]


def check_quiet(room: _probe_room.ProbeRoom) -> None:
    """All waiters have left, and nothing is left over."""
    reach(lambda: room.lists[:2] == (0, 0))
    assert room.permits == 0
    assert room.valid


def test_the_one_that_waited_longest_of_the_highest_priority() -> None:
    room = _probe_room.ProbeRoom()
    waiters = seated(room, 0, 5, 5, -3)
    for turn in (1, 2, 0, 3):
        room.add(1)
        assert result_of(waiters[turn]) == 1
        assert sum(finished(waiters)) == (1, 2, 0, 3).index(turn) + 1
    check_quiet(room)
    assert room.left == 0


def test_work_for_all_reaches_all_by_handing_over() -> None:
    room = _probe_room.ProbeRoom()
    waiters = seated(room, *range(6))
    room.add(6)
    assert [result_of(waiter) for waiter in waiters] == [1] * 6
    check_quiet(room)


def test_a_thread_that_takes_many_is_woken_in_place_of_many() -> None:
    room = _probe_room.ProbeRoom()
    waiters = seated(room, 0, 0, amount=4)
    room.add(4)
    assert result_of(waiters[0]) == 4
    assert room.lists[:2] == (1, 0)
    room.add(1)
    assert result_of(waiters[1]) == 1
    check_quiet(room)


def test_a_thread_that_wants_all_or_nothing_is_passed_over_until_there_is_enough() -> None:
    room = _probe_room.ProbeRoom(None, True)
    large = seated(room, 0, amount=3)
    small = seated(room, 0, amount=1)
    room.add(1)
    assert result_of(small[0]) == 1
    room.add(2)
    assert (finished(large), room.lists[:2]) == ([False], (1, 0))
    room.add(1)
    assert result_of(large[0]) == 3
    check_quiet(room)


def test_a_time_out_leaves_the_rest_to_others() -> None:
    room = _probe_room.ProbeRoom()
    assert room.take(0.001, 7) == 0
    waiters = seated(room, 0)
    room.add(1)
    assert result_of(waiters[0]) == 1
    check_quiet(room)


def test_all_are_woken_whatever_there_is() -> None:
    room = _probe_room.ProbeRoom()
    waiters = seated(room, 0, 9, 0)
    room.wake_all()
    reach(lambda: room.lists[:2] == (3, 0))  # each looked, and stayed
    room.add(3)
    assert [result_of(waiter) for waiter in waiters] == [1] * 3
    check_quiet(room)


def test_a_clock_that_raises_leaves_the_seat_as_it_was() -> None:
    times = iter([0.0, 0.0])
    room = _probe_room.ProbeRoom(lambda: next(times))
    with pytest.raises(StopIteration):
        room.take(5)
    check_quiet(room)
    assert room.lists == (0, 0, 1)


def test_steady_waiting_makes_no_seats_and_takes_no_memory() -> None:
    room = _probe_room.ProbeRoom()
    for turn in range(50_000):
        assert room.take(0, turn % 8) == 0
        if turn == 5_000:
            capacity = room.capacity
    assert (room.seats, room.capacity) == (8, capacity)
    check_quiet(room)


def test_any_number_of_priorities_needs_a_few_seats() -> None:
    room = _probe_room.ProbeRoom()
    for priority in range(1_000):
        assert room.take(0, priority) == 0
    assert room.seats == room.priorities == 16
    check_quiet(room)
