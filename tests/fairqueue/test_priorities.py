"""Priorities of items: strict between priorities, fair among the slots that have items of one priority."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.priorities import PRIORITIES, ReferencePriorities
from support.clock import TickingClock
from support.draining import drained
from support.waiting import eventually

from fairsched import FairQueue, Limit, ShutDown


def tenants(**options: Any) -> FairQueue:
    return FairQueue(default_quantum=1, priorities=True, **options)


def filled(fair: FairQueue, *items: tuple[str, int]) -> FairQueue:
    """Put items of a slot and a priority, named by their number."""
    for number, (slot, priority) in enumerate(items):
        fair.put(slot, number, priority=priority)
    return fair


class TestService:
    def test_a_higher_priority_is_served_first_whatever_the_quanta(self) -> None:
        fair = FairQueue({"a": 100, "b": 1}, priorities=True)
        filled(fair, ("a", 0), ("a", 5), ("b", 9), ("a", 9), ("b", 5), ("b", 0))
        assert drained(fair) == [("b", 2), ("a", 3), ("a", 1), ("b", 4), ("a", 0), ("b", 5)]

    def test_each_priority_is_divided_by_the_quanta(self) -> None:
        fair = FairQueue({"a": 2, "b": 1}, priorities=True)
        for priority in (1, 7):
            for slot in "ab":
                fair.put_many(slot, [priority] * 6, priorities=priority)
        served = drained(fair)
        assert [item for _, item in served] == [7] * 12 + [1] * 12
        for part in (served[:9], served[12:21]):
            assert Counter(slot for slot, _ in part) == {"a": 6, "b": 3}

    def test_items_of_one_slot_and_priority_keep_their_order(self) -> None:
        fair = tenants()
        filled(fair, ("a", 3), ("a", 8), ("a", 3), ("a", 8), ("a", 0))
        assert [item for _, item in drained(fair)] == [1, 3, 0, 2, 4]

    def test_a_higher_priority_interrupts_a_turn_which_goes_on(self) -> None:
        fair = FairQueue({"a": 3, "b": 1}, priorities=True)
        fair.put_many("a", range(6))
        fair.put_many("b", range(2))
        served = [fair.get()[0]]
        fair.put("b", "now", priority=1)
        served += [slot for slot, _ in drained(fair)]
        assert served == ["a", "b", "a", "a", "b", "a", "a", "a", "b"]

    def test_what_a_slot_is_served_in_one_priority_costs_it_nothing_in_another(self) -> None:
        """A slot that keeps sending of a high priority has its share of the low one all the same."""
        fair = FairQueue({"a": 1, "b": 1}, priorities=True)
        fair.put_many("a", range(100))
        fair.put_many("b", range(100))
        served: Counter[str] = Counter()
        for _ in range(50):
            fair.put("a", "now", priority=9)
            assert fair.get() == ("a", "now")
            served[fair.get()[0]] += 1
        assert served == {"a": 25, "b": 25}

    def test_items_without_one_have_the_lowest(self) -> None:
        fair = tenants()
        fair.put("a", "none")
        fair.put_many("a", ["one", "two"], priorities=[1, 0])
        assert [item for _, item in drained(fair)] == ["one", "none", "two"]

    def test_many_at_once_by_list_or_array_or_one_for_all(self) -> None:
        fair = tenants()
        fair.put_many(["x", "y", "x"], [1, 2, 3], priorities=[1, 2, 9])
        fair.put_many("y", [4, 5], priorities=np.array([0, 8]))
        fair.put_many("x", [6, 7], priorities=5)
        assert fair.get_many(9).items == [3, 5, 6, 7, 2, 1, 4]

    def test_debts_are_paid_by_turns_of_their_priority(self) -> None:
        fair = FairQueue({"a": 1, "b": 1}, priorities=True)
        fair.settle("a", 3, priority=5)
        for priority in (5, 6):
            for slot in "ab":
                fair.put_many(slot, range(5), priorities=priority)
        slots = [slot for slot, _ in drained(fair)]
        assert slots[:10] == ["a", "b"] * 5
        assert slots[10:] == ["b", "b", "b", "a", "b", "a", "b", "a", "a", "a"]

    def test_every_getter_is_woken_whatever_the_priorities(self) -> None:
        fair = tenants()
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(fair.get(timeout=60)[1])) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(fair.waiting()) == 4)
        fair.put_many(["a", "b", "a", "c"], range(4), priorities=[0, 9, 4, 0])
        for thread in threads:
            thread.join(60)
        assert sorted(found) == [0, 1, 2, 3]


class TestIdleSlots:
    def test_an_idle_slot_is_forgotten_with_its_branches(self) -> None:
        fair = tenants()
        for number in range(1000):
            for priority in range(10):
                fair.put(number, priority, priority=priority)
        assert len(fair.stats()) == 1000
        assert len(drained(fair)) == 10_000
        assert fair.stats() == {}

    def test_places_of_branches_are_used_again(self) -> None:
        """A name is never that of a branch, whose place a slot takes over."""
        fair = tenants()
        for number in range(100):
            fair.put_many([number, number + 1], ["x", "y"], priorities=[number % 10, 3])
            assert set(fair.stats()) == {number, number + 1}
            drained(fair)
        assert fair.stats() == {}

    def test_a_slot_named_none_is_no_branch(self) -> None:
        fair = tenants(limit=Limit(5))
        fair.put(None, 1, priority=4)
        assert (fair.backlog(None), fair.stats()[None].queued, fair.limit_stats()[None].concurrency) == (1, 1, 5)

    def test_a_debt_keeps_a_slot_until_it_is_paid(self) -> None:
        fair = tenants()
        fair.put("a", 1, priority=2)
        fair.put_many("b", range(5), priorities=2)
        assert fair.get() == ("a", 1)
        fair.settle("a", 2, priority=2)
        assert fair.stats()["a"].deficit == -2
        drained(fair)
        assert set(fair.stats()) <= {"a"}
        fair.put("b", 1, priority=2)
        drained(fair)
        fair.put_many("b", range(9), priorities=2)
        drained(fair)
        assert fair.stats().get("a") is None

    def test_figures_of_a_kept_slot_are_those_of_all_priorities(self) -> None:
        fair = FairQueue({"a": 2}, priorities=True)
        for priority in (0, 3, 9):
            fair.put("a", priority, cost=5, priority=priority)
        drained(fair)
        assert fair.stats()["a"][2:5] == (0, 3, 15)
        fair.settle("a", -4, priority=3)  # the branch was forgotten with all its work
        fair.settle("a", 7, priority=9)
        assert fair.stats()["a"].work == 18

    def test_a_held_slot_keeps_its_deficits_until_it_is_released(self) -> None:
        fair = FairQueue({"a": 5}, priorities=True, anticipation=60)
        fair.put("a", 1, priority=1)
        fair.put("a", 2, priority=8)
        assert fair.hold("a", True) is False
        assert len(drained(fair)) == 2
        assert fair.stats()["a"][1] == 8
        assert fair.stats()["a"].held
        fair.put("a", 3, priority=8)
        assert fair.get(block=False) == ("a", 3)  # none is waited for
        fair.hold("a", False)
        assert fair.stats()["a"][1:3] == (0, 0)

    def test_a_retired_slot_is_forgotten_once_its_items_are_served(self) -> None:
        fair = FairQueue({"a": 1}, priorities=True)
        filled(fair, ("a", 1), ("a", 5))
        fair.settle("a", 9, priority=7)
        fair.hold("a", True)
        fair.retire("a")
        assert [item for _, item in drained(fair)] == [1, 0]
        assert fair.stats() == {}
        fair.add_slot("a", 3)
        assert fair.stats()["a"].quantum == 3


class TestLimits:
    def test_a_limit_holds_over_all_priorities(self) -> None:
        fair = tenants(limit=Limit(2))
        filled(fair, ("a", 9), ("a", 5), ("a", 0), ("b", 3))
        assert drained(fair) == [("a", 0), ("a", 1), ("b", 3)]
        fair.put("a", "now", priority=9)
        assert drained(fair) == []
        assert fair.limit_stats()["a"].withheld == 2
        fair.release("a")
        assert drained(fair) == [("a", "now")]
        fair.release("a")
        assert drained(fair) == [("a", 2)]

    def test_a_rate_holds_over_all_priorities(self) -> None:
        clock = TickingClock()
        fair = tenants(limit=Limit(rate=1), clock=clock)
        filled(fair, ("a", 2), ("a", 8))
        assert drained(fair) == [("a", 1)]
        assert fair.outlook("a").retry_after == pytest.approx(1)
        clock.ticks += 1000
        assert drained(fair) == [("a", 0)]

    def test_an_interrupted_turn_of_each_priority_goes_on(self) -> None:
        fair = FairQueue({"a": 4, "b": 1}, priorities=True)
        fair.set_limit("a", Limit(1))
        fair.put_many("a", ["low"] * 4)
        fair.put_many("b", ["low"] * 4)
        assert fair.get() == ("a", "low")
        fair.put_many("a", ["high"] * 2, priorities=6)
        assert fair.get() == ("b", "low")
        served = []
        for _ in range(5):
            fair.release("a")
            served.append(fair.get())
        assert served == [("a", "high")] * 2 + [("a", "low")] * 3
        assert drained(fair) == [("b", "low")] * 3

    def test_a_debt_at_the_limit_is_not_forgotten(self) -> None:
        fair = FairQueue({"a": 1, "b": 1}, priorities=True)
        fair.set_limit("a", Limit(1))
        fair.put("a", 1, priority=4)
        assert fair.get() == ("a", 1)
        fair.settle("a", 3, priority=4)
        assert fair.stats()["a"].deficit == -3
        fair.release("a")
        fair.put_many("b", range(9), priorities=4)
        fair.put("a", 2, priority=4)
        assert [slot for slot, _ in drained(fair)][:4] == ["b", "b", "b", "a"]

    def test_lifted_limits_let_all_go(self) -> None:
        fair = tenants(limit=Limit(1))
        filled(fair, *[("a", priority) for priority in range(10)])
        fair.get()
        fair.lift_limits()
        assert len(drained(fair)) == 9

    def test_a_limit_that_comes_later_holds_for_all_that_is_queued(self) -> None:
        fair = tenants()
        filled(fair, *[("a", priority) for priority in range(10)])
        fair.set_limit("a", Limit(3))
        assert [item for _, item in drained(fair)] == [9, 8, 7]
        fair.set_limit("a", None)
        assert len(drained(fair)) == 7


class TestWithdrawal:
    def test_items_are_taken_out_of_any_priority(self) -> None:
        fair = tenants()
        items = [object() for _ in range(10)]
        for priority, item in enumerate(items):
            fair.put("a", item, priority=priority)
        assert {id(item) for item in fair.items()} == {id(item) for item in items}
        assert fair.withdraw(items[:9]) == items[:9]
        assert (fair.backlog("a"), fair.backlog("a", 9), fair.backlog("a", 8), fair.qsize()) == (1, 1, 0, 1)
        assert fair.withdraw(items) == items[9:]
        assert fair.stats() == {}

    def test_at_a_limit_too(self) -> None:
        fair = tenants(limit=Limit(1))
        filled(fair, ("a", 1), ("a", 2), ("a", 3))
        fair.get()
        assert sorted(fair.withdraw(fair.items())) == [0, 1]
        assert fair.qsize() == 0
        fair.release("a")
        assert fair.stats() == {}

    def test_an_immediate_shutdown_drops_everything(self) -> None:
        fair = tenants(limit=Limit(1))
        filled(fair, ("a", 1), ("a", 2), ("b", 3), ("b", 3))
        fair.get()
        fair.shutdown(immediate=True)
        assert fair.qsize() == 0
        with pytest.raises(ShutDown):
            fair.get()
        assert fair.backlog("a") == fair.backlog("b") == 0
        fair.release("b")  # the higher of the priorities that were served
        assert fair.stats() == {}


class TestOutlook:
    def test_it_says_what_is_served_before_the_next_item(self) -> None:
        fair = tenants()
        filled(fair, ("a", 3), ("b", 9), ("b", 3), ("c", 9), ("c", 9), ("d", 0), ("a", 0))
        look = fair.outlook("a")
        assert (look.item, look.priority, look.band, look.above, look.before, look.others) == (0, 3, None, 3, 2, 3)
        look = fair.outlook("d")
        assert (look.item, look.priority, look.above, look.before, look.others) == (5, 0, 5, 3, 3)
        look = fair.outlook("b")
        assert (look.item, look.priority, look.above, look.before, look.others) == (1, 9, 0, 0, 3)
        assert look.stats.queued == 2

    def test_a_slot_before_it_in_the_round_counts_once(self) -> None:
        fair = tenants()
        filled(fair, ("a", 2), ("b", 2), ("b", 1), ("a", 7))
        look = fair.outlook("b")
        assert (look.before, look.others, look.turns) == (1, 1, 0)
        assert drained(fair) == [("a", 3), ("a", 0), ("b", 1), ("b", 2)]

    def test_a_slot_at_its_limit_has_no_place(self) -> None:
        fair = tenants(limit=Limit(1))
        filled(fair, ("a", 2), ("a", 3))
        fair.get()
        look = fair.outlook("a")
        assert (look.item, look.before, look.in_hand, look.concurrency, look.priority) == (0, None, 1, 1, None)


class TestArguments:
    @pytest.mark.parametrize("priority", [-1, 10, 2.0, True, None, "3", 10**30])
    def test_what_is_no_priority_is_refused(self, priority: Any) -> None:
        fair = tenants()
        with pytest.raises((ValueError, OverflowError), match="priority of an item must be an integer from 0 to 9"):
            fair.put("a", 1, priority=priority)
        with pytest.raises((ValueError, OverflowError), match="priority of an item must be an integer from 0 to 9"):
            fair.put_many("a", [1, 2], priorities=[1, priority])
        assert (fair.qsize(), fair.stats()) == (0, {})

    def test_there_must_be_one_for_each_item(self) -> None:
        with pytest.raises(ValueError, match="priorities must have one name for each item: 2 items, 1 priorities"):
            tenants().put_many("a", [1, 2], priorities=[1])

    def test_a_queue_without_them_refuses_all_but_zero(self) -> None:
        fair = FairQueue(default_quantum=1)
        with pytest.raises(ValueError, match="priority 3 of an item needs priorities=True"):
            fair.put("a", 1, priority=3)
        with pytest.raises(ValueError, match="priority 3 of an item needs priorities=True"):
            fair.put_many("a", [1], priorities=[3])
        fair.put("a", 1, priority=np.int64(0))
        fair.put_many("a", [2, 3], priorities=[0, 0])
        assert fair.get_many(9).items == [1, 2, 3]

    def test_what_does_not_go_together(self) -> None:
        with pytest.raises(ValueError, match="priorities cannot be combined with subkey_quantum=1"):
            FairQueue(default_quantum=1, priorities=True, subkey_quantum=1)
        with pytest.raises(ValueError, match="subkey 'x' needs a subkey_quantum"):
            tenants().put("a", 1, subkey="x", priority=1)
        with pytest.raises(ValueError, match="a queue with priorities has a band for each"):
            tenants().set_band("a", 1)
        with pytest.raises(
            ValueError, match="a charge to slot 'a' needs the priority of the items, from 0 to 9, got None"
        ):
            tenants().charge("a", 1, 1)
        with pytest.raises(ValueError, match="priority 3 of an item needs priorities=True"):
            FairQueue({"a": 1}).charge("a", 1, 1, 3)


NAMES = ("a", "b", "c")
SOME = st.sampled_from([0, 1, 4, 9])


class PrioritisedQueue(RuleBasedStateMachine):
    """The order of service, the accounts and the sizes are those of the oracle, whatever is done."""

    @initialize(quanta=st.lists(st.integers(1, 5), min_size=3, max_size=3), kept=st.booleans())
    def begin(self, quanta: list[int], kept: bool) -> None:
        given_quanta = dict(zip(NAMES, quanta if kept else [1] * 3, strict=True))
        self.kept = kept
        self.oracle = ReferencePriorities(given_quanta)
        self.fair = FairQueue(given_quanta if kept else None, default_quantum=1, priorities=True)
        self.number = 0

    @rule(name=st.sampled_from(NAMES), cost=st.integers(1, 7), priority=SOME, count=st.integers(1, 4))
    def put(self, name: str, cost: int, priority: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.fair.put(name, self.number, cost=cost, priority=priority)
            self.oracle.push(name, self.number, cost, priority)

    @rule(puts=st.lists(st.tuples(st.sampled_from(NAMES), SOME), max_size=6))
    def put_many(self, puts: list[tuple[str, int]]) -> None:
        numbers = [self.number + i for i in range(len(puts))]
        self.fair.put_many([name for name, _ in puts], numbers, priorities=[priority for _, priority in puts])
        for name, priority in puts:
            self.oracle.push(name, self.number, 1, priority)
            self.number += 1

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            try:
                found = self.fair.get(block=False)
            except queue.Empty:
                found = None
            assert found == self.oracle.pop()

    @rule(name=st.sampled_from(NAMES), difference=st.integers(-10, 10), priority=SOME)
    def settle(self, name: str, difference: int, priority: int) -> None:
        self.fair.settle(name, difference, priority=priority)
        self.oracle.settle(name, difference, priority)

    @rule(name=st.sampled_from(NAMES), quantum=st.integers(1, 6))
    def set_quantum(self, name: str, quantum: int) -> None:
        if self.kept:
            self.fair.set_quantum(name, quantum)
            self.oracle.set_quantum(name, quantum)

    @rule(name=st.sampled_from(NAMES), held=st.booleans())
    def hold(self, name: str, held: bool) -> None:
        if self.kept:
            self.fair.hold(name, held)
            self.oracle.hold(name, held)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "fair"):
            return
        stats = self.fair.stats()
        for name in NAMES:
            queued = self.oracle.queued(name)
            assert [self.fair.backlog(name, priority) for priority in PRIORITIES] == queued
            assert self.fair.backlog(name) == sum(queued)
            if name in stats:
                assert (stats[name].deficit, stats[name].queued) == (self.oracle.deficit(name), sum(queued)), name
            else:
                assert not self.kept
                assert sum(queued) == 0
                assert self.oracle.deficit(name) == 0
            if self.kept:
                assert stats[name].served == self.oracle.served(name)[0]


TestPrioritisedQueue = PrioritisedQueue.TestCase
TestPrioritisedQueue.settings = settings(max_examples=100)


class Limited:
    """A queue whose items have priorities and whose slots have limits, and what may be served at each moment."""

    def __init__(self, limit: Limit, boost: bool) -> None:
        self.clock = TickingClock()
        self.limit = limit
        self.fair = FairQueue(default_quantum=2, clock=self.clock, limit=limit, sparse_boost=boost, priorities=True)
        self.queued: dict[tuple[int, int], deque[int]] = {(s, p): deque() for s in range(3) for p in PRIORITIES}
        self.in_hand: Counter[int] = Counter()
        self.due = [0.0] * 3
        self.number = 0

    def possible(self) -> list[tuple[int, int]]:
        """Slots and priorities of which something is queued and that are not at their limit."""
        most = self.limit.concurrency or 10**9
        return [
            (slot, priority)
            for (slot, priority), items in self.queued.items()
            if items and self.in_hand[slot] < most and self.clock() >= self.due[slot]
        ]

    def put(self, slot: int, count: int, priority: int) -> None:
        for _ in range(count):
            self.number += 1
            self.fair.put(slot, (self.number, priority), priority=priority)
            self.queued[slot, priority].append(self.number)

    def wait(self, _slot: int, count: int, _priority: int) -> None:
        self.clock.ticks += count

    def release(self, slot: int, _count: int, _priority: int) -> None:
        if self.limit.concurrency and self.in_hand[slot]:
            self.fair.release(slot)
            self.in_hand[slot] -= 1

    def withdraw(self, slot: int, _count: int, priority: int) -> None:
        found = [item for item in self.fair.items() if item[0] in self.queued[slot, priority]]
        assert len(self.fair.withdraw(found)) == len(self.queued[slot, priority])
        self.queued[slot, priority].clear()

    def get(self, _slot: int, count: int, _priority: int) -> None:
        try:
            batch = self.fair.get_many(count, timeout=0)
        except queue.Empty:
            assert not self.possible()
            return
        for slot, (number, priority) in batch:
            possible = self.possible()
            assert (slot, priority) in possible
            assert priority == max(other for _, other in possible)
            assert self.queued[slot, priority].popleft() == number
            self.in_hand[slot] += 1
            self.due[slot] = self.clock() + self.limit.interval_ns / 1e9
        assert len(batch) == count or not self.possible()

    def size(self) -> int:
        return sum(map(len, self.queued.values()))


@settings(max_examples=100)
@given(
    boost=st.booleans(),
    limit=st.sampled_from([Limit(1), Limit(3), Limit(rate=1), Limit(rate=100), Limit(2, rate=4)]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "get", "get", "release", "wait", "withdraw"]),
            st.integers(0, 2),
            st.integers(1, 7),
            st.sampled_from([0, 1, 8, 9]),
        ),
        max_size=150,
    ),
)
def test_each_item_is_of_the_highest_priority_that_may_be_served(
    limit: Limit, boost: bool, steps: list[tuple[str, int, int, int]]
) -> None:
    """With limits over all priorities of a slot; items of one priority keep their order, and none is lost."""
    world = Limited(limit, boost)
    for what, slot, count, priority in steps:
        getattr(world, what)(slot, count, priority)
        assert world.fair.qsize() == world.size()
    world.fair.lift_limits()
    assert len(drained(world.fair)) == world.size()


@given(
    quanta=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    high=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=300, max_size=300),
)
def test_the_bound_within_a_priority_holds_though_others_interrupt_it(
    quanta: list[int], high: list[tuple[int, int]]
) -> None:
    """For two that are always backlogged, what they were served differs by no more than without other priorities."""
    fair = FairQueue(dict(enumerate(quanta)), priorities=True)
    for slot in range(len(quanta)):
        fair.put_many(slot, ["low"] * 1000)
    served: Counter[Any] = Counter()
    for slot, count in high:
        fair.put_many(slot % len(quanta), ["high"] * count, priorities=5)
        served.update(name for name, item in fair.get_many(count + 2) if item == "low")
        for one in range(len(quanta)):
            for other in range(len(quanta)):
                lead = served[one] / quanta[one] - served[other] / quanta[other]
                assert lead <= 1 + 1 / quanta[one] + 1 / quanta[other]


class Cyclic:
    """An item that refers to its queue."""

    def __init__(self, fair: FairQueue) -> None:
        self.fair = fair


def test_a_queue_in_a_reference_cycle_is_collected() -> None:
    gone: list[int] = []
    fair = tenants()
    for priority in range(10):
        item = Cyclic(fair)
        weakref.finalize(item, gone.append, priority)
        fair.put("a", item, priority=priority)
    del item, fair
    gc.collect()
    assert sorted(gone) == list(range(10))
