"""Limits of several slots together: a named one, and the total of all slots."""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import TICK_NS, ManualClock, TickingClock
from support.draining import drained
from support.threads import start
from support.waiting import eventually

from fairsched import ConfigurationError, FairQueue, Limit
from fairsched.scheduling._permits import Permits
from fairsched.scheduling.limit import JointName

NAMES = ("a", "b", "c", "d", "e")
TOTAL = JointName(None)


def filled(count: int, **options: Any) -> FairQueue:
    fair = FairQueue(default_quantum=1, **options)
    for number in range(count):
        for name in NAMES:
            fair.put(name, number)
    return fair


def slots_of(fair: FairQueue) -> list[str]:
    return [name for name, _ in drained(fair)]


def test_slots_with_one_name_are_limited_together() -> None:
    fair = filled(3)
    for name in "ab":
        fair.set_limit(name, Limit(2, name="api"))
    assert Counter(slots_of(fair)) == {"a": 1, "b": 1, "c": 3, "d": 3, "e": 3}
    fair.release("b")
    assert len(slots_of(fair)) == 1
    assert fair.limit_stats() == {JointName("api"): (2, 2, None, 3)}


def test_a_slot_has_its_own_limit_and_a_named_one_and_the_total() -> None:
    fair = filled(9, limit=[Limit(2), Limit(5, name="api")], total_limit=Limit(6))
    fair.set_limit("e", Limit(3))
    assert slots_of(fair) == ["a", "b", "c", "d", "e", "a"], "six in all, of which five have the name"
    fair.release("e")
    assert slots_of(fair) == ["e"], "the others wait for the named limit"
    fair.release("a")
    fair.release("a")
    assert Counter(slots_of(fair)) == {"b": 1, "e": 1}


def test_the_total_is_divided_by_the_quanta() -> None:
    fair = FairQueue({"gold": 4, "free": 1}, total_limit=Limit(1))
    for name in ("gold", "free"):
        fair.put_many(name, range(200))
    served: Counter[str] = Counter()
    for _ in range(100):
        name, _ = fair.get(block=False)
        served[name] += 1
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        fair.release(name)
    assert served == {"gold": 80, "free": 20}


def test_a_slot_at_its_own_limit_does_not_come_before_those_that_wait_for_the_total() -> None:
    fair = filled(10, limit=Limit(1), total_limit=Limit(1))
    order = []
    for _ in range(15):
        order.append(fair.get(block=False)[0])
        assert slots_of(fair) == []
        fair.release(order[-1])
    assert order == [*NAMES] * 3


def test_slots_lose_no_turns_to_those_that_have_no_joint_limit() -> None:
    """Twenty slots that wait for one permit have as many turns as twenty that wait for none."""
    api, free = [f"api-{i}" for i in range(20)], [f"free-{i}" for i in range(20)]
    fair = FairQueue(dict.fromkeys([*api, *free], 1))
    for name in api:
        fair.set_limit(name, Limit(4, name="api"))
    for name in api + free:
        fair.put_many(name, range(2000))
    in_hand: deque[str] = deque()
    served: Counter[str] = Counter()
    for _ in range(8000):  # eight workers, which take equally long for each
        if len(in_hand) == 8:
            name = in_hand.popleft()
            if name in api:
                fair.release(name)
        name, _ = fair.get(block=False)
        in_hand.append(name)
        served[name] += 1
    assert sum(served[name] for name in api) == pytest.approx(4000, rel=0.03)
    for group in (api, free):
        assert max(served[name] for name in group) - min(served[name] for name in group) <= 2


def test_a_named_limit_is_divided_by_the_quanta_beside_others() -> None:
    fair = FairQueue({"gold": 3, "silver": 1, "other": 1})
    for name in ("gold", "silver"):
        fair.set_limit(name, Limit(1, name="api"))
    for name in ("gold", "silver", "other"):
        fair.put_many(name, range(1000))
    served: Counter[str] = Counter()
    for _ in range(500):
        for name, _ in [fair.get(block=False) for _ in range(2)]:
            served[name] += 1
            if name != "other":
                fair.release(name)
    assert served == {"gold": 375, "silver": 125, "other": 500}


def test_an_earlier_band_goes_first_when_the_limit_allows_a_message() -> None:
    fair = FairQueue({"late": 1, "early": 1}, total_limit=Limit(1))
    fair.set_band("early", 0)
    fair.put_many("late", range(3))
    assert fair.get()[0] == "late"
    fair.put_many("early", range(2))
    order = []
    for before in ("late", "early", "early", "late"):
        assert slots_of(fair) == []
        fair.release(before)
        order.append(fair.get(block=False)[0])
    assert order == ["early", "early", "late", "late"]


def test_a_higher_priority_goes_first_when_the_limit_allows_a_message() -> None:
    fair = FairQueue({"a": 1, "b": 1}, total_limit=Limit(1), priorities=True)
    fair.put_many("a", range(3))
    assert fair.get()[0] == "a"
    fair.put("b", "urgent", priority=9)
    fair.put("a", "urgent", priority=5)
    found = []
    name = "a"
    for _ in range(4):
        fair.release(name)
        name, item = fair.get(block=False)
        found.append((name, item))
    assert found == [("b", "urgent"), ("a", "urgent"), ("a", 1), ("a", 2)]


def test_one_token_bucket_is_for_all_slots_of_a_name() -> None:
    clock = ManualClock()
    fair = filled(100, limit=Limit(rate=10, burst=2, name="api"), clock=clock)
    assert len(slots_of(fair)) == 2
    served = 0
    for _ in range(100):
        clock.now += 0.1
        served += len(slots_of(fair))
    assert served == pytest.approx(100, abs=1)


def test_a_getter_waits_for_the_next_token() -> None:
    fair = filled(2, total_limit=Limit(rate=20))
    for _ in range(4):
        fair.get(timeout=10)


def test_a_waiting_getter_is_woken_by_a_release_of_another_slot() -> None:
    fair = FairQueue(default_quantum=1, limit=Limit(1, name="api"))
    fair.put("a", 0)
    fair.get()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fair.get(timeout=60)))
    thread.start()
    eventually(lambda: fair.waiting() == [0])
    fair.put("b", 1)
    assert fair.waiting() == [0]
    fair.release("a")
    thread.join(60)
    assert found == [("b", 1)]


def test_a_slot_that_leaves_a_name_counts_no_more() -> None:
    fair = filled(3, limit=Limit(1, name="api"))
    assert slots_of(fair) == ["a"]
    fair.set_limit("a", None)
    assert Counter(slots_of(fair)) == {"a": 2, "b": 1}
    fair.release("b")
    assert len(slots_of(fair)) == 1


def test_idle_slots_with_a_joint_limit_are_forgotten() -> None:
    fair = FairQueue(default_quantum=1, limit=Limit(5, name="api"), total_limit=Limit(3))
    for number in range(1000):
        fair.put(number, number)
    while fair.qsize():
        fair.release(fair.get()[0])
    assert not fair.stats()


def test_limits_can_be_lifted_while_slots_wait() -> None:
    fair = filled(3, limit=Limit(1, name="api"), total_limit=Limit(1))
    assert slots_of(fair) == ["a"]
    fair.lift_limits()
    assert len(slots_of(fair)) == 14


def test_what_is_withdrawn_waits_no_more() -> None:
    fair = FairQueue(default_quantum=1, total_limit=Limit(1))
    items = [object() for _ in range(4)]
    for number, item in enumerate(items):
        fair.put(number % 2, item)
    name, _ = fair.get()
    assert slots_of(fair) == []
    fair.withdraw(items)
    fair.put(7, "new")
    fair.release(name)
    assert slots_of(fair) == [7]


@pytest.mark.parametrize(
    "limits", [[Limit(1), Limit(2)], [Limit(1, name="a"), Limit(2, name="b")], ["4"], Limit]
)  # fmt: skip
def test_bad_limits_are_refused(limits: Any) -> None:
    with pytest.raises(ValueError, match="limit must"):
        FairQueue(limit=limits)
    with pytest.raises(ValueError, match="limit must"):
        FairQueue(default_quantum=1).set_limit("a", limits)


@pytest.mark.parametrize("name", ["", 7, "x" * 101])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name of a limit must be text of 1 to 100 characters, got"):
        Limit(1, name=name)


class Oracle:
    """What may be served: counts in plain Python."""

    def __init__(self, named: dict[str, str | None], limits: dict[Any, Limit]) -> None:
        self.named, self.limits = named, limits
        self.in_hand: Counter[Any] = Counter()
        self.full_at: dict[Any, int] = {}

    def keys(self, slot: str) -> list[Any]:
        return [key for key in (slot, self.named[slot], TOTAL) if key in self.limits]

    def allows(self, slot: str, now: int) -> bool:
        for key in self.keys(slot):
            limit = self.limits[key]
            if limit.concurrency is not None and self.in_hand[key] >= limit.concurrency:
                return False
            room = ((limit.burst or 1) - 1) * limit.interval_ns
            if limit.interval_ns and self.full_at.get(key, 0) - room > now:
                return False
        return True

    def take(self, slot: str, now: int) -> None:
        for key in self.keys(slot):
            self.in_hand[key] += 1
            self.full_at[key] = max(self.full_at.get(key, 0), now) + self.limits[key].interval_ns

    def release(self, slot: str) -> None:
        for key in self.keys(slot):
            self.in_hand[key] -= 1


limit_of = st.one_of(
    st.builds(Limit, st.integers(1, 4)),
    st.builds(lambda rate, burst: Limit(rate=rate, burst=burst), st.sampled_from([1, 2, 5]), st.integers(1, 3)),
    st.builds(lambda most, burst: Limit(most, rate=2, burst=burst), st.integers(1, 3), st.integers(1, 3)),
)
kinds = st.sampled_from([{}, {"sparse_boost": True}, {"priorities": True}, {"subkey_quantum": 2}, {"bands": True}])


def named(limit: Limit, name: str) -> Limit:
    return Limit(limit.concurrency, rate=limit.rate, burst=limit.burst, name=name)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.none() | limit_of, st.sampled_from([None, "x", "y"])), min_size=5, max_size=5),
    st.tuples(limit_of, limit_of),
    st.none() | limit_of,
    kinds,
    st.integers(0, 2**32),
)
def test_what_is_served_is_what_the_limits_allow(
    slots: list[tuple[Limit | None, str | None]],
    names: tuple[Limit, Limit],
    total: Limit | None,
    kind: dict[str, Any],
    seed: int,
) -> None:
    """Each message that is served may be, and if none is served none may be, whatever was put and released before."""
    clock, chance = TickingClock(), random.Random(seed)
    options = {name: value for name, value in kind.items() if name != "bands"}
    fair = FairQueue(default_quantum=2, clock=clock, total_limit=total, **options)
    limits: dict[Any, Limit] = {"x": names[0], "y": names[1], **({} if total is None else {TOTAL: total})}
    for slot, (own, name) in zip(NAMES, slots, strict=True):
        given = [] if own is None else [own]
        fair.set_limit(slot, [*given, *([] if name is None else [named(limits[name], name)])])
        limits.update({slot: own} if own is not None else {})
        if kind.get("bands"):
            fair.set_band(slot, chance.randrange(3))
    oracle = Oracle({slot: name for slot, (_, name) in zip(NAMES, slots, strict=True)}, limits)
    queued: Counter[str] = Counter()
    in_hand: list[str] = []
    for _ in range(120):
        what = chance.randrange(5)
        now = clock.ticks * TICK_NS
        if what == 0:
            clock.ticks += chance.choice([1, 2, 9])
        elif what == 1 and in_hand:
            slot = in_hand.pop(chance.randrange(len(in_hand)))
            oracle.release(slot)
            if oracle.keys(slot):
                fair.release(slot)
        elif what == 2:
            slot = chance.choice(NAMES)
            more = {"priority": chance.randrange(3)} if kind.get("priorities") else {}
            fair.put(slot, None, cost=chance.choice([1, 1, 2, 5]), **more)
            queued[slot] += 1
        else:
            try:
                slot = fair.get_many(1, 0).slots[0] if what == 3 else fair.get(block=False)[0]
            except queue.Empty:
                assert not [one for one in NAMES if queued[one] and oracle.allows(one, now)]
                continue
            assert oracle.allows(slot, now)
            oracle.take(slot, now)
            queued[slot] -= 1
            in_hand.append(slot)
    assert fair.qsize() == queued.total()


SHARED = {"limit": Limit(2, scope="group", name="api"), "total_limit": Limit(3, scope="group")}


def test_nothing_is_served_without_permits_of_all_limits() -> None:
    fair = filled(5, **SHARED)
    permits = Permits(fair)
    assert slots_of(fair) == []
    assert permits.short() == [JointName("api")]
    assert permits.grant(JointName("api"), 2).queued == 0
    assert slots_of(fair) == []
    assert permits.short() == [TOTAL], "a slot waits for its named limit first, and then for the total"
    assert permits.use(JointName("api")).reserved == 5
    permits.grant(TOTAL, 1)
    assert slots_of(fair) == ["a"]
    assert permits.use(JointName("api")).in_hand == permits.use(TOTAL).in_hand == 1
    permits.grant(TOTAL, 3)
    assert slots_of(fair) == ["b"]
    assert permits.short(True) == permits.short() == [], "what is in hand may end"
    assert permits.short(True) == [JointName("api")]


def test_a_limit_is_named_once_until_it_gets_an_answer() -> None:
    fair = filled(1, **SHARED)
    told = []
    permits = Permits(fair)
    permits.call_when_short(lambda: told.append(permits.short()))
    assert slots_of(fair) == []
    assert told == [[JointName("api")]]
    fair.put("f", 1)
    assert slots_of(fair) == []
    assert len(told) == 1


def test_permits_that_are_withdrawn_are_owed_when_a_message_ends() -> None:
    fair = filled(2, **SHARED)
    permits = Permits(fair)
    permits.grant(JointName("api"), 2)
    permits.grant(TOTAL, 2)
    served = slots_of(fair)
    assert len(served) == 2
    permits.short()
    assert permits.grant(TOTAL, 0).in_hand == 2
    permits.short()
    fair.release(served[0])
    assert TOTAL in permits.short()
    assert permits.use(TOTAL).in_hand == 1


def test_a_sleeping_getter_asks_for_what_a_put_needs() -> None:
    """The message is put while a getter sleeps, which finds that the limit lacks permits."""
    fair = FairQueue(default_quantum=1, **SHARED)
    permits = Permits(fair)

    def answer() -> None:
        for name in permits.short():
            permits.grant(name, 1)

    permits.call_when_short(answer)
    found: list[Any] = []
    thread, _ = start(lambda: found.append(fair.get(timeout=60)))
    eventually(lambda: fair.waiting() == [0])
    fair.put("a", 1)
    thread.join(60)
    assert found == [("a", 1)]


def test_a_bucket_of_the_group_serves_at_its_rate() -> None:
    clock = ManualClock()
    fair = filled(30, total_limit=Limit(rate=10, burst=2, scope="group"), clock=clock)
    permits = Permits(fair)
    assert slots_of(fair) == []
    assert permits.short() == [TOTAL]
    permits.grant(TOTAL, 0, 0.0)
    assert len(slots_of(fair)) == 2
    clock.now += 0.1
    assert len(slots_of(fair)) == 1
    use = permits.grant(TOTAL, 0)
    assert use.full_in == pytest.approx(0.2, abs=1e-6)
    clock.now += 1
    assert slots_of(fair) == []
