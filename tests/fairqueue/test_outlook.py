"""The work ahead of a slot: all that the plain algorithm serves before it; asking changes nothing."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceDwrr

from fairsched import FairQueue
from fairsched.stats import SlotOutlook, SlotStats

NAMES = "abcd"
amounts = st.one_of(st.integers(1, 6), st.integers(1, 300))
names = st.sampled_from(NAMES)
quanta = st.fixed_dictionaries(dict.fromkeys(NAMES, amounts))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), names, amounts),
        st.tuples(st.just("push"), names, amounts),
        st.tuples(st.just("pop")),
        st.tuples(st.just("settle"), names, st.integers(-300, 300)),
        st.tuples(st.just("hold"), names, st.booleans()),
        st.tuples(st.just("set_quantum"), names, amounts),
    ),
    max_size=40,
)


def play(given_quanta: dict[str, int], taken: list[Any], look: Callable[[FairQueue], object]) -> Any:
    """Do the same to a queue, which is looked at after each step, and to the oracle; return both."""
    queue, oracle = FairQueue(given_quanta), ReferenceDwrr(given_quanta)
    for token, (what, *how) in enumerate(taken):
        if what == "push":
            queue.put(how[0], token, cost=how[1])
            oracle.push(how[0], token, how[1])
        elif what == "pop":
            assert (queue.get() if queue.qsize() else None) == oracle.pop()
        else:
            getattr(queue, what)(*how)
            getattr(oracle, what)(*(how if what != "hold" else [*how, False]))
        look(queue)
    return queue, oracle


def expected(oracle: ReferenceDwrr, name: str) -> tuple[int, int]:
    """Serve a copy until it is a slot's turn to be served: how many others were, and how many of its turns passed."""
    oracle = copy.deepcopy(oracle)
    slot = oracle.slots[name]
    under_way, deficit, cost = slot.granted, slot.deficit, slot.fifo[0][1]
    others: set[object] = set()
    while (served := oracle.pop()[0]) != name:
        others.add(served)
    grants = (slot.deficit + cost - deficit) // slot.quantum if slot.fifo or slot.held else None
    if grants is None:  # emptied, so that its deficit is gone: counted by what it lacked
        grants = max(0 if under_way else 1, -(-(cost - deficit) // slot.quantum))
    return len(others), grants + under_way - 1


@given(quanta, steps)
def test_what_is_served_before_a_slot_is_what_the_plain_algorithm_serves(given_quanta: Any, taken: Any) -> None:
    queue, oracle = play(given_quanta, taken, lambda _queue: None)
    for name in NAMES:
        found, slot = queue.outlook(name), oracle.slots[name]
        assert found.stats == queue.stats()[name]
        assert found.awaited is None
        if not slot.fifo:
            assert found[1:6] == (None, None, None, None, None)
            continue
        assert (found.item, found.cost) == slot.fifo[0]
        assert (found.before, found.turns) == expected(oracle, name)
        assert found.others == len(oracle.active) - 1


@given(quanta, steps)
def test_looking_changes_nothing(given_quanta: Any, taken: Any) -> None:
    """`play` compares the whole order of service with that of an undisturbed oracle."""
    queue, oracle = play(given_quanta, taken, lambda queue: [queue.outlook(name) for name in NAMES])
    while queue.qsize():
        for name in NAMES:
            queue.outlook(name)
        assert queue.get() == oracle.pop()


def test_largest_numbers() -> None:
    most = 2**62 - 1
    queue = FairQueue({"a": 1, "b": most})
    queue.put("a", "x", cost=most)
    queue.put("b", "y", cost=most)
    queue.settle("a", most)
    found = queue.outlook("a")
    assert (found.before, found.turns) == (1, 2 * most - 1)
    assert queue.outlook("b")[3:6] == (0, 0, 1)


def test_a_slot_whose_turn_is_waited_for() -> None:
    now = 0.0
    queue = FairQueue({"a": 1, "b": 1}, anticipation=1.0, clock=lambda: now)
    queue.put("a", "x")
    queue.hold("a", True)
    assert queue.get() == ("a", "x")
    queue.put("b", "y")
    assert queue.get() == ("b", "y")
    queue.put("b", "z")
    with pytest.raises(Empty):  # it is the turn of "a", and a call has found that
        queue.get(block=False)
    found = queue.outlook("b")
    assert (found.awaited, found.before, found.others) == ("a", 0, 1)
    assert queue.outlook("a") == SlotOutlook(SlotStats(1, 1, 0, 1, 1, True), None, None, None, None, None, "a")
    now = 2.0
    assert queue.get() == ("b", "z")
    assert queue.outlook("a").awaited is None


def test_unknown_slots() -> None:
    queue = FairQueue({"a": 1}, default_quantum=1)
    with pytest.raises(KeyError, match="no slot is named 'b'"):
        queue.outlook("b")
    queue.put("b", 1)
    assert queue.outlook("b").item == 1
    queue.get()
    with pytest.raises(KeyError, match="no slot is named 'b'"):
        queue.outlook("b")
    with pytest.raises(TypeError):
        queue.outlook([])


def test_references() -> None:
    item = object()
    queue = FairQueue({"a": 1})
    queue.put("a", item)
    before = sys.getrefcount(item)
    for _ in range(10):
        queue.outlook("a")
    assert sys.getrefcount(item) == before
