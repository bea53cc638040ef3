"""The sparse-slot boost: which slots are put first, that it is once a round, and what the others wait for at most."""

from __future__ import annotations

import queue
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.sparse import MOST_BOOSTS, ReferenceSparse
from support.clock import ManualClock

from fairsched import FairQueue, Limit


def names_of(fair: FairQueue, count: int) -> list[Any]:
    return [fair.get(block=False)[0] for _ in range(count)]


class TestBoost:
    @pytest.mark.parametrize(
        ("boost", "expected"), [(False, "aabbccxaabbccxaabbc"), (True, "bxbccaaxbbccaaxbbcc")], ids=["off", "on"]
    )
    def test_a_slot_that_had_nothing_goes_first_and_the_interrupted_turn_goes_on(
        self, boost: bool, expected: str
    ) -> None:
        fair = FairQueue({"a": 2, "b": 2, "c": 2, "x": 2}, sparse_boost=boost)
        for name in "abc":
            fair.put_many(name, range(20))
        names_of(fair, 12)  # two rounds: no tenant is new any more; b and c were, before a
        found = names_of(fair, 1)
        fair.put_many("x", range(3), [2, 2, 2])
        found += names_of(fair, 18)
        assert "".join(found) == expected

    def test_it_has_one_turn_and_is_a_slot_like_any_other_then(self) -> None:
        fair = FairQueue({"a": 1, "b": 1, "x": 2}, sparse_boost=True)
        for name in "ab":
            fair.put_many(name, range(20))
        names_of(fair, 4)
        fair.put_many("x", range(5))
        assert "".join(names_of(fair, 9)) == "xxbxxabxa"

    def test_a_tenant_that_runs_empty_is_not_put_first_again_in_the_same_round(self) -> None:
        fair = FairQueue({"a": 1, "b": 1, "x": 1}, sparse_boost=True)
        for name in "ab":
            fair.put_many(name, range(20))
        names_of(fair, 4)
        found = []
        for number in range(12):
            if not fair.backlog("x"):
                fair.put("x", number)
            found += names_of(fair, 1)
        assert "".join(found) == "xbxabxabxabx"

    def test_several_new_ones_are_served_in_the_order_in_which_they_came(self) -> None:
        fair = FairQueue(default_quantum=1, sparse_boost=True)
        fair.put_many("a", range(5))
        names_of(fair, 1)
        for name in "xyz":
            fair.put_many(name, range(2))
        assert "".join(names_of(fair, 10)) == "xyzxyzaaaa"

    def test_without_end_of_new_ones_the_others_are_served_too(self) -> None:
        served = {}
        for boost in (False, True):
            fair = FairQueue(default_quantum=1, sparse_boost=boost)
            fair.put_many("old", range(1000))
            found = names_of(fair, 1)
            for number in range(2000):  # each message is of a tenant that is new
                fair.put(number, 0)
                found += names_of(fair, 1)
            served[boost] = found.count("old")
            gaps = [number for number, name in enumerate(found) if name == "old"]
        assert served[True] >= served[False] / 2 > 10
        # In a round, as many turns as slots wait, twice, and the most that were put first at once.
        assert all(after - before <= 2 * (n + 2) + MOST_BOOSTS for n, (before, after) in enumerate(pairwise(gaps)))

    def test_a_tenant_is_forgotten_a_round_later(self) -> None:
        fair = FairQueue(default_quantum=1, sparse_boost=True)
        fair.put_many("a", range(3))
        names_of(fair, 1)
        fair.put("x", 0)
        assert names_of(fair, 1) == ["x"]
        assert set(fair.stats()) == {"a", "x"}
        names_of(fair, 2)
        assert fair.stats() == {}

    def test_no_tenant_goes_before_a_slot_that_is_waited_for(self) -> None:
        clock = ManualClock()
        fair = FairQueue({"a": 2, "b": 1, "x": 1}, anticipation=1.0, clock=clock, sparse_boost=True)
        fair.hold("a", True)
        fair.put("a", 0)
        fair.put_many("b", range(3))
        found = names_of(fair, 2)
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        fair.put("x", 0)
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        fair.put("a", 1)
        assert [*found, *names_of(fair, 1)].count("a") == 2
        assert Counter(names_of(fair, 2)) == {"b": 1, "x": 1}

    def test_a_new_slot_at_its_limit_is_not_new_when_it_comes_back(self) -> None:
        fair = FairQueue({"a": 1, "b": 1, "x": 3}, sparse_boost=True)
        fair.set_limit("x", Limit(1))
        for name in "ab":
            fair.put_many(name, range(20))
        names_of(fair, 4)
        fair.put_many("x", range(3))
        assert "".join(names_of(fair, 3)) == "xba"
        fair.release("x")
        assert "".join(names_of(fair, 3)) == "xba"  # what is left of its turn

    def test_it_is_within_a_band(self) -> None:
        fair = FairQueue({"gold": 1, "a": 1, "x": 1}, sparse_boost=True)
        fair.set_band("gold", 0)
        fair.put_many("gold", range(2))
        fair.put_many("a", range(3))
        names_of(fair, 3)
        fair.put("gold", 2)
        fair.put("x", 0)
        assert names_of(fair, 4) == ["gold", "x", "a", "a"]


NAMES = ("a", "b", "c", "d")


class BoostedQueue(RuleBasedStateMachine):
    """The order of service and the accounts are those of the oracle, whatever is done."""

    @initialize(quanta=st.lists(st.integers(1, 5), min_size=4, max_size=4))
    def begin(self, quanta: list[int]) -> None:
        self.oracle = ReferenceSparse(dict(zip(NAMES, quanta, strict=True)))
        self.fair = FairQueue(dict(zip(NAMES, quanta, strict=True)), sparse_boost=True)
        self.number = 0

    @rule(name=st.sampled_from(NAMES), cost=st.integers(1, 7), count=st.integers(1, 4))
    def put(self, name: str, cost: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.fair.put(name, self.number, cost=cost)
            self.oracle.push(name, self.number, cost)

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            try:
                found = self.fair.get(block=False)
            except queue.Empty:
                found = None
            assert found == self.oracle.pop()

    @rule(name=st.sampled_from(NAMES), difference=st.integers(-10, 10))
    def settle(self, name: str, difference: int) -> None:
        self.fair.settle(name, difference)
        self.oracle.settle(name, difference)

    @rule(name=st.sampled_from(NAMES), quantum=st.integers(1, 6))
    def set_quantum(self, name: str, quantum: int) -> None:
        self.fair.set_quantum(name, quantum)
        self.oracle.set_quantum(name, quantum)

    @rule(name=st.sampled_from(NAMES), held=st.booleans())
    def hold(self, name: str, held: bool) -> None:
        self.fair.hold(name, held)
        self.oracle.hold(name, held)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "fair"):
            return
        assert self.fair.qsize() == len(self.oracle)
        for name, stats in self.fair.stats().items():
            slot = self.oracle.slots[name]
            assert (stats.deficit, stats.served, stats.queued) == (slot.deficit, slot.served, len(slot.fifo)), name


TestBoostedQueue = BoostedQueue.TestCase
TestBoostedQueue.settings = settings(max_examples=100)


@settings(max_examples=100)
@given(
    quanta=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    steps=st.lists(st.tuples(st.sampled_from(["x", "y", "get", "get"]), st.integers(1, 6)), max_size=200),
)
def test_a_slot_that_comes_and_goes_is_one_quantum_ahead_at_most(
    quanta: list[int], steps: list[tuple[str, int]]
) -> None:
    """In any stretch of time, against a slot that is always backlogged."""
    of = dict(zip(("old", "x", "y"), quanta, strict=True))
    fair = FairQueue(of, sparse_boost=True)
    fair.put_many("old", range(1000), [1 + number % 5 for number in range(1000)])
    least = {"x": 0.0, "y": 0.0}
    work = Counter[str]()
    for what, number in steps:
        if what != "get":
            fair.put(what, number, cost=number)
            continue
        name, _ = fair.get()
        work[name] = fair.stats()[name].work
        for other, smallest in least.items():
            lead = work[other] / of[other] - work["old"] / of["old"]
            assert lead - smallest <= 2 + 6 / of[other] + 6 / of["old"]
            least[other] = min(smallest, lead)
