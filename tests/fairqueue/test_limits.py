"""Limits of slots: how much is in hand at a time, how fast a slot is served, and that the others go on."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.limits import ReferenceLimits
from support.clock import TICK_NS, TickingClock
from support.deliveries import Source
from support.draining import drained
from support.threads import result_of, start
from support.waiting import eventually

from fairsched import ConfigurationError, FairQueue, Limit, ShutDown
from fairsched.delivery._delivery import Message
from fairsched.delivery._messagesource import MessageSource
from fairsched.stats import LimitStats
from fairsched.testing import FakeChannel


class TestConcurrency:
    def test_no_more_than_so_many_of_a_slot_are_in_hand_and_the_others_go_on(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1}, limit=Limit(2))
        fair.put_many("gold", range(5))
        fair.put_many("free", range(5))
        assert drained(fair) == [("gold", 0), ("free", 0), ("gold", 1), ("free", 1)]
        assert fair.qsize() == 6
        fair.release("free")
        assert drained(fair) == [("free", 2)]

    def test_a_slot_without_a_limit_is_served_alone(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1})
        fair.set_limit("gold", Limit(1))
        fair.put_many("gold", range(5))
        fair.put_many("free", range(5))
        assert Counter(name for name, _ in drained(fair)) == {"gold": 1, "free": 5}
        fair.set_limit("gold", None)
        assert len(drained(fair)) == 4

    def test_an_interrupted_turn_goes_on_where_it_was(self) -> None:
        """Served one at a time, a slot has its share all the same: its turn lasts until its quantum is used up."""
        fair = FairQueue({"gold": 4, "free": 1, "slow": 1})
        fair.set_limit("gold", Limit(1))
        for name in ("gold", "free", "slow"):
            fair.put_many(name, range(100))
        served: list[str] = []
        for _ in range(60):
            name, _ = fair.get(block=False)
            served.append(name)
            if name == "gold":
                fair.release("gold")
        assert Counter(served) == {"gold": 40, "free": 10, "slow": 10}

    def test_a_waiting_getter_is_woken_by_a_release(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        fair.put_many("gold", range(2))
        fair.get()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(fair.get(timeout=60)))
        thread.start()
        eventually(lambda: fair.waiting() == [0])
        fair.release("gold")
        thread.join(60)
        assert found == [("gold", 1)]

    def test_a_callback_is_called_by_a_release(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        fair.put_many("gold", range(2))
        fair.get()
        called: list[bool] = []
        waiter = fair.call_when_ready(lambda: called.append(True))
        assert not called
        fair.release("gold")
        assert called
        assert fair.get(block=False) == ("gold", 1)
        waiter.leave()

    def test_more_releases_than_items_are_refused(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(2))
        fair.put("gold", 1)
        fair.get()
        fair.release("gold")
        with pytest.raises(ValueError, match="nothing of slot 'gold' is in hand"):
            fair.release("gold")
        with pytest.raises(KeyError, match="no slot is named 'free'"):
            fair.release("free")

    def test_releases_do_nothing_where_no_limit_counts(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.put("a", 1)
        fair.get()
        fair.release("a")

    def test_a_tenant_is_not_forgotten_while_something_of_it_is_in_hand(self) -> None:
        fair = FairQueue(default_quantum=1, limit=Limit(2))
        fair.put("a", 1)
        fair.get()
        assert list(fair.stats()) == ["a"]
        fair.release("a")
        assert fair.stats() == {}

    def test_get_many_takes_no_more_than_the_limits_allow(self) -> None:
        fair = FairQueue(default_quantum=1, limit=Limit(3))
        fair.put_many("a", range(10))
        fair.put_many("b", range(2))
        batch = fair.get_many(20)
        assert Counter(batch.slots) == {"a": 3, "b": 2}
        assert None not in batch.slots

    def test_room_and_size_count_what_is_withheld(self) -> None:
        fair = FairQueue({"gold": 1}, maxsize=3, limit=Limit(1))
        fair.put_many("gold", range(3))
        fair.get()
        fair.put("gold", 3)
        with pytest.raises(queue.Full):
            fair.put("gold", 4, block=False)
        assert fair.qsize() == fair.backlog("gold") == 3

    def test_a_queue_that_is_shut_down_ends_when_what_is_withheld_was_taken(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        fair.put_many("gold", range(2))
        fair.get()
        fair.shutdown()
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        fair.release("gold")
        assert fair.get() == ("gold", 1)
        with pytest.raises(ShutDown):
            fair.get()

    def test_without_limits_everything_is_let_go(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        fair.put_many("gold", range(5))
        fair.get()
        fair.lift_limits()
        assert len(drained(fair)) == 4

    def test_what_is_withheld_is_dropped_by_an_immediate_shutdown(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        fair.put_many("gold", range(5000))
        fair.get()
        fair.shutdown(immediate=True)
        assert fair.qsize() == 0

    @pytest.mark.parametrize("how", ["limit", "band"])
    def test_the_memory_of_what_is_withheld_stays_when_the_others_are_served(self, how: str) -> None:
        """In a process whose C library overwrites what is freed, so that it would be seen that something still is used.

        A pool that grew large gives its memory back when nothing is queued.
        """
        code = (
            "from fairsched import FairQueue, Limit\n"
            "fair = FairQueue({'gold': 1, 'free': 1})\n"
            "fair.put_many('gold', range(3))\n"
            f"if {how!r} == 'limit':\n"
            "    fair.set_limit('gold', Limit(1))\n"
            "    fair.get()\n"
            "else:\n"
            "    fair.set_band('gold', 7)\n"
            "fair.put_many('free', range(50_000))\n"
            "fair.get_many(50_000)\n"
            "fair.lift_limits()\n"
            "print([fair.get(block=False) for _ in range(fair.qsize())])\n"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "MALLOC_PERTURB_": "165"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        assert found.stdout == f"{[('gold', number) for number in range(1 if how == 'limit' else 0, 3)]}\n"


class TestPlaces:
    """A message that a limit counts takes a place until it is settled, or back in the queue."""

    def taken(self, fair: FairQueue, name: str) -> Message:
        """Have a message of a slot in hand, as a consumer has it."""
        fair.put(name, Message(b"", 1, False, None, None, FakeChannel("q")))
        source = MessageSource()
        found = source.try_get(fair)
        assert isinstance(found, Message)
        return found

    def may_be_taken(self, fair: FairQueue, name: str) -> int:
        """Return how many more may be in hand."""
        fair.put_many(name, range(5))
        found = drained(fair)
        assert {one for one, _ in found} <= {name}
        return len(found)

    def test_a_settled_message_leaves_its_place_once(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(2))
        first = self.taken(fair, "gold")
        kept = self.taken(fair, "gold")
        assert self.may_be_taken(fair, "gold") == 0
        first.ack()
        first.nack()
        del first
        gc.collect()
        assert self.may_be_taken(fair, "gold") == 1
        assert not kept.settled

    def test_a_limit_set_while_a_consumer_waits_counts_its_message_until_it_is_settled(self) -> None:
        source = Source([])
        fair = source.worker_queue
        waiting = start(lambda: source.get(fair, 30))
        eventually(lambda: fair.waiting)
        fair.set_limit("gold", Limit(1))
        fair.put("gold", Message(b"", 1, False, None, None, FakeChannel("q")))
        message = result_of(waiting)
        assert fair.limit_stats()["gold"].in_hand == 1
        message.ack()
        assert fair.limit_stats()["gold"].in_hand == 0
        assert self.may_be_taken(fair, "gold") == 1

    def test_without_a_limit_a_message_that_was_waited_for_takes_no_place(self) -> None:
        source = Source([])
        fair = source.worker_queue
        waiting = start(lambda: source.get(fair, 30))
        eventually(lambda: fair.waiting)
        fair.put("gold", Message(b"", 1, False, None, None, FakeChannel("q")))
        message = result_of(waiting)
        fair.set_limit("gold", Limit(1))
        message.ack()
        assert fair.limit_stats()["gold"].in_hand == 0
        assert self.may_be_taken(fair, "gold") == 1

    def test_a_first_limit_that_is_set_while_many_are_taken_holds_for_those_that_follow(self) -> None:
        source = Source([])
        fair = source.worker_queue

        class Limiting(FakeChannel):
            """Sets a limit when it is asked whether it lives."""

            @property
            def alive(self) -> bool:
                if not fair.limit_stats():
                    fair.set_limit("gold", Limit(1))
                    for tag in (2, 3):
                        fair.put("gold", Message(b"", tag, False, None, None, FakeChannel("q")))
                return True

            @alive.setter
            def alive(self, value: bool) -> None:
                assert value

        fair.put("gold", Message(b"", 1, False, None, None, Limiting("q")))
        found = source.try_get_many(fair, 10)
        assert len(found) == 2
        assert fair.limit_stats()["gold"].in_hand == 1

    def test_a_place_of_a_tenant_that_was_forgotten_is_none_of_another(self) -> None:
        """With a rate alone, messages in hand are not counted, and the tenant is forgotten meanwhile."""
        clock = TickingClock()
        fair = FairQueue(default_quantum=1, clock=clock, limit=Limit(rate=1))
        late = self.taken(fair, "late")
        clock.ticks += 100
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        assert fair.stats() == {}
        fair.set_limit("gold", Limit(1))
        kept = self.taken(fair, "gold")
        late.ack()
        assert self.may_be_taken(fair, "gold") == 0
        kept.ack()
        assert self.may_be_taken(fair, "gold") == 1

    def test_a_place_of_before_the_limit_is_none_of_after(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(1))
        before = self.taken(fair, "gold")
        fair.set_limit("gold", Limit(rate=1e9))
        between = self.taken(fair, "gold")
        fair.set_limit("gold", Limit(1))
        kept = self.taken(fair, "gold")
        before.ack()
        del between
        gc.collect()
        assert fair.outlook("gold").in_hand == 1
        kept.ack()
        assert fair.outlook("gold").in_hand == 0

    @pytest.mark.parametrize("most", [3, 1])
    def test_a_place_outlives_another_concurrency(self, most: int) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(2))
        held = [self.taken(fair, "gold") for _ in range(2)]
        fair.set_limit("gold", Limit(most))
        assert self.may_be_taken(fair, "gold") == most - min(2, most)
        for message in held:
            message.ack()
        assert fair.outlook("gold").in_hand == most - min(2, most)


class TestRate:
    def test_a_burst_and_then_one_for_each_token(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 1, "free": 1}, clock=clock)
        fair.set_limit("gold", Limit(rate=4, burst=3))
        fair.put_many("gold", range(100))
        assert len(drained(fair)) == 3
        for _ in range(10):
            clock.ticks += 1  # half a token
            assert not drained(fair)
            clock.ticks += 1
            assert len(drained(fair)) == 1
        clock.ticks += 1000
        assert len(drained(fair)) == 3

    def test_nothing_is_credited_while_a_slot_waits_for_a_token(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 10, "free": 10}, clock=clock)
        fair.set_limit("gold", Limit(rate=1))
        fair.put_many("gold", range(1000))
        fair.put_many("free", range(1000))
        for _ in range(20):
            for _ in range(20):
                fair.get(block=False)
            clock.ticks += 8
        assert fair.stats()["gold"].deficit <= 20

    def test_anticipated_says_when_the_next_token_comes(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 1}, clock=clock, limit=Limit(rate=1))
        assert fair.anticipated() is None
        fair.put_many("gold", range(2))
        assert fair.anticipated() is None
        fair.get()
        assert fair.anticipated() == 1.0
        clock.ticks += 2
        assert fair.anticipated() == 0.75
        assert fair.outlook("gold").retry_after == 0.75
        clock.ticks += 6
        assert fair.anticipated() == 0.0
        assert fair.get(block=False) == ("gold", 1)

    def test_a_waiting_getter_wakes_with_the_token(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(rate=50))
        fair.put_many("gold", range(5))
        assert [fair.get(timeout=60)[1] for _ in range(5)] == list(range(5))

    def test_a_getter_that_waits_already_wakes_for_an_item_without_a_token(self) -> None:
        """It waits without an end, since nothing is queued; the put must make it look at the time."""
        fair = FairQueue({"gold": 1}, limit=Limit(rate=20))
        fair.put("gold", 0)
        fair.get()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(fair.get()), daemon=True)
        thread.start()
        eventually(lambda: fair.waiting() == [0])
        fair.put("gold", 1)
        thread.join(60)
        assert found == [("gold", 1)]

    def test_a_getter_that_sees_to_the_token_leaves_it_to_another(self) -> None:
        fair = FairQueue({"gold": 1}, limit=Limit(rate=0.2))  # the token is due long after the time-out
        fair.put_many("gold", range(2))
        fair.get()
        found: list[Any] = []

        def impatient() -> None:
            with pytest.raises(queue.Empty):
                fair.get(timeout=1)

        first = threading.Thread(target=impatient)
        first.start()
        eventually(lambda: fair.waiting() == [0])
        second = threading.Thread(target=lambda: found.append(fair.get()), daemon=True)
        second.start()
        first.join(60)
        second.join(60)
        assert found == [("gold", 1)]

    def test_a_clock_that_is_set_back_stands_still(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 1}, clock=clock, limit=Limit(rate=1))
        fair.put_many("gold", range(3))
        clock.ticks = 80
        fair.get()
        clock.ticks = 0
        assert not drained(fair)
        clock.ticks = 88
        assert len(drained(fair)) == 1

    def test_a_tenant_is_forgotten_when_its_bucket_is_full_and_not_before(self) -> None:
        clock = TickingClock()
        fair = FairQueue(default_quantum=1, clock=clock, limit=Limit(rate=1, burst=2))
        fair.put("a", 1)
        fair.get()
        clock.ticks = 7
        fair.put("b", 1)
        fair.get()
        assert list(fair.stats()) == ["a", "b"]
        clock.ticks = 8
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        assert list(fair.stats()) == ["b"]

    @pytest.mark.parametrize("start", [0.0, 1.7e9, 1e-9, 123456.789])
    @pytest.mark.parametrize("rate", [3, 7.3, 1e5])
    def test_a_token_comes_when_it_was_waited_for_whatever_the_clock_rounds(self, start: float, rate: float) -> None:
        now = [start]
        fair = FairQueue({"gold": 1}, clock=lambda: now[0], limit=Limit(rate=rate))
        fair.put_many("gold", range(3))
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(fair.get() for _ in range(3)), daemon=True)
        thread.start()

        def moved() -> bool:
            now[0] += 1 / rate
            return not thread.is_alive()

        eventually(moved)
        assert len(found) == 3


def test_all_that_is_due_is_taken_at_once() -> None:
    clock = TickingClock()
    fair = FairQueue({"gold": 1, "free": 1}, clock=clock, limit=Limit(rate=1, burst=3))
    fair.put_many("gold", range(9))
    fair.put_many("free", range(9))
    assert len(fair.get_many(9, timeout=0)) == 6
    clock.ticks += 16
    assert len(fair.get_many(9, timeout=0)) == 4


class TestOutlook:
    def test_it_says_what_the_limit_is_and_changes_nothing(self) -> None:
        fair = FairQueue({"gold": 1, "free": 1}, limit=Limit(2))
        fair.put_many("gold", range(3))
        look = fair.outlook("gold")
        assert (look.in_hand, look.concurrency, look.retry_after, look.before) == (0, 2, None, 0)
        drained(fair)
        look = fair.outlook("gold")
        assert (look.item, look.in_hand, look.before, look.turns, look.others) == (2, 2, None, None, None)
        assert FairQueue({"gold": 1}).outlook("gold").concurrency is None

    def test_the_figures_of_all_limits(self) -> None:
        clock = TickingClock()
        fair = FairQueue({"gold": 1, "free": 1, "other": 1}, clock=clock)
        assert fair.limit_stats() == {}
        fair.set_limit("gold", Limit(2))
        fair.set_limit("free", Limit(rate=2))
        for name in ("gold", "free", "other"):
            fair.put_many(name, range(5))
        drained(fair)
        assert fair.limit_stats() == {"gold": LimitStats(2, 2, None, 3), "free": LimitStats(None, None, 2.0, 4)}
        clock.ticks += 4  # no call has refilled the bucket, but there is a token again
        assert fair.limit_stats()["free"].withheld == 0


class TestArguments:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "a concurrency or a rate, got neither"),
            ({"concurrency": 0}, "concurrency of a limit must be a whole number from 1 to 2147483647, got 0"),
            ({"concurrency": True}, "concurrency of a limit must be"),
            ({"concurrency": 2.0}, "concurrency of a limit must be"),
            ({"rate": 0}, "rate of a limit must be"),
            ({"rate": -1}, "rate of a limit must be"),
            ({"rate": float("nan")}, "rate of a limit must be"),
            ({"rate": float("inf")}, "rate of a limit must be"),
            ({"rate": 10**400}, "rate of a limit must be"),
            ({"rate": "10/y"}, "rate of a limit must be .* got '10/y'"),
            ({"rate": "fast"}, "rate of a limit must be"),
            ({"rate": [1]}, "rate of a limit must be"),
            ({"rate": 1, "burst": 0}, "burst of a limit must be a whole number"),
            ({"burst": 2, "concurrency": 1}, "burst of a limit needs a rate"),
            ({"rate": "1/h", "burst": 2**31 - 1}, "what its rate brings in a year"),
        ],
    )
    def test_what_is_no_limit_is_refused(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            Limit(**given)

    @pytest.mark.parametrize(
        ("rate", "seconds"), [(10, 10.0), ("10", 10.0), ("10/s", 10.0), ("90/m", 1.5), ("36/h", 0.01)]
    )
    def test_a_rate_is_a_number_or_says_in_what_time(self, rate: float | str, seconds: float) -> None:
        assert Limit(rate=rate).per_second == pytest.approx(seconds)

    def test_a_queue_takes_limits_only(self) -> None:
        with pytest.raises(ValueError, match=r"limit must be a fairsched\.Limit or None, got 3"):
            FairQueue({"gold": 1}, limit=3)  # type: ignore[arg-type]
        fair = FairQueue({"gold": 1})
        with pytest.raises(ValueError, match=r"limit must be a fairsched\.Limit or None, got 3"):
            fair.set_limit("gold", 3)  # type: ignore[arg-type]
        with pytest.raises(KeyError, match="no slot is named 'free'"):
            fair.set_limit("free", Limit(1))


NAMES = ("a", "b", "c")
LIMITS = st.one_of(
    st.none(),
    st.integers(1, 3).map(Limit),
    st.builds(
        lambda most, rate, burst: Limit(most, rate=rate, burst=burst),
        st.none() | st.integers(1, 3),
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 4),
    ),
)


class LimitedQueue(RuleBasedStateMachine):
    """The order of service, the accounts and the sizes are those of the oracle, whatever is done."""

    @initialize(quanta=st.lists(st.integers(1, 5), min_size=3, max_size=3), limit=LIMITS)
    def begin(self, quanta: list[int], limit: Limit | None) -> None:
        self.clock = TickingClock()
        self.oracle = ReferenceLimits(dict(zip(NAMES, quanta, strict=True)), limit)
        self.fair = FairQueue(dict(zip(NAMES, quanta, strict=True)), clock=self.clock, limit=limit)
        self.number = 0

    @property
    def now(self) -> int:
        return self.clock.ticks * TICK_NS

    @rule(name=st.sampled_from(NAMES), cost=st.integers(1, 7), count=st.integers(1, 5))
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
            assert found == self.oracle.get(self.now)

    @rule(count=st.integers(1, 6))
    def get_many(self, count: int) -> None:
        try:
            found = list(self.fair.get_many(count, timeout=0))
        except queue.Empty:
            found = []
        expected = []
        while len(expected) < count and (one := self.oracle.get(self.now)) is not None:
            expected.append(one)
        assert found == expected

    @precondition(lambda self: any(self.oracle.in_hand.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, count in self.oracle.in_hand.items() if count]))
        self.fair.release(name)
        self.oracle.release(name)

    @rule(ticks=st.integers(1, 20))
    def wait(self, ticks: int) -> None:
        self.clock.ticks += ticks

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

    @rule(name=st.sampled_from(NAMES), limit=LIMITS)
    def set_limit(self, name: str, limit: Limit | None) -> None:
        self.fair.set_limit(name, limit)
        self.oracle.set_limit(name, limit, self.now)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "fair"):
            return
        assert self.fair.qsize() == self.oracle.qsize()
        for name, stats in self.fair.stats().items():
            slot = self.oracle.slots[name]
            assert (stats.deficit, stats.served, stats.queued) == (slot.deficit, slot.served, len(slot.fifo)), name
            look = self.fair.outlook(name)
            assert look.in_hand == (None if self.oracle.most[name] is None else self.oracle.in_hand[name])
        self.check_figures()

    def check_figures(self) -> None:
        found = self.fair.limit_stats()
        for name, slot in self.oracle.slots.items():
            most, interval = self.oracle.most[name], self.oracle.buckets[name].interval
            if most is None and not interval:
                assert name not in found
                continue
            stopped = self.oracle.is_full(name) or self.oracle.retry_after(name, self.now) is not None
            assert found[name] == LimitStats(
                None if most is None else self.oracle.in_hand[name],
                most,
                1e9 / interval if interval else None,
                len(slot.fifo) if stopped else 0,
            )


TestLimitedQueue = LimitedQueue.TestCase


@settings(max_examples=200)
@given(
    most=st.none() | st.integers(1, 4),
    rate=st.none() | st.sampled_from([0.5, 1, 3, 7.7, 100]),
    burst=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "get", "release", "wait"]), st.integers(0, 3), st.integers(1, 9)),
        max_size=150,
    ),
)
def test_the_bounds_hold_for_tenants_that_come_and_go(
    most: int | None, rate: float | None, burst: int, steps: list[tuple[str, int, int]]
) -> None:
    """At most `most` in hand; at most burst + rate * t in any t seconds; no getter idles while one may be served."""
    if most is None and rate is None:
        return
    clock = TickingClock()
    fair = FairQueue(
        default_quantum=1, clock=clock, limit=Limit(most, rate=rate, burst=burst if rate is not None else None)
    )
    queued: Counter[int] = Counter()
    in_hand: Counter[int] = Counter()
    times: dict[int, list[float]] = {tenant: [] for tenant in range(4)}

    def may(tenant: int) -> bool:
        now = clock()
        allowed = rate is None or all(
            len([t for t in times[tenant] if t >= since]) + 1 <= burst + rate * (now - since) + 1e-6
            for since in times[tenant] or [now]
        )
        return queued[tenant] > 0 and (most is None or in_hand[tenant] < most) and allowed

    for what, tenant, count in steps:
        if what == "put":
            fair.put_many(tenant, range(count))
            queued[tenant] += count
        elif what == "wait":
            clock.ticks += count
        elif what == "release" and in_hand[tenant]:
            fair.release(tenant)
            in_hand[tenant] -= 1
        elif what == "get":
            possible = {tenant for tenant in range(4) if may(tenant)}
            try:
                found = fair.get(block=False)[0]
            except queue.Empty:
                assert not possible, "a slot may be served, and none is"
                continue
            assert found in possible
            queued[found] -= 1
            in_hand[found] += most is not None
            times[found].append(clock())


@given(
    quanta=st.lists(st.integers(1, 8), min_size=3, max_size=5),
    most=st.integers(1, 3),
    workers=st.integers(1, 6),
    order=st.randoms(use_true_random=False),
)
def test_the_shares_of_the_others_hold_while_one_is_at_its_limit(
    quanta: list[int], most: int, workers: int, order: Any
) -> None:
    """The first slot is limited. The others are served as their quanta say, within a turn and what it leaves over."""
    fair = FairQueue(dict(enumerate(quanta)))
    fair.set_limit(0, Limit(most))
    for slot in range(len(quanta)):
        fair.put_many(slot, range(2000))
    busy: list[int] = []
    served: Counter[int] = Counter()
    for _ in range(600):
        while len(busy) < workers:
            slot = fair.get(block=False)[0]  # never empty: the others have no limit
            busy.append(slot)
            served[slot] += 1
        done = busy.pop(order.randrange(len(busy)))
        if done == 0:
            fair.release(0)
        assert busy.count(0) <= most
    for one in range(1, len(quanta)):
        for other in range(1, len(quanta)):
            assert (
                abs(served[one] / quanta[one] - served[other] / quanta[other])
                <= 1 + 1 / quanta[one] + 1 / quanta[other]
            )
        # Nor has the one with a limit more than its share.
        assert served[0] / quanta[0] - served[one] / quanta[one] <= 2 + 1 / quanta[0] + 1 / quanta[one]


class IntrusiveClock(TickingClock):
    """A clock that uses the queue, as any clock of the caller's own may."""

    def __init__(self, visits: list[Any]) -> None:
        super().__init__()
        self.visits = visits
        self.visit: Any = lambda what: None
        self.depth = 0

    def __call__(self) -> float:
        if self.visits and self.depth < 3:
            self.depth += 1
            self.visit(self.visits.pop())
            self.depth -= 1
        return super().__call__()


ACTIONS = st.tuples(
    st.sampled_from(["put", "get", "get", "many", "release", "wait", "outlook", "limit", "waiter"]),
    st.integers(0, 2),
    st.integers(1, 6),
)


class Visited:
    """A queue and what is known of it, while any call may use it wherever its clock is read."""

    def __init__(self, most: int, rate: int, visits: list[tuple[str, int, int]]) -> None:
        self.most, self.rate = most, rate
        self.clock = IntrusiveClock(visits)
        self.clock.visit = self.act
        self.fair = FairQueue(default_quantum=2, clock=self.clock, limit=Limit(most, rate=rate, burst=3))
        self.was_put: Counter[int] = Counter()
        self.got: Counter[int] = Counter()
        self.in_hand: Counter[int] = Counter()
        self.waiters: list[Any] = []

    def act(self, step: tuple[str, int, int]) -> None:
        what, name, count = step
        getattr(self, what)(name, count)

    def put(self, name: int, count: int) -> None:
        self.fair.put_many(name, range(count))
        self.was_put[name] += count

    def get(self, _name: int, _count: int) -> None:
        with contextlib.suppress(queue.Empty):
            self.take([self.fair.get(block=False)])

    def many(self, _name: int, count: int) -> None:
        with contextlib.suppress(queue.Empty):
            self.take(list(self.fair.get_many(count, timeout=0)))

    def take(self, found: list[Any]) -> None:
        for name, _ in found:
            self.got[name] += 1
            self.in_hand[name] += 1
            assert self.in_hand[name] <= self.most

    def release(self, name: int, _count: int) -> None:
        if self.in_hand[name]:
            self.in_hand[name] -= 1
            self.fair.release(name)

    def wait(self, _name: int, count: int) -> None:
        self.clock.ticks += count

    def outlook(self, name: int, _count: int) -> None:
        self.fair.anticipated()
        assert all((one.in_hand or 0) <= self.most for one in self.fair.limit_stats().values())
        with contextlib.suppress(KeyError):
            look = self.fair.outlook(name)
            assert look.in_hand is None or look.in_hand <= self.most

    def limit(self, name: int, count: int) -> None:
        self.fair.set_limit(name, Limit(self.most, rate=self.rate, burst=count))

    def waiter(self, _name: int, _count: int) -> None:
        self.waiters.append(self.fair.call_when_ready(lambda: None))

    def finish(self) -> None:
        self.clock.visits.clear()
        for waiter in self.waiters:
            waiter.leave()
        for name in self.in_hand.elements():
            self.fair.release(name)
        while self.fair.qsize():
            self.clock.ticks += 8000
            for name, _ in drained(self.fair):
                self.got[name] += 1
                self.fair.release(name)


@settings(max_examples=300)
@given(
    most=st.integers(1, 3),
    rate=st.sampled_from([1, 4, 1000]),
    steps=st.lists(ACTIONS, max_size=80),
    visits=st.lists(ACTIONS, max_size=40),
)
def test_others_may_come_in_wherever_the_clock_is_read(
    most: int, rate: int, steps: list[tuple[str, int, int]], visits: list[tuple[str, int, int]]
) -> None:
    world = Visited(most, rate, visits)
    for step in steps:
        world.act(step)
    world.finish()
    assert world.got == +world.was_put
