"""The interest manager from one thread: every row of the state table, the order of the lists, and their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles.interest import (
    INTERESTED,
    NO_PRIORITY,
    NON_ACQUIRING,
    NOT_INTERESTED,
    NOTIFIED,
    REMOVED,
)

from fairsched import _probe_nodes

LISTS = {INTERESTED: 0, NOTIFIED: 1, NOT_INTERESTED: 3, NON_ACQUIRING: 4}
ALL = 2


def node_in(state: int, acquires: bool) -> _probe_nodes.ProbeInterest:
    """A manager whose node 0 is in that state."""
    manager = _probe_nodes.ProbeInterest()
    manager.make(1, 0, acquires)
    if state != REMOVED:
        assert manager.add(0, state != NOT_INTERESTED)
    if state == NOTIFIED:
        assert manager.notify(0)
    assert manager.state(0) == state
    return manager


def check(manager: _probe_nodes.ProbeInterest) -> None:
    """The lists say what the state says."""
    state = manager.state(0)
    assert manager.valid
    assert {which: manager.numbers(which) for which in LISTS.values()} == {
        which: [0] if listed == state else [] for listed, which in LISTS.items()
    }
    registered = int(state != REMOVED)
    assert len(manager) == manager.size(ALL) == len(manager.numbers(ALL)) == registered
    assert sum(manager.size(which) for which in LISTS.values()) == registered


ACQUIRER = [REMOVED, INTERESTED, NOTIFIED, NOT_INTERESTED]
BROWSER = [REMOVED, NOT_INTERESTED, NON_ACQUIRING]
OPERATIONS: dict[str, Callable[[_probe_nodes.ProbeInterest], bool]] = {
    "add": lambda manager: manager.add(0, True),
    "add undesired": lambda manager: manager.add(0, False),
    "set": lambda manager: manager.set(0, True),
    "unset": lambda manager: manager.set(0, False),
    "notify": lambda manager: manager.notify(0),
    "done": lambda manager: manager.done(0),
    "remove": lambda manager: manager.remove(0),
}
# (operation, acquires): the states it changes, and into what. Anything else: no change, False.
MOVES: dict[tuple[str, bool], dict[int, int]] = {
    ("add", True): {REMOVED: INTERESTED},
    ("add", False): {REMOVED: NON_ACQUIRING},
    ("add undesired", True): {REMOVED: NOT_INTERESTED},
    ("add undesired", False): {REMOVED: NOT_INTERESTED},
    ("set", True): {NOT_INTERESTED: INTERESTED},
    ("set", False): {NOT_INTERESTED: NON_ACQUIRING},
    ("unset", True): {INTERESTED: NOT_INTERESTED, NOTIFIED: NOT_INTERESTED},
    ("unset", False): {NON_ACQUIRING: NOT_INTERESTED},
    ("notify", True): {INTERESTED: NOTIFIED},
    ("notify", False): {state: state for state in BROWSER},
    ("done", True): {NOTIFIED: INTERESTED},
    ("done", False): {state: state for state in BROWSER},
    ("remove", True): dict.fromkeys([INTERESTED, NOTIFIED, NOT_INTERESTED], REMOVED),
    ("remove", False): dict.fromkeys([NON_ACQUIRING, NOT_INTERESTED], REMOVED),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("state", "acquires"), [(state, True) for state in ACQUIRER] + [(state, False) for state in BROWSER]
)
def test_every_row_of_the_state_table(operation: str, state: int, acquires: bool) -> None:
    manager = node_in(state, acquires)
    check(manager)
    moves = MOVES[operation, acquires]
    assert OPERATIONS[operation](manager) is (state in moves)
    assert manager.state(0) == moves.get(state, state)
    check(manager)


def test_a_move_goes_to_the_tail() -> None:
    manager = _probe_nodes.ProbeInterest()
    manager.make(4)
    for number in range(4):
        manager.add(number)
    assert manager.numbers(0) == [0, 1, 2, 3]
    assert [manager.notify_first() for _ in range(5)] == [0, 1, 2, 3, -1]
    assert manager.done(1)
    assert manager.done(0)
    assert (manager.numbers(0), manager.numbers(1)) == ([1, 0], [2, 3])
    assert manager.numbers(ALL) == [0, 1, 2, 3]


def test_round_robin_by_going_to_the_tail() -> None:
    manager = _probe_nodes.ProbeInterest()
    manager.make(5)
    for number in range(5):
        manager.add(number)
    served = []
    for _ in range(50):
        served.append(manager.notify_first())
        manager.done(served[-1])
    assert served == list(range(5)) * 10


PRIORITIES = [0, 7, -(2**31), 2**31 - 1, 7, -1, 0]


def test_priorities_descend_and_equals_keep_their_order() -> None:
    manager = _probe_nodes.ProbeInterest()
    for priority in PRIORITIES:
        manager.add(manager.make(1, priority))
    assert manager.numbers(ALL) == manager.numbers(0) == [3, 1, 4, 0, 6, 5, 2]
    assert manager.levels == 5
    assert [manager.notify_first() for _ in PRIORITIES] == [3, 1, 4, 0, 6, 5, 2]
    assert manager.numbers(1) == [3, 1, 4, 0, 6, 5, 2]


def test_the_highest_notified_priority() -> None:
    manager = _probe_nodes.ProbeInterest()
    for priority in PRIORITIES:
        manager.add(manager.make(1, priority))
    assert manager.highest_notified == NO_PRIORITY
    for number, highest in [(0, 0), (5, 0), (1, 7), (3, 2**31 - 1)]:
        assert manager.notify(number)
        assert manager.highest_notified == highest
    for number, highest in [(3, 7), (1, 0), (0, -1), (5, NO_PRIORITY)]:
        assert manager.done(number)
        assert manager.highest_notified == highest


@pytest.mark.parametrize("priorities", [1, 63, 64, 65, 200])
def test_the_first_is_found_behind_any_number_of_empty_priorities(priorities: int) -> None:
    manager = _probe_nodes.ProbeInterest()
    for priority in range(priorities):
        manager.add(manager.make(1, priority))
    for number in reversed(range(priorities)):
        assert manager.notify_first() == number
    assert manager.first() == -1
    for number in range(priorities):  # comes back below, and above, what is there
        assert manager.done(number)
        assert manager.first() == number
    assert manager.valid


def test_a_priority_goes_with_its_last_consumer() -> None:
    manager = _probe_nodes.ProbeInterest()
    for priority in (1, 2, 2, 3):
        manager.add(manager.make(1, priority))
    assert manager.levels == 3
    assert manager.remove(1)
    assert manager.levels == 3
    assert manager.remove(2)
    assert (manager.levels, manager.numbers(ALL)) == (2, [3, 0])
    assert manager.add(2)
    assert (manager.levels, manager.numbers(ALL), manager.first()) == (3, [3, 2, 0], 3)
    assert manager.valid


def test_the_node_of_another_manager_is_not_removed() -> None:
    manager, other = node_in(INTERESTED, True), node_in(INTERESTED, True)
    assert not manager.remove_foreign(other, 0)
    check(manager)
    check(other)


def test_a_removed_node_is_disposed_of_when_no_thread_is_inside() -> None:
    manager = node_in(INTERESTED, True)
    manager.remove(0)
    before = _probe_nodes.disposed()
    manager.retire(0)
    assert _probe_nodes.disposed() == before
    for _ in range(3):
        manager.flush()
    assert _probe_nodes.disposed() == before + 1


def test_a_million_moves_take_no_more_room() -> None:
    manager = node_in(INTERESTED, True)
    manager.cycle(10_000)
    capacity = manager.capacity
    manager.cycle(500_000)  # two moves each
    assert manager.capacity == capacity <= 1024
    assert all(manager.physical(which) <= 100 + 2 for which in LISTS.values())
    check(manager)


def test_a_hundred_thousand_consumers_fit_in_512_bytes_each() -> None:
    manager, count = _probe_nodes.ProbeInterest(), 100_000
    manager.make(count)
    for number in range(count):
        manager.add(number)
    manager.cycle(3 * count)
    # An entry has 32 bytes, a node 64 and what malloc adds; priorities and pins cost the same for any number.
    assert (manager.capacity * 32 + count * (64 + 16)) / count <= 512
    assert manager.valid
