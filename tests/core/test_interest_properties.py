"""The interest manager against the oracle, on whatever Hypothesis thinks of."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.interest import INTERESTED, NON_ACQUIRING, NOT_INTERESTED, NOTIFIED, ReferenceInterest

from fairsched import _probe_nodes

priorities = st.one_of(st.integers(-2, 2), st.sampled_from([-(2**31), 2**31 - 1]), st.integers(-(2**31), 2**31 - 1))


class InterestMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves the manager and the oracle with the same lists in the same order."""

    @initialize(threshold=st.integers(0, 3))
    def build(self, threshold: int) -> None:
        self.manager = _probe_nodes.ProbeInterest(threshold)
        self.oracle = ReferenceInterest()

    @rule(priority=priorities, acquires=st.integers(0, 4), desired=st.booleans())
    def make_and_add(self, priority: int, acquires: int, desired: bool) -> None:
        number = self.oracle.make(priority, acquires > 0)
        assert self.manager.make(1, priority, acquires > 0) == number
        assert self.manager.add(number, desired) is self.oracle.add(number, desired)

    @precondition(lambda self: self.oracle.nodes)
    @rule(data=st.data(), what=st.sampled_from(["add", "set"]), desired=st.booleans())
    def add_or_set(self, data: st.DataObject, what: str, desired: bool) -> None:
        number = data.draw(st.integers(0, len(self.oracle.nodes) - 1))
        assert getattr(self.manager, what)(number, desired) is getattr(self.oracle, what)(number, desired)

    @precondition(lambda self: self.oracle.nodes)
    @rule(data=st.data(), what=st.sampled_from(["notify", "done", "remove"]))
    def move(self, data: st.DataObject, what: str) -> None:
        number = data.draw(st.integers(0, len(self.oracle.nodes) - 1))
        assert getattr(self.manager, what)(number) is getattr(self.oracle, what)(number)

    @rule(count=st.integers(1, 5))
    def notify_first(self, count: int) -> None:
        for _ in range(count):
            first = self.oracle.first()
            assert self.manager.notify_first() == first
            if first >= 0:
                self.oracle.notify(first)

    @invariant()
    def same_lists(self) -> None:
        if not hasattr(self, "manager"):
            return
        assert self.manager.valid
        assert len(self.manager) == len(self.oracle.registered)
        assert self.manager.numbers(2) == self.oracle.all()
        for state, which in {INTERESTED: 0, NOTIFIED: 1, NOT_INTERESTED: 3, NON_ACQUIRING: 4}.items():
            assert self.manager.numbers(which) == self.oracle.listed(state)
        assert self.manager.first() == self.oracle.first()
        assert self.manager.highest_notified == self.oracle.highest_notified()


InterestMachine.TestCase.settings = settings(stateful_step_count=80)
TestInterestMachine = InterestMachine.TestCase
