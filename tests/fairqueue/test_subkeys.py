"""Two levels: a slot with many subkeys has no more for it, and a flood of one does not delay the others of its slot."""

from __future__ import annotations

import gc
import itertools
import queue
import sys
import threading
import weakref
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.subkeys import ReferenceSubkeys
from support.draining import drained
from support.waiting import eventually

from fairsched import FairQueue, Limit


class User:
    """A subkey of which it can be seen whether it is still there."""


class TestService:
    def test_a_flood_of_one_subkey_does_not_delay_the_others(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        for number in range(1000):
            fair.put("acme", ("flood", number), subkey="flood")
        fair.put("acme", ("ann", 0), subkey="ann")
        fair.put("acme", ("bob", 0), subkey="bob")
        assert [item for _, (item, _) in [fair.get() for _ in range(4)]] == ["flood", "ann", "bob", "flood"]

    def test_a_slot_with_a_thousand_subkeys_has_the_share_of_one_slot(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        for number in range(1000):
            fair.put("sybil", number, subkey=number)
            fair.put("honest", number, subkey="me")
        assert Counter(fair.get()[0] for _ in range(1000)) == {"sybil": 500, "honest": 500}

    def test_weights_of_slots_hold_and_subkeys_share_equally(self) -> None:
        fair = FairQueue({"gold": 3, "free": 1}, subkey_quantum=1)
        for number in range(300):
            for subkey in "abc":
                fair.put("gold", subkey, subkey=subkey)
            fair.put("free", "x", subkey=number)
        served = Counter(fair.get() for _ in range(120))
        assert served == {("gold", "a"): 30, ("gold", "b"): 30, ("gold", "c"): 30, ("free", "x"): 30}

    def test_the_order_within_a_subkey_is_that_of_the_puts(self) -> None:
        fair = FairQueue({"a": 2}, subkey_quantum=1)
        fair.put_many("a", [("x", n) for n in range(50)], subkeys="x")
        fair.put_many(["a"] * 50, [("y", n) for n in range(50)], subkeys=["y"] * 50)
        found = [item for _, item in drained(fair)]
        for subkey in "xy":
            assert [number for one, number in found if one == subkey] == list(range(50))

    def test_shares_are_of_cost(self) -> None:
        fair = FairQueue({"a": 10}, subkey_quantum=10)
        for _ in range(100):
            fair.put("a", "large", cost=10, subkey="large")
            fair.put("a", "small", cost=1, subkey="small")
        served = Counter(fair.get()[1] for _ in range(55))
        assert served == {"large": 5, "small": 50}

    def test_items_without_a_subkey_are_of_one(self) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.put("a", 0)
        fair.put_many("a", [1, 2])
        fair.put("a", 3, subkey="x")
        assert fair.subkeys("a") == {"": 3, "x": 1}
        assert [item for _, item in drained(fair)] == [0, 3, 1, 2]

    def test_none_is_a_subkey_as_any_other(self) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.put("a", 0, subkey=None)
        fair.put_many("a", [1], subkeys=None)
        assert fair.subkeys("a") == {None: 2}
        assert [item for _, item in drained(fair)] == [0, 1]

    def test_equal_subkeys_of_two_slots_are_two(self) -> None:
        fair = FairQueue({"a": 1, "b": 1}, subkey_quantum=1)
        fair.put("a", 1, subkey="x")
        fair.put("b", 2, subkey="x")
        assert (fair.subkeys("a"), fair.subkeys("b"), fair.subkeys("c")) == ({"x": 1}, {"x": 1}, {})
        fair.settle("a", 50, subkey="x")
        fair.put_many("b", [3, 4], subkeys=["x", "y"])
        assert [item for name, item in drained(fair) if name == "b"] == [2, 4, 3]

    @pytest.mark.parametrize("subkeys", [["x", "y", "x"], np.array(["x", "y", "x"])], ids=["list", "array"])
    def test_many_items_with_a_subkey_each(self, subkeys: Any) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.put_many("a", range(3), [1, 1, 1], subkeys=subkeys)
        assert fair.subkeys("a") == {"x": 2, "y": 1}
        batch = fair.get_many(5)
        assert (batch.slots, batch.items) == (["a"] * 3, [0, 1, 2])

    def test_what_a_slot_is_served_does_not_depend_on_looks(self) -> None:
        fair = FairQueue({"a": 1, "b": 1}, subkey_quantum=1)
        for number in range(6):
            fair.put("ab"[number % 2], number, subkey=number % 3)
        look = fair.outlook("a")
        assert (look.item, look.cost, look.stats.queued) == (0, 1, 3)
        assert [item for _, item in drained(fair)] == list(range(6))

    def test_the_outlook_is_of_the_item_that_is_served_next(self) -> None:
        fair = FairQueue({"a": 4}, subkey_quantum=4)
        fair.put("a", "dear", cost=40, subkey="x")
        fair.put("a", "cheap", cost=3, subkey="y")
        first = fair.outlook("a")
        assert fair.get() == ("a", first.item)
        assert fair.outlook("a").item == fair.get()[1]


class TestDebts:
    def test_a_debt_is_paid_by_the_subkey_that_made_it(self) -> None:
        """A user whose item took longer than estimated waits; the others of the slot go on in the slot's turns."""
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.put("a", "slow", subkey="slow")
        assert fair.get() == ("a", "slow")
        fair.settle("a", 3, subkey="slow")
        for _ in range(5):
            fair.put("a", "slow", subkey="slow")
            fair.put("a", "quick", subkey="quick")
        assert [item for _, item in drained(fair)] == ["quick"] * 3 + ["slow", "quick", "slow", "quick"] + ["slow"] * 3

    def test_the_slot_pays_too(self) -> None:
        fair = FairQueue({"a": 1, "b": 1}, subkey_quantum=1)
        fair.settle("a", 3, subkey="x")
        assert fair.stats()["a"].deficit == -3
        for name in "ab":
            fair.put_many(name, [name] * 4, subkeys="y")
        assert [name for name, _ in drained(fair)] == ["b", "b", "b", "a", "b", "a", "a", "a"]

    def test_the_choice_changes_with_a_settlement(self) -> None:
        fair = FairQueue({"a": 100}, subkey_quantum=2)
        fair.put_many("a", ["x", "x", "x"], subkeys="x")
        fair.put_many("a", ["y", "y"], subkeys="y")
        assert fair.get() == ("a", "x")
        assert fair.outlook("a").item == "x"
        fair.settle("a", 1, subkey="x")
        assert fair.outlook("a").item == "y"
        assert [item for _, item in drained(fair)] == ["y", "y", "x", "x"]

    def test_debts_are_forgotten_with_the_slot(self) -> None:
        fair = FairQueue(default_quantum=10, subkey_quantum=1)
        fair.put("other", 0, subkey="")
        fair.settle("a", 5, subkey="x")
        assert set(fair.stats()) == {"a", "other"}
        drained(fair)  # the slot has paid with one turn, its subkey would take five
        fair.put("other", 0)
        drained(fair)
        assert fair.stats() == {}
        fair.put_many("a", ["x", "y"], subkeys=["x", "y"])
        assert [item for _, item in drained(fair)] == ["x", "y"]

    def test_a_refund_to_a_subkey_that_is_not_there_is_void(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        fair.settle("a", -5, subkey="x")
        assert fair.stats() == {}
        fair.put_many("a", "xyxyxy", subkeys=list("xyxyxy"))
        assert [item for _, item in drained(fair)] == list("xyxyxy")

    def test_a_debt_that_is_too_large_changes_nothing(self) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.settle("a", 2**62 - 1, subkey="x")
        with pytest.raises(OverflowError, match="debt of subkey 'x' of slot 'a' past"):
            fair.settle("a", 1, subkey="x")
        assert fair.stats()["a"].deficit == -(2**62) + 1


class TestForgetting:
    def test_idle_subkeys_and_slots_are_forgotten(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        users: weakref.WeakSet[Any] = weakref.WeakSet()
        for _ in range(100):
            users.add(user := User())
            fair.put("a", 1, subkey=user)
        del user
        assert len(users) == 100
        assert len(drained(fair)) == 100
        assert fair.stats() == {}
        assert not users

    def test_subkeys_that_come_once_and_leave_a_debt_are_few_at_any_time(self) -> None:
        """Of a slot that is kept: each item pays, by the turn it takes, what those before it owe."""
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        users: weakref.WeakSet[Any] = weakref.WeakSet()
        most = 0
        for _ in range(2_000):
            users.add(user := User())
            fair.put("a", 1, subkey=user)
            fair.get()
            fair.settle("a", 2, subkey=user)
            most = max(most, len(users))
        assert most <= 5
        assert fair.subkeys("a") == {}

    def test_a_slot_outlives_its_subkeys_if_it_is_kept(self) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        for number in range(20):
            fair.put("a", number, subkey=number)
            assert fair.get() == ("a", number)
            assert fair.subkeys("a") == {}
        assert list(fair.stats()) == ["a"]


class TestBesides:
    def test_what_is_wrong_is_said(self) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(ValueError, match="subkey 'x' needs a subkey_quantum, which this queue does not have"):
            fair.put("a", 1, subkey="x")
        with pytest.raises(ValueError, match="subkey 'x' needs a subkey_quantum"):
            fair.put_many("a", [1, 2], subkeys=["x", "y"])
        with pytest.raises(ValueError, match="subkey 7 needs a subkey_quantum"):
            fair.put_many("a", [1], subkeys=7)
        with pytest.raises(ValueError, match="subkey None needs a subkey_quantum"):
            fair.settle("a", 1, subkey=None)
        fair.put("a", 1, subkey="")
        fair.settle("a", 1, subkey="")
        assert fair.subkeys("a") == {}
        with pytest.raises(ValueError, match="subkey_quantum must be a positive integer, got 0"):
            FairQueue({"a": 1}, subkey_quantum=0)
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        with pytest.raises(ValueError, match="subkeys must have one name for each item: 2 items, 1 subkeys"):
            fair.put_many("a", [1, 2], subkeys=["x"])
        with pytest.raises(KeyError, match="no slot is named 'b'"):
            fair.put("b", 1, subkey="x")
        with pytest.raises(TypeError, match="unhashable"):
            fair.put("a", 1, subkey=[])
        assert fair.qsize() == 0

    def test_a_failed_put_leaves_no_slot_behind(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        with pytest.raises(TypeError, match="unhashable"):
            fair.put_many(["a", "b"], [1, 2], subkeys=["x", []])
        assert fair.stats() == {}

    def test_limits_hold_for_the_slot(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1, limit=Limit(2))
        fair.put_many("a", range(9), subkeys=[0, 1, 2] * 3)
        fair.put("b", 9, subkey=0)
        assert sorted(drained(fair)) == [("a", 0), ("a", 1), ("b", 9)]
        fair.release("a")
        assert drained(fair) == [("a", 2)]
        fair.lift_limits()
        assert [item for _, item in drained(fair)] == [3, 4, 5, 6, 7, 8]

    def test_bands_are_of_slots(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        fair.set_band("first", 0)
        for name in ("last", "first"):
            fair.put_many(name, range(4), subkeys=[0, 1, 0, 1])
        assert drained(fair) == [(name, item) for name in ("first", "last") for item in range(4)]

    def test_a_putter_that_waits_keeps_its_subkey(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1, maxsize=1)
        fair.put("a", 0, subkey="x")
        threads = [
            threading.Thread(target=lambda n=n: fair.put("b", n, timeout=60, subkey="waits"), daemon=True)
            for n in (1, 2)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: set(fair.stats()) == {"a", "b"})
        found = [fair.get(timeout=60) for _ in range(3)]
        for thread in threads:
            thread.join(60)
        assert found[0] == ("a", 0)
        assert sorted(found[1:]) == [("b", 1), ("b", 2)]
        assert fair.stats() == {}
        with pytest.raises(queue.Empty):
            fair.get(block=False)

    def test_a_producer_that_gives_up_waiting_for_room_leaves_nothing(self) -> None:
        fair = FairQueue(default_quantum=1, subkey_quantum=1, maxsize=1)
        fair.put("a", 0, subkey="x")
        with pytest.raises(queue.Full):
            fair.put("b", 1, block=False, subkey="y")
        with pytest.raises(queue.Full):
            fair.put_many("b", [1], timeout=0.001, subkeys="y")
        assert list(fair.stats()) == ["a"]

    def test_a_shutdown_drops_what_is_queued_of_all_subkeys(self) -> None:
        item = object()
        before = sys.getrefcount(item)
        fair = FairQueue({"kept": 1}, default_quantum=1, subkey_quantum=1, limit=Limit(1))
        for name in ("kept", "passing"):
            fair.put_many(name, [item] * 3000, subkeys=list(range(3000)))
            fair.get()
        assert sys.getrefcount(item) == before + 5998
        fair.shutdown(immediate=True)
        assert sys.getrefcount(item) == before
        assert fair.qsize() == 0
        assert fair.subkeys("kept") == {}


class TestReferences:
    def test_counts(self) -> None:
        item, subkey = object(), object()
        before = sys.getrefcount(item), sys.getrefcount(subkey)
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        fair.put_many("a", [item] * 10, subkeys=subkey)
        fair.put("a", item, subkey=subkey)
        assert sys.getrefcount(item) == before[0] + 11
        fair.get()
        batch = fair.get_many(3)
        assert sys.getrefcount(item) == before[0] + 10
        del batch
        del fair
        assert (sys.getrefcount(item), sys.getrefcount(subkey)) == before

    def test_a_cycle_through_items_or_subkeys_is_collected(self) -> None:
        class Node:
            pass

        alive = []
        for through in ("item", "subkey", "slot"):
            node: Any = Node()
            node.queue = FairQueue({"a": 1}, default_quantum=1, subkey_quantum=1)
            node.queue.put("a", node if through == "item" else 1, subkey=node if through == "subkey" else "x")
            node.queue.put(node if through == "slot" else "a", (node.queue,), subkey="y")
            alive.append(weakref.ref(node))
            del node
        gc.collect()
        assert [one() for one in alive] == [None] * 3

    def test_a_live_queue_keeps_its_items(self) -> None:
        fair = FairQueue({"a": 1}, subkey_quantum=1)
        for i in range(1000):
            fair.put("a", [i], subkey=(i % 10,))
        gc.collect()
        assert sorted(item for _, item in fair.get_many(1000)) == [[i] for i in range(1000)]

    def test_finalizers_may_use_the_queue_while_it_is_dropped(self) -> None:
        class Echo:
            def __init__(self, fair: FairQueue, left: int) -> None:
                self.fair, self.left = fair, left

            def __del__(self) -> None:
                if self.left:
                    self.fair.put("a", Echo(self.fair, self.left - 1), subkey=self.left % 3)

        fair = FairQueue(default_quantum=1, subkey_quantum=1)
        for number in range(10):
            fair.put("a", Echo(fair, 3), subkey=number)
        for _ in range(10 * 4):
            fair.get()
        assert fair.qsize() == 0


# Properties -----------------------------------------------------------------------------------------------------------

KEPT, PASSING, USERS = ("a", "b"), ("c", "d"), range(4)
names = st.sampled_from(KEPT + PASSING)
users = st.sampled_from(USERS)
costs = st.one_of(st.integers(1, 5), st.integers(1, 60))


class SubkeysMachine(RuleBasedStateMachine):
    """Any sequence of calls has the answers of two levels of plain deficit round robin."""

    @initialize(
        quanta=st.lists(st.integers(1, 30), min_size=4, max_size=4),
        below=st.integers(1, 30),
        limit=st.one_of(st.none(), st.builds(Limit, st.integers(1, 3))),
    )
    def build(self, quanta: list[int], below: int, limit: Limit | None) -> None:
        self.of = dict(zip(KEPT + PASSING, [*quanta[:2], quanta[2], quanta[2]], strict=True))
        self.fair = FairQueue(
            {name: self.of[name] for name in KEPT}, default_quantum=quanta[2], subkey_quantum=below, limit=limit
        )
        self.oracle = ReferenceSubkeys(self.of, below, limit, PASSING)
        self.limit = limit
        self.token = 0

    @rule(name=names, user=users, cost=costs)
    def put(self, name: str, user: int, cost: int) -> None:
        self.fair.put(name, self.token, cost=cost, subkey=user)
        self.oracle.put(name, user, self.token, cost)
        self.token += 1

    @rule(those=st.lists(st.tuples(names, users, costs), min_size=1, max_size=6), one_name=st.booleans())
    def put_many(self, those: list[tuple[str, int, int]], one_name: bool) -> None:
        if one_name:
            those = [(those[0][0], user, cost) for _, user, cost in those]
        tokens = range(self.token, self.token + len(those))
        self.token += len(those)
        slots: Any = those[0][0] if one_name else [name for name, _, _ in those]
        self.fair.put_many(slots, tokens, [cost for _, _, cost in those], subkeys=[user for _, user, _ in those])
        for (name, user, cost), token in zip(those, tokens, strict=True):
            self.oracle.put(name, user, token, cost)

    @rule(count=st.integers(1, 8))
    def get(self, count: int) -> None:
        for _ in range(count):
            expected = self.oracle.get(0)
            try:
                found = self.fair.get(block=False)
            except queue.Empty:
                found = None
            assert found == expected

    @rule(count=st.integers(1, 8))
    def get_many(self, count: int) -> None:
        expected = [one for one in (self.oracle.get(0) for _ in range(count)) if one is not None]
        try:
            found = list(self.fair.get_many(count, timeout=0))
        except queue.Empty:
            found = []
        assert found == expected

    @rule(name=names, user=users, difference=st.one_of(st.integers(-10, 10), st.integers(-80, 80)))
    def settle(self, name: str, user: int, difference: int) -> None:
        self.fair.settle(name, difference, subkey=user)
        self.oracle.correct(name, user, difference)

    @rule(name=names)
    def release(self, name: str) -> None:
        if self.limit is not None and self.oracle.in_hand[name]:
            self.fair.release(name)
            self.oracle.release(name)

    @rule(name=st.sampled_from(KEPT), quantum=st.integers(1, 30))
    def set_quantum(self, name: str, quantum: int) -> None:
        self.fair.set_quantum(name, quantum)
        self.oracle.set_quantum(name, quantum)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "oracle"):
            return
        assert self.fair.qsize() == self.oracle.qsize()
        stats = self.fair.stats()
        for name in KEPT + PASSING:
            slot = self.oracle.slots[name]
            assert self.fair.subkeys(name) == self.oracle.queued(name)
            assert self.fair.backlog(name) == len(slot.fifo)
            if name in stats:
                assert stats[name].deficit == slot.deficit
            if slot.fifo:
                look = self.fair.outlook(name)
                assert (look.item, look.cost) == slot.fifo[0]
                assert name in stats
        self.oracle.forget()


TestSubkeysMachine = SubkeysMachine.TestCase


def sums(served: list[tuple[Any, int]]) -> list[Counter[Any]]:
    """Return the service of each slot after each message."""
    so_far: Counter[Any] = Counter()
    found = [so_far.copy()]
    for place, cost in served:
        so_far[place] += cost
        found.append(so_far.copy())
    return found


def spread(values: list[float]) -> float:
    """The most by which two differ: over any interval, what was served differs by no more."""
    return max(values) - min(values)


loads = st.dictionaries(st.tuples(names, users), st.lists(costs, min_size=1, max_size=40), min_size=2, max_size=16)


@given(
    load=loads, quanta=st.lists(st.integers(1, 40), min_size=4, max_size=4), below=st.integers(1, 40),
    limited=st.booleans(),
)  # fmt: skip
def test_two_backlogged_subkeys_differ_by_no_more_than_the_bound(
    load: dict[tuple[str, int], list[int]], quanta: list[int], below: int, limited: bool
) -> None:
    """And so do two backlogged slots by theirs, however many subkeys each of them has."""
    of = dict(zip(KEPT + PASSING, quanta, strict=True))
    fair = FairQueue(of, subkey_quantum=below, limit=Limit(1) if limited else None)
    left = Counter({who: len(items) for who, items in load.items()})
    for place in range(40):
        for who, items in load.items():
            if place < len(items):
                fair.put(who[0], (who, items[place]), cost=items[place], subkey=who[1])
    largest = max(itertools.chain(*load.values()))
    served: list[tuple[tuple[str, int], int]] = []
    while all(count > 0 for count in left.values()):  # no subkey has run empty
        name, (who, cost) = fair.get(block=False)
        assert name == who[0]
        served.append((who, cost))
        left[who] -= 1
        if limited:
            fair.release(name)
    history = sums(served)
    for (name, one), (other_name, other) in itertools.combinations(load, 2):
        if name == other_name:
            apart = [float(now[name, one] - now[name, other]) for now in history]
            assert spread(apart) <= below + 2 * largest
    slots = sums([(who[0], cost) for who, cost in served])
    for name, other_name in itertools.combinations({name for name, _ in load}, 2):
        apart = [now[name] / of[name] - now[other_name] / of[other_name] for now in slots]
        bound = 1 + largest / of[name] + largest / of[other_name]
        assert spread(apart) <= bound + (2 if limited else 0) + 1e-9


@given(
    arrivals=st.lists(st.tuples(names, st.integers(0, 50), st.integers(0, 50), st.integers(0, 3)), max_size=120),
    quanta=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    below=st.integers(1, 6),
)
def test_whose_turn_it_is_does_not_depend_on_subkeys_at_all(
    arrivals: list[tuple[str, int, int, int]], quanta: list[int], below: int
) -> None:
    """Of items that cost the same: three queues, with other subkeys or none, serve the same slots in the same order."""
    kept = dict(zip(KEPT, quanta, strict=False))
    plain = FairQueue(kept, default_quantum=quanta[2])
    one = FairQueue(kept, default_quantum=quanta[2], subkey_quantum=below)
    other = FairQueue(kept, default_quantum=quanta[2], subkey_quantum=below)

    def take() -> bool:
        found = []
        for fair in (plain, one, other):
            try:
                found.append(fair.get(block=False)[0])
            except queue.Empty:
                found.append(None)
        assert found[0] == found[1] == found[2]
        return found[0] is not None

    for number, (name, user, another, gets) in enumerate(arrivals):
        plain.put(name, number)
        one.put(name, number, subkey=user)
        other.put(name, number, subkey=another)
        for _ in range(gets):
            take()
    while take():
        pass


@given(load=loads, below=st.integers(1, 40))
@settings(max_examples=50)
def test_every_item_is_got_once_and_in_the_order_of_its_subkey(
    load: dict[tuple[str, int], list[int]], below: int
) -> None:
    fair = FairQueue(default_quantum=7, subkey_quantum=below)
    for who, items in load.items():
        for place, cost in enumerate(items):
            fair.put(who[0], (who, place), cost=cost, subkey=who[1])
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for _, (who, place) in drained(fair):
        found[who].append(place)
    assert found == {who: list(range(len(items))) for who, items in load.items()}
    assert fair.stats() == {}
