"""Strict bands: which slots are served first, the others' service, and that within a band nothing changes."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.bands import ReferenceBands
from support.clock import TICK, TICK_NS, TickingClock
from support.draining import drained
from support.waiting import eventually

from fairsched import ConfigurationError, FairQueue, Limit
from fairsched.scheduling.bands import DEFAULT_BAND, LAST_BAND


class TestService:
    def test_a_band_is_served_before_those_after_it_whatever_the_quanta(self) -> None:
        fair = FairQueue({"gold": 1, "free": 100, "bulk": 100})
        fair.set_band("gold", 0)
        fair.set_band("bulk", LAST_BAND)
        for name in ("bulk", "free", "gold"):
            fair.put_many(name, range(3))
        assert [name for name, _ in drained(fair)] == ["gold"] * 3 + ["free"] * 3 + ["bulk"] * 3

    def test_what_comes_for_a_band_before_is_next_and_the_interrupted_turn_goes_on(self) -> None:
        fair = FairQueue({"gold": 1, "a": 3, "b": 1})
        fair.set_band("gold", 0)
        fair.put_many("a", range(6))
        fair.put_many("b", range(2))
        served = [fair.get()[0]]
        fair.put("gold", 0)
        served += [name for name, _ in drained(fair)]
        assert served == ["a", "gold", "a", "a", "b", "a", "a", "a", "b"]

    def test_many_items_are_got_across_bands(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.set_band("gold", 0)
        fair.put_many("free", range(3))
        fair.put_many("gold", range(2))
        assert fair.get_many(4).slots == ["gold", "gold", "free", "free"]
        assert fair.qsize() == 1

    def test_a_backlog_moves_with_its_slot(self) -> None:
        fair = FairQueue({"a": 1, "b": 1, "c": 1})
        for name in "abc":
            fair.put_many(name, range(4))
        assert [fair.get()[0] for _ in range(3)] == ["a", "b", "c"]
        fair.set_band("c", 1)
        assert [fair.get()[0] for _ in range(2)] == ["c", "c"]
        fair.set_band("c", DEFAULT_BAND)
        fair.set_band("a", LAST_BAND)
        assert [name for name, _ in drained(fair)] == ["b", "c", "b", "b", "a", "a", "a"]

    def test_unknown_slots_are_of_the_default_band_and_one_with_a_band_is_not_forgotten(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.set_band("gold", 0)
        fair.put("a", 1)
        assert fair.outlook("a").band == DEFAULT_BAND
        assert fair.get() == ("a", 1)
        assert list(fair.stats()) == ["gold"]

    def test_an_index_that_is_used_again_has_the_default_band(self) -> None:
        """A band is that of a slot, not of the place where it was kept."""
        fair = FairQueue(default_quantum=1)
        fair.set_band("gold", 0)
        for name in range(20):
            fair.put(name, 1)
            assert fair.outlook(name).band == DEFAULT_BAND
            fair.get()

    def test_room_and_size_count_all_bands(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1}, maxsize=2)
        fair.set_band("gold", 0)
        fair.put("free", 1)
        fair.put("gold", 1)
        with pytest.raises(queue.Full):
            fair.put("gold", 2, block=False)
        assert fair.qsize() == 2
        fair.shutdown(immediate=True)
        assert fair.qsize() == 0

    def test_every_getter_that_waits_is_woken_for_what_is_in_other_bands_too(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1})
        fair.set_band("gold", 0)
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(fair.get(timeout=60))) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(fair.waiting()) == 4)
        fair.put_many(["free", "gold", "free", "gold"], range(4))
        for thread in threads:
            thread.join(60)
        assert Counter(name for name, _ in found) == {"gold": 2, "free": 2}

    def test_debts_are_paid_within_the_band(self) -> None:
        fair = FairQueue({"gold": 1, "silver": 1, "free": 1})
        for name in ("gold", "silver"):
            fair.set_band(name, 0)
        fair.settle("gold", 3)
        for name in ("free", "gold", "silver"):
            fair.put_many(name, range(5))
        assert [name for name, _ in drained(fair)] == [
            *["silver"] * 3, "gold", "silver", "gold", "silver", *["gold"] * 3, *["free"] * 5,
        ]  # fmt: skip

    def test_a_wait_for_a_slot_that_another_band_interrupts_lasts_no_longer_for_it_nor_shorter(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 1, "a": 2, "b": 1}, clock=clock, anticipation=8 * TICK)
        fair.set_band("gold", 0)
        fair.put("a", 0)
        fair.put_many("b", range(3))
        fair.hold("a", True)
        assert drained(fair) == [("a", 0)]  # from now on it is waited for
        clock.ticks = 5
        fair.put("gold", 0)
        assert drained(fair) == [("gold", 0)]
        clock.ticks = 7
        assert not drained(fair)
        clock.ticks = 8
        assert drained(fair) == [("b", number) for number in range(3)]

    @pytest.mark.parametrize("charge", [lambda fair: fair.settle("gold", 3), lambda fair: fair.charge("gold", 3, 3)])
    def test_a_debt_of_an_empty_slot_is_one_of_its_own_band(self, charge: Any) -> None:
        fair = FairQueue({"gold": 1, "free": 1})
        fair.set_band("gold", 0)
        fair.hold("gold", True)  # only a slot that wants something is charged for what was served elsewhere
        fair.put_many("free", range(3))
        charge(fair)
        assert fair.get() == ("free", 0)
        fair.put("gold", 0)
        assert [name for name, _ in drained(fair)] == ["gold", "free", "free"]
        assert fair.stats()["gold"].deficit == 0


class TestStarvation:
    def test_a_band_after_one_that_always_has_something_gets_nothing(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1000})
        fair.set_band("gold", 0)
        fair.put_many("free", range(10))
        for number in range(1000):
            fair.put("gold", number)
            assert fair.get() == ("gold", number)

    def test_a_concurrency_leaves_the_other_workers_to_the_bands_after(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1})
        fair.set_band("gold", 0)
        fair.set_limit("gold", Limit(2))
        fair.put_many("gold", range(100))
        fair.put_many("free", range(100))
        assert [fair.get()[0] for _ in range(5)] == ["gold", "gold", "free", "free", "free"]
        fair.release("gold")
        assert [fair.get()[0] for _ in range(2)] == ["gold", "free"]

    @given(rate=st.sampled_from([1, 2, 8]), burst=st.integers(1, 5), waits=st.lists(st.integers(0, 9), max_size=40))
    def test_a_rate_bounds_what_is_served_before_the_bands_after(self, rate: int, burst: int, waits: list[int]) -> None:
        """In t seconds at most burst + rate * t, and all else that is asked for is theirs."""
        clock = TickingClock()
        fair = FairQueue({"gold": 1, "free": 1}, clock=clock)
        fair.set_band("gold", 0)
        fair.set_limit("gold", Limit(rate=rate, burst=burst))
        fair.put_many("gold", range(1000))
        fair.put_many("free", range(10_000))
        served: Counter[str] = Counter()
        for wait in waits:
            clock.ticks += wait
            served.update(fair.get_many(20).slots)
            assert served["gold"] <= burst + rate * clock()
        assert served["free"] >= 20 * len(waits) - burst - rate * clock()


class TestOutlook:
    def test_it_says_what_is_served_before(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1, "other": 1})
        fair.put("free", 1)
        look = fair.outlook("free")
        assert (look.band, look.above) == (None, None)
        fair.set_band("gold", 0)
        fair.put("other", 1)
        fair.put_many("gold", range(7))
        look = fair.outlook("free")
        assert (look.band, look.above, look.before, look.others) == (DEFAULT_BAND, 7, 1, 2)
        look = fair.outlook("other")
        assert (look.band, look.above, look.before, look.others) == (DEFAULT_BAND, 7, 2, 2)
        look = fair.outlook("gold")
        assert (look.band, look.above, look.before, look.others) == (0, 0, 0, 2)
        assert [name for name, _ in drained(fair)] == ["gold"] * 7 + ["free", "other"]


class TestArguments:
    @pytest.mark.parametrize("band", [-1, LAST_BAND + 1, 1.0, True, None, "0"])
    def test_what_is_no_band_is_refused(self, band: Any) -> None:
        fair = FairQueue({"gold": 1})
        with pytest.raises(
            ConfigurationError, match=r"band of 'gold' must be a whole number from 0 \(served first\) to 7"
        ):
            fair.set_band("gold", band)
        with pytest.raises(KeyError):
            fair.set_band("free", 1)


NAMES = ("a", "b", "c", "d")
BAND_NUMBERS = st.sampled_from([0, DEFAULT_BAND - 1, DEFAULT_BAND, LAST_BAND])


class BandedQueue(RuleBasedStateMachine):
    """The order of service, the accounts and the sizes are those of the oracle, whatever is done."""

    @initialize(quanta=st.lists(st.integers(1, 5), min_size=4, max_size=4), patience=st.sampled_from([0, 0, 3, 8]))
    def begin(self, quanta: list[int], patience: int) -> None:
        self.clock = TickingClock()
        given_quanta = dict(zip(NAMES, quanta, strict=True))
        self.oracle = ReferenceBands(given_quanta, patience * TICK_NS)
        self.fair = FairQueue(given_quanta, clock=self.clock, anticipation=patience * TICK)
        self.number = 0

    def expected(self) -> Any:
        found = self.oracle.pop(self.clock.ticks * TICK_NS)
        return found if isinstance(found, tuple) else None

    @rule(name=st.sampled_from(NAMES), cost=st.integers(1, 7), count=st.integers(1, 4))
    def put(self, name: str, cost: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.fair.put(name, self.number, cost=cost)
            self.oracle.push(name, self.number, cost)

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=6))
    def put_many(self, names: list[str]) -> None:
        self.fair.put_many(names, [self.number + i for i in range(len(names))])
        for name in names:
            self.oracle.push(name, self.number)
            self.number += 1

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            try:
                found = self.fair.get(block=False)
            except queue.Empty:
                found = None
            assert found == self.expected()

    @rule(ticks=st.integers(1, 5))
    def wait(self, ticks: int) -> None:
        self.clock.ticks += ticks

    @rule(name=st.sampled_from(NAMES), difference=st.integers(-10, 10))
    def settle(self, name: str, difference: int) -> None:
        self.fair.settle(name, difference)
        self.oracle.of(name).settle(name, difference)

    @rule(name=st.sampled_from(NAMES), quantum=st.integers(1, 6))
    def set_quantum(self, name: str, quantum: int) -> None:
        self.fair.set_quantum(name, quantum)
        self.oracle.of(name).set_quantum(name, quantum)

    @rule(name=st.sampled_from(NAMES), held=st.booleans(), awaited=st.booleans())
    def hold(self, name: str, held: bool, awaited: bool) -> None:
        self.fair.hold(name, held, awaited)
        self.oracle.of(name).hold(name, held, awaited)

    @rule(name=st.sampled_from(NAMES), band=BAND_NUMBERS)
    def set_band(self, name: str, band: int) -> None:
        self.fair.set_band(name, band)
        self.oracle.set_band(name, band)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "fair"):
            return
        assert self.fair.qsize() == sum(map(len, self.oracle.bands))
        for name, stats in self.fair.stats().items():
            slot = self.oracle.of(name).slots[name]
            assert (stats.deficit, stats.served, stats.queued) == (slot.deficit, slot.served, len(slot.fifo)), name
            look = self.fair.outlook(name)
            messages, slots = self.oracle.before(name)
            assert look.band in (None, self.oracle.band_of[name])
            assert (look.above or 0) == messages
            assert look.before is None or look.before >= slots


TestBandedQueue = BandedQueue.TestCase
TestBandedQueue.settings = settings(max_examples=100)


class Limited:
    """A queue whose slots have bands and limits, and which of them may be served."""

    def __init__(self, bands: list[int], limit: Limit, boost: bool) -> None:
        self.clock = TickingClock()
        self.bands, self.limit = bands, limit
        self.fair = FairQueue(dict.fromkeys(range(4), 2), clock=self.clock, limit=limit, sparse_boost=boost)
        for slot, number in enumerate(bands):
            self.fair.set_band(slot, number)
        self.queued: Counter[int] = Counter()
        self.in_hand: Counter[int] = Counter()
        self.due = [0.0] * 4

    def possible(self) -> list[int]:
        """Slots with something queued that are not at their limit."""
        most = self.limit.concurrency or 10**9
        return [s for s in range(4) if self.queued[s] and self.in_hand[s] < most and self.clock() >= self.due[s]]

    def put(self, slot: int, count: int) -> None:
        self.fair.put_many(slot, range(count))
        self.queued[slot] += count

    def wait(self, _slot: int, count: int) -> None:
        self.clock.ticks += count

    def band(self, slot: int, number: int) -> None:
        self.fair.set_band(slot, number)
        self.bands[slot] = number

    def look(self, slot: int, _count: int) -> None:
        self.fair.set_limit(slot, self.limit)  # the same again

    def release(self, slot: int, _count: int) -> None:
        if self.limit.concurrency and self.in_hand[slot]:
            self.fair.release(slot)
            self.in_hand[slot] -= 1

    def get(self, _slot: int, count: int) -> None:
        try:
            found = self.fair.get_many(count, timeout=0).slots
        except queue.Empty:
            found = []
        for slot in found:
            possible = self.possible()
            assert slot in possible
            assert self.bands[slot] == min(self.bands[other] for other in possible)
            self.queued[slot] -= 1
            self.in_hand[slot] += 1
            self.due[slot] = self.clock() + self.limit.interval_ns / 1e9
        assert len(found) == count or not self.possible()


@settings(max_examples=100)
@given(
    bands=st.lists(st.integers(0, LAST_BAND), min_size=4, max_size=4),
    boost=st.booleans(),
    limit=st.sampled_from([Limit(1), Limit(3), Limit(rate=1), Limit(rate=100), Limit(2, rate=4)]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "get", "get", "release", "wait", "band", "look"]),
            st.integers(0, 3),
            st.integers(1, 7),
        ),
        max_size=150,
    ),
)
def test_each_item_is_of_the_first_band_that_may_be_served(
    bands: list[int], limit: Limit, boost: bool, steps: list[tuple[str, int, int]]
) -> None:
    """With limits, too, whose slots leave their band's list and come back; and nothing is lost or counted twice."""
    world = Limited(bands, limit, boost)
    for what, slot, count in steps:
        getattr(world, what)(slot, count)
        assert world.fair.qsize() == sum(world.queued.values())
    world.fair.lift_limits()
    assert len(drained(world.fair)) == sum(world.queued.values())


@given(
    quanta=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    gold=st.lists(st.integers(0, 3), min_size=300, max_size=300),
)
def test_the_bound_within_a_band_holds_though_another_interrupts_it(quanta: list[int], gold: list[int]) -> None:
    """For two that are always backlogged, what they were served differs by no more than without the other band."""
    fair = FairQueue({**dict(enumerate(quanta)), "gold": 1})
    fair.set_band("gold", 0)
    for slot in range(len(quanta)):
        fair.put_many(slot, range(1000))
    served: Counter[Any] = Counter()
    for count in gold:
        fair.put_many("gold", range(count))
        served.update(fair.get_many(2).slots)
        for one in range(len(quanta)):
            for other in range(len(quanta)):
                lead = served[one] / quanta[one] - served[other] / quanta[other]
                assert lead <= 1 + 1 / quanta[one] + 1 / quanta[other]
