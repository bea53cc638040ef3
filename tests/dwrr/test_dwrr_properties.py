"""Dwrr against the oracle and against its bound, on whatever Hypothesis thinks of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.dwrr import ReferenceDwrr

from fairsched import Dwrr
from fairsched.stats import SlotStats

NAMES = "abcdef"
amounts = st.one_of(st.integers(1, 12), st.integers(1, 5000))


class DwrrMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves the engine and the oracle in the same state."""

    @initialize(quanta=st.dictionaries(st.sampled_from(NAMES), amounts, min_size=1))
    def build(self, quanta: dict[str, int]) -> None:
        self.engine = Dwrr(quanta)
        self.oracle = ReferenceDwrr(quanta)
        self.token = 0

    def slots(self) -> list[str]:
        return sorted(self.oracle.slots)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), costs=st.lists(amounts, min_size=1, max_size=8))
    def push(self, data: st.DataObject, costs: list[int]) -> None:
        names = [data.draw(st.sampled_from(self.slots())) for _ in costs]
        tokens = range(self.token, self.token + len(costs))
        self.token += len(costs)
        if len(costs) == 1:
            self.engine.push(names[0], tokens[0], costs[0])
        else:
            self.engine.push_many(names, tokens, costs)
        for name, token, cost in zip(names, tokens, costs, strict=True):
            self.oracle.push(name, token, cost)

    @rule(count=st.integers(1, 6))
    def pop(self, count: int) -> None:
        expected = [popped for popped in (self.oracle.pop() for _ in range(count)) if popped is not None]
        if count == 1:
            assert self.engine.pop() == (expected[0] if expected else None)
        else:
            slots, tokens = self.engine.pop_many(count)
            names = self.engine.names
            assert [(names[slot], token) for slot, token in zip(slots, tokens.tolist(), strict=True)] == expected

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), difference=st.integers(-6000, 6000))
    def settle(self, data: st.DataObject, difference: int) -> None:
        name = data.draw(st.sampled_from(self.slots()))
        self.engine.settle(name, difference)
        self.oracle.settle(name, difference)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), held=st.booleans())
    def hold(self, data: st.DataObject, held: bool) -> None:
        name = data.draw(st.sampled_from(self.slots()))
        self.engine.hold(name, held)
        self.oracle.hold(name, held)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), quantum=amounts)
    def set_quantum(self, data: st.DataObject, quantum: int) -> None:
        name = data.draw(st.sampled_from(self.slots()))
        self.engine.set_quantum(name, quantum)
        self.oracle.set_quantum(name, quantum)

    @precondition(lambda self: len(self.oracle.slots) < len(NAMES))
    @rule(data=st.data(), quantum=amounts)
    def add_slot(self, data: st.DataObject, quantum: int) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if name not in self.oracle.slots]))
        self.engine.add_slot(name, quantum)
        self.oracle.slots[name] = ReferenceDwrr({name: quantum}).slots[name]

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data())
    def remove_slot(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.slots()))
        assert self.engine.remove_slot(name).tolist() == self.oracle.remove_slot(name)

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert len(self.engine) == len(self.oracle)
        assert self.engine.stats() == {
            name: SlotStats(slot.quantum, slot.deficit, len(slot.fifo), slot.served, slot.work, slot.held)
            for name, slot in self.oracle.slots.items()
        }


DwrrMachine.TestCase.settings = settings(stateful_step_count=60)
TestDwrrMachine = DwrrMachine.TestCase


@given(
    quanta=st.lists(st.integers(1, 50), min_size=2, max_size=6),
    costs=st.lists(st.integers(1, 80), min_size=1, max_size=40),
    count=st.integers(1, 400),
)
def test_bound_between_continuously_backlogged_slots(quanta: list[int], costs: list[int], count: int) -> None:
    """|S_i/Q_i - S_j/Q_j| <= 1 + maxcost/Q_i + maxcost/Q_j, after every single message."""
    scheduler = Dwrr(dict(enumerate(quanta)))
    deep = 400
    for slot in range(len(quanta)):
        scheduler.push_many(np.full(deep, slot), np.arange(deep), [costs[(slot + i) % len(costs)] for i in range(deep)])
    most = max(costs)
    served = [0] * len(quanta)
    taken = [0] * len(quanta)
    for _ in range(count):
        slot, _ = scheduler.pop()
        served[slot] += costs[(slot + taken[slot]) % len(costs)]
        taken[slot] += 1
        if taken[slot] == deep:
            return
        for i, quantum_i in enumerate(quanta):
            for j, quantum_j in enumerate(quanta):
                lag = abs(served[i] / quantum_i - served[j] / quantum_j)
                assert lag <= 1 + most / quantum_i + most / quantum_j + 1e-9


@given(quantum=st.integers(1, 20), cost=st.integers(1, 200))
def test_served_every_so_many_rounds(quantum: int, cost: int) -> None:
    """Against a slot served once a round, a quantum below the cost is served every ceil(cost/quantum) rounds."""
    scheduler = Dwrr({"clock": 1, "slot": quantum})
    scheduler.push_many(["clock"] * 1000, range(1000))
    scheduler.push("slot", 0, cost)
    rounds = 0
    while scheduler.pop()[0] == "clock":
        rounds += 1
    assert rounds == max(1, -(-cost // quantum))
