"""Items that are taken out of the middle of a fair queue, and slots that come and go."""

from __future__ import annotations

import gc
import queue
import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.draining import drained

from fairsched import FairQueue, Limit
from fairsched.scheduling.bands import DEFAULT_BAND

SLOTS, SUBKEYS = 4, 3


class TestWithdraw:
    def test_what_is_taken_out_is_returned_in_the_order_given_and_the_rest_stays(self) -> None:
        fair = FairQueue({"a": 2, "b": 1})
        items = [[name, number] for number in range(4) for name in "ab"]
        fair.put_many([item[0] for item in items], items)
        gone = [items[5], items[0], items[2]]
        assert [item is one for item, one in zip(fair.withdraw(gone), gone, strict=True)] == [True] * 3
        assert [item for _, item in drained(fair)] == [["a", 2], ["a", 3], ["b", 0], ["b", 1], ["b", 3]]

    def test_items_are_known_by_identity(self) -> None:
        fair = FairQueue({"a": 1})
        one, equal = ["x"], ["x"]
        fair.put("a", one)
        assert fair.withdraw([equal]) == []
        assert fair.qsize() == 1

    def test_an_object_leaves_as_often_as_it_is_given(self) -> None:
        fair = FairQueue({"a": 1, "b": 1})
        one = object()
        for name in "aab":
            fair.put(name, one)
        assert fair.withdraw([one, one]) == [one, one]
        assert fair.qsize() == 1
        assert fair.withdraw([one, one]) == [one]
        assert fair.empty()

    def test_the_references_of_the_queue_end(self) -> None:
        fair = FairQueue({"a": 1})
        one = object()
        before = sys.getrefcount(one)
        fair.put("a", one)
        fair.put("a", one)
        found = fair.withdraw([one, one, one])
        assert len(found) == 2
        del found
        assert sys.getrefcount(one) == before

    def test_nothing_to_take_out(self) -> None:
        fair = FairQueue({"a": 1})
        assert fair.withdraw([]) == fair.withdraw([object()]) == fair.items() == []

    def test_room_is_handed_over(self) -> None:
        fair = FairQueue({"a": 1}, maxsize=1)
        one = object()
        fair.put("a", one)
        fair.withdraw([one])
        fair.put_nowait("a", one)

    def test_the_shares_of_the_others_stand(self) -> None:
        fair = FairQueue({"a": 3, "b": 1, "c": 1})
        for name in "abc":
            fair.put_many(name, [(name, number) for number in range(30)])
        for _ in range(5):
            fair.get()
        fair.withdraw([item for item in fair.items() if item[0] == "c"])
        served = [fair.get()[0] for _ in range(24)]
        assert (served.count("a"), served.count("b")) == (18, 6)


class TestSlots:
    def test_a_slot_that_is_retired_is_served_and_then_forgotten(self) -> None:
        fair = FairQueue({"a": 1, "b": 1})
        fair.put("a", 1)
        fair.retire("a")
        assert "a" in fair.stats()
        assert fair.get() == ("a", 1)
        assert "a" not in fair.stats()
        with pytest.raises(KeyError, match="'a'"):
            fair.put("a", 2)

    def test_an_idle_slot_is_forgotten_at_once_with_its_hold_and_its_debt(self) -> None:
        fair = FairQueue({"a": 1, "b": 1, "c": 1})
        fair.hold("a", True)
        fair.settle("b", 100)
        fair.retire("a")
        fair.retire("b")
        assert list(fair.stats()) == ["c"]

    def test_a_slot_with_items_in_hand_stays_until_they_are_released(self) -> None:
        fair = FairQueue({"a": 1})
        fair.set_limit("a", Limit(concurrency=1))
        fair.put_many("a", [1, 2])
        fair.get()
        fair.withdraw(fair.items())
        fair.retire("a")
        assert list(fair.stats()) == ["a"]
        fair.release("a")
        assert fair.stats() == {}

    def test_a_new_slot_has_the_usual_limit_and_band(self) -> None:
        fair = FairQueue({"a": 1}, limit=Limit(concurrency=1))
        fair.set_band("a", 0)
        fair.add_slot("b", 2)
        fair.put_many("b", [1, 2])
        assert fair.get() == ("b", 1)
        assert fair.outlook("b").stats.at_limit
        assert (fair.outlook("b").band, fair.stats()["b"].quantum) == (DEFAULT_BAND, 2)

    def test_a_slot_that_leaves_may_come_back(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put("a", 1)
        fair.retire("a")
        fair.add_slot("a", 3)
        assert fair.get() == ("a", 1)
        assert fair.stats()["a"].quantum == 3

    def test_errors_name_the_slot(self) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(ValueError, match="slot named 'a' already"):
            fair.add_slot("a", 1)
        with pytest.raises(KeyError, match="'b'"):
            fair.retire("b")
        with pytest.raises(ValueError, match="quantum of slot 'b'"):
            fair.add_slot("b", 0)
        assert list(fair.stats()) == ["a"]

    def test_slots_that_come_and_go_take_no_memory(self) -> None:
        fair = FairQueue({"a": 1})
        sizes = []
        for round_ in range(3):
            for number in range(2000):
                name = f"{round_}-{number}"
                fair.add_slot(name, 1)
                fair.put(name, number)
                fair.withdraw(fair.items())
                fair.retire(name)
            gc.collect()
            sizes.append(len(gc.get_objects()))
        assert list(fair.stats()) == ["a"]
        assert sizes[2] - sizes[1] < 100


class Item:
    """An item that knows where it was put."""

    def __init__(self, slot: int, subkey: Any) -> None:
        self.slot = slot
        self.subkey = subkey


class Withdrawal(RuleBasedStateMachine):
    """Every slot and subkey is first in, first out, whatever is taken out of its middle."""

    @initialize(
        subkeys=st.booleans(), boost=st.booleans(), limited=st.booleans(),
        bands=st.none() | st.lists(st.integers(0, 7), min_size=SLOTS, max_size=SLOTS),
    )  # fmt: skip
    def begin(self, subkeys: bool, boost: bool, limited: bool, bands: list[int] | None) -> None:
        self.subkeys = subkeys
        self.fair = FairQueue(
            default_quantum=3, sparse_boost=boost, subkey_quantum=1 if subkeys else None,
            limit=Limit(concurrency=2) if limited else None,
        )  # fmt: skip
        for slot, band in enumerate(bands or ()):
            self.fair.set_band(slot, band)
        self.queued: list[Item] = []
        self.taken: list[Item] = []

    @rule(slot=st.integers(0, SLOTS - 1), subkey=st.integers(0, SUBKEYS - 1), cost=st.integers(1, 9))
    def put(self, slot: int, subkey: int, cost: int) -> None:
        item = Item(slot, subkey if self.subkeys else "")
        self.fair.put(slot, item, cost=cost, subkey=item.subkey)
        self.queued.append(item)

    @rule()
    def get(self) -> None:
        try:
            _, item = self.fair.get_nowait()
        except queue.Empty:
            return
        self._took(item)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.queued), unique_by=id)) if self.queued else []
        others = [Item(0, ""), *self.taken[:1]]
        assert self.fair.withdraw([*others, *chosen]) == chosen
        self.queued = [item for item in self.queued if item not in chosen]

    @rule(slot=st.integers(0, SLOTS - 1))
    def retire(self, slot: int) -> None:
        if slot in self.fair.stats():
            self.fair.retire(slot)

    @rule(slot=st.integers(0, SLOTS - 1), difference=st.integers(-5, 20))
    def settle(self, slot: int, difference: int) -> None:
        self.fair.settle(slot, difference)

    @invariant()
    def is_the_model(self) -> None:
        assert self.fair.qsize() == len(self.queued)
        assert set(map(id, self.fair.items())) == set(map(id, self.queued))

    def _took(self, item: Item) -> None:
        first = next(one for one in self.queued if (one.slot, one.subkey) == (item.slot, item.subkey))
        assert first is item
        self.queued.remove(item)
        self.taken.append(item)

    def teardown(self) -> None:
        if hasattr(self, "fair"):
            self.fair.lift_limits()
            for _, item in drained(self.fair):
                self._took(item)
            assert not self.queued


TestWithdrawal = Withdrawal.TestCase
TestWithdrawal.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
