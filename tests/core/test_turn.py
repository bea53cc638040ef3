"""A look into a fair queue finds what comes first when the turns are granted, one by one, and grants none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceDwrr
from oracles.kinds import Fair, Stored

from fairsched import _probe_turn

AMOUNT_MAX = 2**62 - 1
WANTED, REJECTED, FOREIGN = range(3)
standings = st.sampled_from([WANTED, WANTED, REJECTED, FOREIGN])


def slots_of(quanta: Any, deficits: Any, costs: Any) -> Any:
    """Active slots: one without messages is there because it is in debt."""
    messages = st.lists(st.tuples(costs, standings), max_size=3)
    slot = st.tuples(quanta, deficits, messages)
    return st.lists(slot.filter(lambda slot: slot[2] or slot[1] < 0), min_size=1, max_size=5)


def reference_of(slots: Any, granted: bool) -> ReferenceDwrr:
    """The same slots in the oracle; tokens are messages."""
    dwrr = ReferenceDwrr({number: quantum for number, (quantum, _, _) in enumerate(slots)})
    for number, (_, deficit, messages) in enumerate(slots):
        dwrr.active.append(number)
        dwrr.slots[number].deficit = deficit
        for cost, standing in messages:
            dwrr.max_cost = max(dwrr.max_cost, cost)
            message: Any = Stored(0, standing == WANTED, slot=number, size=cost)
            dwrr.slots[number].fifo.append((message, cost))
    dwrr.slots[0].granted = granted
    return dwrr


@given(slots=slots_of(st.integers(1, 9), st.integers(-40, 20), st.integers(1, 40)), granted=st.booleans())
def test_a_look_finds_what_comes_first_and_grants_nothing(slots: Any, granted: bool) -> None:
    dwrr = reference_of(slots, granted)
    served = Fair.serve(dwrr, lambda message: message.item)
    slot, cost, before, between, after, reached = _probe_turn.look_and_reach(slots, granted)
    assert between == before
    if served is None:
        assert slot is None
        return
    assert (slot, cost) == (served.slot, served.size)
    assert reached
    first, *others = [(number, deficit) for number, deficit, _ in after]
    if dwrr.slots[slot].fifo:  # otherwise it has left the list, and forfeited what it had
        assert (first[0], first[1] - cost) == (dwrr.active.popleft(), dwrr.slots[slot].deficit)
    assert others == [(number, dwrr.slots[number].deficit) for number in dwrr.active]


@given(
    slots=slots_of(
        st.sampled_from([1, 2, AMOUNT_MAX]),
        st.sampled_from([-AMOUNT_MAX, -AMOUNT_MAX + 1, -1, 0, 1, AMOUNT_MAX]),
        st.sampled_from([1, 2, AMOUNT_MAX - 1, AMOUNT_MAX]),
    ),
    granted=st.booleans(),
)
def test_the_largest_amounts(slots: Any, granted: bool) -> None:
    slot, _, before, between, after, reached = _probe_turn.look_and_reach(slots, granted)
    assert between == before
    assert reached is (slot is not None)
    assert slot is None or after[0][0] == slot


@pytest.mark.parametrize(
    ("slots", "granted", "slot"),
    [
        ([(1, 0, [(5, WANTED)]), (1, 0, [(1, WANTED)])], False, 1),  # the fewest rounds
        ([(1, 0, [(1, WANTED)]), (1, 5, [(1, WANTED)])], False, 0),  # then the place
        ([(1, 0, [(1, WANTED)]), (1, 0, [(1, WANTED)])], True, 1),  # whose turn is over, goes to the end
        ([(1, 1, [(1, WANTED)]), (1, 9, [(1, WANTED)])], True, 0),  # and whose is not, goes on
        ([(1, 1, [(1, REJECTED)]), (9, 0, [(9, FOREIGN), (5, WANTED)])], True, 1),
        ([(1, -3, []), (1, -3, [(1, WANTED)])], False, 1),  # a debt is paid meanwhile
        ([(1, 0, [(1, REJECTED), (1, FOREIGN)])], False, None),
    ],
)
def test_what_comes_first(slots: Any, granted: bool, slot: int | None) -> None:
    assert _probe_turn.look_and_reach(slots, granted)[0] == slot
