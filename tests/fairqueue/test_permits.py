"""Limits of a group in a fair queue: what may be served is granted from outside; and slots that are throttled."""

from __future__ import annotations

import queue
import random
import threading

import pytest
from support.clock import ManualClock
from support.waiting import reach

from fairsched import FairQueue, Limit
from fairsched.scheduling._permits import Permits

TWO = Limit(2, scope="group")


def filled(limit: Limit = TWO, **options: object) -> FairQueue:
    fair = FairQueue(default_quantum=1, limit=limit, **options)
    for number in range(5):
        fair.put("acme", number)
    return fair


def take_all(fair: FairQueue) -> list[str]:
    found = []
    while True:
        try:
            found.append(fair.get_nowait()[0])
        except queue.Empty:
            return found


def look_twice(fair: FairQueue) -> list[str]:
    return Permits(fair).short(tight=True) + Permits(fair).short(tight=True)


def test_nothing_is_served_without_a_permit() -> None:
    fair = filled()
    assert take_all(fair) == []
    assert Permits(fair).short() == ["acme"]
    use = Permits(fair).use("acme")
    assert (use.in_hand, use.permits, use.queued, use.served) == (0, 0, 5, 0)


def test_as_many_are_served_as_there_are_permits() -> None:
    fair = filled()
    Permits(fair).grant("acme", 2)
    assert take_all(fair) == ["acme"] * 2
    fair.release("acme")
    assert take_all(fair) == ["acme"]


def test_a_slot_is_named_once_until_it_gets_an_answer() -> None:
    fair = filled()
    assert Permits(fair).short() == ["acme"]
    fair.put("acme", 6)
    assert Permits(fair).short() == []
    Permits(fair).grant("acme", 1)
    assert Permits(fair).short() == []


def test_a_slot_with_permits_is_named_if_it_is_tight_at_two_looks() -> None:
    calls: list[int] = []
    fair = filled()
    Permits(fair).call_when_short(lambda: calls.append(1))
    calls.clear()
    Permits(fair).short()
    Permits(fair).grant("acme", 1)
    assert take_all(fair) == ["acme"]
    assert Permits(fair).short() == []
    assert Permits(fair).short(tight=True) == []
    fair.release("acme")
    assert Permits(fair).short(tight=True) == [], "it was not tight for a moment"
    assert take_all(fair) == ["acme"]
    assert Permits(fair).short(tight=True) == []
    assert Permits(fair).short() == []
    assert Permits(fair).short(tight=True) == ["acme"]
    assert Permits(fair).short(tight=True) == []
    assert not calls, "the group was told before it is known that the slot needs more"


def test_a_tight_slot_that_loses_its_permits_is_short() -> None:
    fair = filled()
    Permits(fair).short()
    Permits(fair).grant("acme", 1)
    assert take_all(fair) == ["acme"]
    Permits(fair).grant("acme", 0)
    assert Permits(fair).short() == []
    fair.release("acme")
    assert Permits(fair).short() == ["acme"]
    assert Permits(fair).short(tight=True) == []


def test_tight_slots_that_are_forgotten_are_not_named() -> None:
    fair = FairQueue(default_quantum=1, limit=TWO)
    for number in range(30):
        fair.put_many(f"t{number}", [1, 2])
        Permits(fair).short()
        Permits(fair).grant(f"t{number}", 1)
    assert len(take_all(fair)) == 30
    assert Permits(fair).short(tight=True) == []
    for number in range(20):
        fair.release(f"t{number}")
    assert len(take_all(fair)) == 20
    for number in range(20):
        fair.release(f"t{number}")  # which forgets the slot
        fair.put(f"u{number}", 1)  # in its place
    assert sorted(Permits(fair).short(tight=True)) == sorted(
        [f"t{number}" for number in range(20, 30)] + [f"u{number}" for number in range(20)]
    )


def test_permits_that_are_withdrawn_are_noted_when_they_are_free() -> None:
    fair = filled()
    Permits(fair).grant("acme", 2)
    assert take_all(fair) == ["acme"] * 2
    assert Permits(fair).grant("acme", 0).in_hand == 2
    Permits(fair).short()
    fair.release("acme")
    assert Permits(fair).short() == ["acme"]
    assert Permits(fair).use("acme").in_hand == 1
    assert take_all(fair) == []


def test_the_function_is_called_once_until_it_is_asked() -> None:
    calls: list[int] = []
    fair = FairQueue(default_quantum=1, limit=TWO)
    Permits(fair).call_when_short(lambda: calls.append(1))
    for number in range(5):
        fair.put(f"t{number}", 0)
    assert calls == [1]
    assert sorted(Permits(fair).short()) == [f"t{number}" for number in range(5)]
    fair.put_many(["u", "v"], [1, 2])
    assert calls == [1, 1]


def test_a_slot_with_messages_is_not_forgotten_for_lack_of_permits() -> None:
    fair = filled()
    Permits(fair).grant("acme", 2)
    take_all(fair)
    Permits(fair).grant("acme", 0)
    fair.release("acme")
    fair.release("acme")
    fair.put("other", 1)
    assert fair.backlog("acme") == 3
    Permits(fair).grant("acme", 2)
    assert take_all(fair) == ["acme"] * 2


def test_an_idle_slot_keeps_its_permits_until_they_are_withdrawn() -> None:
    fair = FairQueue(default_quantum=1, limit=TWO)
    fair.put("acme", 1)
    Permits(fair).grant("acme", 2)
    assert take_all(fair) == ["acme"]
    fair.release("acme")
    fair.put("acme", 2)
    assert take_all(fair) == ["acme"]
    fair.release("acme")
    assert Permits(fair).use("acme").permits == 2
    Permits(fair).grant("acme", 0)
    assert Permits(fair).use("acme") is None
    assert Permits(fair).grant("acme", 1) is None
    fair.put("acme", 1)
    assert take_all(fair) == []
    assert Permits(fair).short() == ["acme"]


def test_a_waiting_thread_gets_the_message_when_its_permit_comes() -> None:
    fair = filled()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(fair.get(timeout=30)))
    thread.start()
    reach(lambda: len(fair.waiting()) == 1)
    Permits(fair).grant("acme", 1)
    thread.join(30)
    assert found == [("acme", 0)]


def test_a_slot_without_permits_delays_nothing() -> None:
    fair = filled()
    fair.set_limit("free", None)
    fair.put_many("free", list(range(10)))
    assert take_all(fair) == ["free"] * 10


def test_the_bucket_serves_at_its_rate_while_it_is_here() -> None:
    clock = ManualClock()
    fair = filled(Limit(rate=10, burst=2, scope="group"), clock=clock)
    assert take_all(fair) == []
    Permits(fair).grant("acme", 0, 0.0)
    assert take_all(fair) == ["acme"] * 2
    clock.now += 0.1
    assert take_all(fair) == ["acme"]
    taken = Permits(fair).grant("acme", 0)
    assert taken.full_in == pytest.approx(0.2)
    clock.now += 10
    assert take_all(fair) == []
    Permits(fair).grant("acme", 0, taken.full_in)
    assert take_all(fair) == []
    clock.now += 0.1
    assert take_all(fair) == ["acme"]


def test_random_permits_are_never_exceeded() -> None:
    random_ = random.Random(1)
    fair = FairQueue({"fixed": 3}, default_quantum=1, limit=TWO)
    fair.set_limit("fixed", TWO)
    hand: dict[str, int] = {}
    permits: dict[str, int] = {}
    for _ in range(20_000):
        slot = random_.choice(["fixed", "a", "b", "c"])
        what = random_.random()
        if what < 0.3:
            fair.put(slot, 0)
        elif what < 0.5:
            count = random_.randrange(3)
            use = Permits(fair).grant(slot, count)
            permits[slot] = count if use is not None else 0
            assert use is None or use.in_hand == hand.get(slot, 0)
        elif what < 0.8:
            try:
                taken = fair.get_nowait()[0]
            except queue.Empty:
                continue
            hand[taken] = hand.get(taken, 0) + 1
            assert hand[taken] <= permits.get(taken, 0)
        elif hand.get(slot):
            hand[slot] -= 1
            fair.release(slot)
            if Permits(fair).use(slot) is None:
                permits[slot] = 0
        elif what > 0.95:
            Permits(fair).short(tight=what > 0.97)


def test_what_cannot_be_is_refused() -> None:
    fair = filled()
    with pytest.raises(ValueError, match="permits must be an integer of 0 or more, got -1"):
        Permits(fair).grant("acme", -1)
    with pytest.raises(ValueError, match="callback must be callable or None, got 5"):
        Permits(fair).call_when_short(5)
    assert Permits(FairQueue({"a": 1})).grant("a", 1) is None


def test_a_throttled_slot_takes_no_turns_until_its_time() -> None:
    clock = ManualClock()
    fair = FairQueue(default_quantum=1, clock=clock)
    fair.put("acme", 1)
    fair.put("other", 1)
    fair.throttle("acme", 5)
    fair.throttle("acme", 1)
    assert take_all(fair) == ["other"]
    assert fair.outlook("acme").retry_after == pytest.approx(5)
    clock.now += 4.9
    assert take_all(fair) == []
    clock.now += 0.2
    assert take_all(fair) == ["acme"]
    assert fair.stats() == {}


def test_a_slot_can_be_throttled_before_its_first_message() -> None:
    clock = ManualClock()
    fair = FairQueue(default_quantum=1, clock=clock)
    fair.throttle("acme", 5)
    fair.put("acme", 1)
    assert take_all(fair) == []
    clock.now += 5.1
    assert take_all(fair) == ["acme"]


def test_a_throttled_slot_without_messages_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    fair = FairQueue(default_quantum=1, clock=clock)
    fair.throttle("acme", 5)
    assert set(fair.stats()) == {"acme"}
    clock.now += 6
    fair.put("other", 1)
    assert take_all(fair) == ["other"]
    assert set(fair.stats()) == set()


def test_lifted_limits_lift_throttles() -> None:
    fair = FairQueue(default_quantum=1)
    fair.put("acme", 1)
    fair.throttle("acme", 1000)
    fair.lift_limits()
    assert take_all(fair) == ["acme"]


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be at least 0"):
        FairQueue(default_quantum=1).throttle("a", seconds)
    with pytest.raises(KeyError):
        FairQueue().throttle("a", 1)


def test_a_waiting_thread_takes_a_message_when_the_throttle_ends() -> None:
    fair = FairQueue(default_quantum=1)
    fair.put("acme", 1)
    fair.throttle("acme", 0.05)
    assert fair.get(timeout=30) == ("acme", 1)


@pytest.mark.parametrize("seconds", [4e9, 1e300, float("inf")])
def test_a_throttle_without_an_end_keeps_no_thread_from_going_on(seconds: float) -> None:
    fair = FairQueue(default_quantum=1)
    fair.put("acme", 1)
    fair.throttle("acme", seconds)
    with pytest.raises(queue.Empty):
        fair.get(timeout=0.05)
    fair.put("other", 1)
    assert fair.get(timeout=30) == ("other", 1)


def test_what_a_slot_lacks_after_a_permit_is_asked_for_by_the_caller() -> None:
    fair = filled()
    assert Permits(fair).short() == ["acme"]
    use = Permits(fair).grant("acme", 1)
    assert (use.in_hand, use.permits, use.queued) == (0, 1, 5)
    assert take_all(fair) == ["acme"]
    assert look_twice(fair) == ["acme"]
    assert Permits(fair).grant("acme", 1).queued == 4  # still short, and the caller knows
    fair.put("acme", 6)
    fair.release("acme")
    assert take_all(fair) == ["acme"]
    assert look_twice(fair) == []
    Permits(fair).grant("acme", 2)
    assert take_all(fair) == ["acme"]
    assert look_twice(fair) == ["acme"]
