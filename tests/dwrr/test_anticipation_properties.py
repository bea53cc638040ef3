"""Anticipation against the oracle, and against what it promises, on whatever Hypothesis thinks of."""

from __future__ import annotations

import heapq
import queue
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracles.dwrr import ReferenceDwrr

from fairsched import FairQueue
from fairsched.stats import SlotStats

NAMES = "abcd"
amounts = st.one_of(st.integers(1, 6), st.integers(1, 300))
names = st.sampled_from(NAMES)


def poll(fair: FairQueue) -> Any:
    """Serve one item, or say for how long a slot is waited for; None when nothing is queued."""
    try:
        return fair.get(False)
    except queue.Empty:
        left = fair.anticipated()
        return None if left is None else round(left)


class AnticipationMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves the queue and the oracle in the same state."""

    @initialize(quanta=st.lists(amounts, min_size=len(NAMES), max_size=len(NAMES)), patience=st.integers(0, 20))
    def build(self, quanta: list[int], patience: int) -> None:
        self.now = 1000
        self.token = 0
        shares = dict(zip(NAMES, quanta, strict=True))
        self.fair = FairQueue(shares, anticipation=patience, clock=lambda: float(self.now))
        self.oracle = ReferenceDwrr(shares, patience)

    @rule(name=names, costs=st.lists(amounts, min_size=1, max_size=5))
    def put(self, name: str, costs: list[int]) -> None:
        for cost in costs:
            self.fair.put(name, self.token, cost=cost)
            self.oracle.push(name, self.token, cost)
            self.token += 1

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            assert poll(self.fair) == self.oracle.pop(self.now)

    @rule(count=st.integers(2, 6))
    def get_many(self, count: int) -> None:
        expected: list[tuple[Any, int]] = []
        for _ in range(min(count, len(self.oracle))):
            since = self.oracle.since
            popped = self.oracle.pop(self.now)
            if not isinstance(popped, tuple):
                if expected:  # a server that has something to do does not wait
                    self.oracle.since = since
                break
            expected.append(popped)
        try:
            assert self.fair.get_many(count, timeout=0) == expected
        except queue.Empty:
            assert expected == []

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(name=names, held=st.booleans(), awaited=st.booleans())
    def hold(self, name: str, held: bool, awaited: bool) -> None:
        assert self.fair.hold(name, held, awaited) == self.oracle.hold(name, held, awaited)

    @rule(name=names, difference=st.integers(-400, 400))
    def settle(self, name: str, difference: int) -> None:
        self.fair.settle(name, difference)
        self.oracle.settle(name, difference)

    @rule(name=names, quantum=amounts)
    def set_quantum(self, name: str, quantum: int) -> None:
        self.fair.set_quantum(name, quantum)
        self.oracle.set_quantum(name, quantum)

    @invariant()
    def same_state(self) -> None:
        if hasattr(self, "fair"):
            assert self.fair.stats() == {
                name: SlotStats(slot.quantum, slot.deficit, len(slot.fifo), slot.served, slot.work, slot.held)
                for name, slot in self.oracle.slots.items()
            }


AnticipationMachine.TestCase.settings = settings(stateful_step_count=60)
TestAnticipationMachine = AnticipationMachine.TestCase


@given(
    quanta=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    windows=st.lists(st.integers(1, 5), min_size=5, max_size=5),
    delays=st.lists(st.integers(1, 10), min_size=5, max_size=5),
)
def test_shares_are_exact_when_every_refill_comes_in_time(
    quanta: list[int], windows: list[int], delays: list[int]
) -> None:
    """However small the windows: what is served is replaced after a delay, and no slot overtakes a whole round."""
    now = 0
    patience = 10 * max(quanta) + 1  # a turn may have to wait for each of its messages, and the last has to be in time
    fair = FairQueue(dict(enumerate(quanta)), anticipation=patience, clock=lambda: float(now))
    for slot in range(len(quanta)):
        fair.hold(slot, True)
        fair.put_many(slot, [None] * windows[slot])
    coming: list[tuple[int, int]] = []
    served = [0] * len(quanta)
    while sum(served) < 20 * sum(quanta):
        popped = poll(fair)
        if isinstance(popped, tuple):
            slot = popped[0]
            served[slot] += 1
            heapq.heappush(coming, (now + delays[slot], slot))
            rounds = [count / quantum for count, quantum in zip(served, quanta, strict=True)]
            assert max(rounds) - min(rounds) <= 1
        else:
            now, slot = heapq.heappop(coming)
            fair.put(slot, None)
    assert served == [20 * quantum for quantum in quanta]


@given(
    patience=st.integers(1, 30),
    quantum=st.integers(1, 8),
    gaps=st.lists(st.one_of(st.integers(1, 5), st.integers(1, 60)), min_size=1, max_size=60),
)
def test_no_turn_waits_longer_than_the_bound(patience: int, quantum: int, gaps: list[int]) -> None:
    """One slot is held and refilled at any time; between two messages of the other, it has at most one turn."""
    now = 0
    fair = FairQueue({"held": quantum, "full": 1}, anticipation=patience, clock=lambda: float(now))
    fair.hold("held", True)
    fair.put("held", None)
    fair.put_many("full", [None] * 3 * len(gaps))
    waited = 0
    for gap in gaps:
        arrival = now + gap
        while (popped := poll(fair)) is None or not isinstance(popped, tuple) or popped[0] == "full":
            if isinstance(popped, tuple):
                assert waited <= patience
                waited = 0
                if now >= arrival or fair.qsize() == 0:
                    break
                continue
            step = min(popped, arrival - now)
            assert step > 0
            waited += step
            now += step
            if now == arrival:
                break
        now = max(now, arrival)
        fair.put("held", None)


@given(
    quanta=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 12)), max_size=40),
)
def test_work_conserving_when_no_slot_is_held(quanta: list[int], steps: list[tuple[int, int, int]]) -> None:
    """Patience changes nothing then."""
    plain, patient = FairQueue(dict(enumerate(quanta))), FairQueue(dict(enumerate(quanta)), anticipation=5.0)
    for slot, gets, cost in steps:
        for fair in (plain, patient):
            fair.put(slot % len(quanta), cost, cost=cost)
        for _ in range(gets):
            assert poll(plain) == poll(patient)
    assert plain.stats() == patient.stats()
