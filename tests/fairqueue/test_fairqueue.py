"""FairQueue: the thread-safe, blocking queue of objects."""

from __future__ import annotations

import _thread
import gc
import math
import pickle
import queue
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.clock import ManualClock
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import Batch, FairQueue, FairschedError, ShutDown
from fairsched.pullqueue import PullQueue, Target


class TestService:
    def test_shares(self) -> None:
        fair = FairQueue({"gold": 3, "free": 1})
        fair.put_many("gold", range(300))
        fair.put_many("free", range(300))
        served = [slot for slot, _ in fair.get_many(200)]
        assert (served.count("gold"), served.count("free")) == (150, 50)

    def test_fifo_within_a_slot(self) -> None:
        fair = FairQueue({"a": 1, "b": 2})
        fair.put_many(["a", "b"] * 50, range(100))
        got = fair.get_many(100)
        assert [item for slot, item in got if slot == "a"] == list(range(0, 100, 2))
        assert [item for slot, item in got if slot == "b"] == list(range(1, 100, 2))

    def test_cost(self) -> None:
        fair = FairQueue({"light": 10, "heavy": 10})
        fair.put_many("light", range(1000), [1] * 1000)
        for i in range(1000):
            fair.put("heavy", i, cost=5)
        fair.get_many(600)
        stats = fair.stats()
        assert (stats["light"].served, stats["heavy"].served) == (500, 100)

    def test_qsize(self) -> None:
        fair = FairQueue({"a": 1})
        assert fair.qsize() == 0
        fair.put_many("a", "xyz")
        assert fair.qsize() == 3
        fair.get()
        assert fair.qsize() == 2

    def test_new_quantum_takes_effect_on_the_backlog_at_once(self) -> None:
        fair = FairQueue({"a": 1000, "b": 1})
        fair.put_many("a", range(2000))
        fair.put_many("b", range(2000))
        fair.get_many(10)
        fair.set_quantum("a", 1)
        fair.set_quantum("b", 3)
        served = fair.get_many(400).slots
        assert served.count("b") == pytest.approx(300, abs=3)

    def test_settle_and_hold(self) -> None:
        fair = FairQueue({"a": 1, "b": 1})
        fair.put_many(["a", "b"] * 20, range(40))
        assert fair.get() == ("a", 0)
        fair.settle("a", 3)
        assert fair.get_many(5).slots == ["b", "b", "b", "b", "a"]
        fair.hold("a", True)
        assert fair.stats()["a"].held
        fair.hold("a", False)
        assert not fair.stats()["a"].held


class TestBatch:
    def test_is_a_sequence_of_pairs(self) -> None:
        fair = FairQueue({"a": 2, "b": 1})
        fair.put_many(["a", "a", "b"], [1, 2, 3])
        got = fair.get_many(10)
        assert isinstance(got, Batch)
        assert got == [("a", 1), ("a", 2), ("b", 3)]
        assert got == Batch(["a", "a", "b"], [1, 2, 3])
        assert got != Batch(["a"], [1])
        assert got != 5
        assert (len(got), got[0], got[-1]) == (3, ("a", 1), ("b", 3))
        assert got[1:] == [("a", 2), ("b", 3)]
        assert (got.slots, got.items) == (["a", "a", "b"], [1, 2, 3])
        assert repr(got) == "Batch([('a', 1), ('a', 2), ('b', 3)])"

    def test_no_more_than_asked_for(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put_many("a", range(10))
        assert fair.get_many(4).items == [0, 1, 2, 3]
        assert fair.get_many(0) == []
        assert fair.qsize() == 6

    @pytest.mark.parametrize("n", [-1, 1.5, None])
    def test_bad_number(self, n: Any) -> None:
        with pytest.raises(ValueError, match="n must be an integer of 0 or more"):
            FairQueue({"a": 1}).get_many(n)

    def test_numpy_array_of_names(self) -> None:
        fair = FairQueue({"a": 1, "b": 1})
        fair.put_many(np.array(["a", "b"]), [1, 2])
        assert fair.get_many(2) == [("a", 1), ("b", 2)]

    def test_a_tuple_is_one_name(self) -> None:
        fair = FairQueue({("a", 1): 1})
        fair.put_many(("a", 1), [5, 6])
        assert fair.get() == (("a", 1), 5)

    @pytest.mark.parametrize(
        ("slots", "items", "costs", "error"),
        [
            (["a", "x"], [1, 2], None, KeyError),
            (["a", []], [1, 2], None, TypeError),
            (["a"], [1, 2], None, ValueError),
            ("a", [1, 2], [1], ValueError),
            ("a", [1, 2], [1, 0], ValueError),
            ("a", [1, 2], [1, math.nan], ValueError),
            ("a", [1, 2], [1, 2**62], OverflowError),
        ],
    )
    def test_all_or_nothing(self, slots: Any, items: Any, costs: Any, error: type[Exception]) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(error):
            fair.put_many(slots, items, costs)
        assert fair.qsize() == 0

    def test_empty(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put_many("a", [])
        assert fair.qsize() == 0


class TestTenants:
    def test_appear_on_first_use_and_are_forgotten_when_idle(self) -> None:
        fair = FairQueue({"gold": 5}, default_quantum=2)
        fair.put("acme", 1)
        fair.put_many(["gold", "zeta"], [2, 3])
        assert {name: figures.quantum for name, figures in fair.stats().items()} == {"gold": 5, "acme": 2, "zeta": 2}
        assert sorted(slot for slot, _ in fair.get_many(3)) == ["acme", "gold", "zeta"]
        assert list(fair.stats()) == ["gold"]

    def test_a_million_tenants_leave_nothing_behind(self) -> None:
        fair = FairQueue(default_quantum=1)
        for start_at in range(0, 1_000_000, 50_000):
            names = list(range(start_at, start_at + 50_000))
            fair.put_many(names, names)
            assert fair.get_many(50_000).items == names
        assert fair.stats() == {}

    def test_a_tenant_in_debt_is_remembered_until_it_has_paid(self) -> None:
        fair = FairQueue({"other": 1}, default_quantum=1)
        fair.put("acme", 1)
        fair.get()
        assert fair.stats().keys() == {"other"}
        fair.settle("acme", 2)
        assert fair.stats()["acme"].deficit == -2
        fair.put_many("other", range(10))
        fair.put("acme", 2)
        assert fair.get_many(3).slots == ["other", "other", "acme"]
        assert fair.stats().keys() == {"other"}

    def test_a_refund_to_a_forgotten_tenant_is_void(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.settle("acme", -5)
        assert fair.stats() == {}

    @pytest.mark.parametrize(("difference", "error"), [(1.5, ValueError), (2**62, OverflowError)])
    def test_a_refused_settlement_leaves_no_tenant(self, difference: Any, error: type[Exception]) -> None:
        fair = FairQueue(default_quantum=1)
        with pytest.raises(error, match="cost difference"):
            fair.settle("acme", difference)
        assert fair.stats() == {}

    def test_set_quantum_makes_a_tenant_permanent(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.set_quantum("acme", 7)
        fair.put("acme", 1)
        fair.get()
        assert fair.stats()["acme"].quantum == 7

    def test_a_held_tenant_is_kept_until_it_is_let_go(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.put("acme", 1)
        fair.hold("acme", True)
        fair.get()
        assert "acme" in fair.stats()
        fair.hold("acme", False)
        assert fair.stats() == {}

    def test_a_failed_batch_leaves_no_tenant(self) -> None:
        fair = FairQueue({"gold": 1}, default_quantum=1)
        with pytest.raises(TypeError):
            fair.put_many(["acme", "gold", []], [1, 2, 3])
        assert list(fair.stats()) == ["gold"]

    def test_names_that_use_the_queue_while_they_are_looked_up(self) -> None:
        """A name's __eq__ empties the queue and so a tenant found before is forgotten: no item is lost."""
        fair = FairQueue(default_quantum=1)

        class Awkward:
            def __hash__(self) -> int:
                return hash("acme")

            def __eq__(self, other: object) -> bool:
                if fair.qsize():
                    fair.get_many(100)
                return False

        fair.put("acme", "old")
        fair.put_many(["acme", Awkward()], ["new", "awkward"])
        assert sorted(fair.get_many(10).items) == ["awkward", "new"]


class TestBlocking:
    def test_empty(self) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        with pytest.raises(queue.Empty):
            fair.get(timeout=0)
        with pytest.raises(queue.Empty):
            fair.get(timeout=0.01)
        with pytest.raises(queue.Empty):
            fair.get_many(3, timeout=0.01)

    def test_full(self) -> None:
        fair = FairQueue({"a": 1}, maxsize=2)
        fair.put_many("a", [1, 2])
        with pytest.raises(queue.Full):
            fair.put("a", 3, block=False)
        with pytest.raises(queue.Full):
            fair.put("a", 3, timeout=0.01)
        with pytest.raises(queue.Full):
            fair.put_many("a", [3], timeout=0)
        with pytest.raises(ValueError, match="maxsize=2, got 3"):
            fair.put_many("a", [3, 4, 5])
        with pytest.raises(KeyError):
            fair.put("x", 3)
        assert fair.get_many(9).items == [1, 2]

    def test_get_waits_for_put(self) -> None:
        fair = FairQueue({"a": 1})
        getter = start(fair.get)
        fair.put("a", "item")
        assert result_of(getter) == ("a", "item")

    def test_put_waits_for_get(self) -> None:
        fair = FairQueue({"a": 1}, maxsize=1)
        fair.put("a", 1)
        putters = [start(lambda: fair.put("a", 2)), start(lambda: fair.put_many("a", [3], None))]
        got = sorted(fair.get(timeout=SOON)[1] for _ in range(3))
        assert got == [1, 2, 3]
        assert [result_of(putter) for putter in putters] == [None, None]

    def test_a_large_batch_waiting_for_room_does_not_block_a_small_put(self) -> None:
        fair = FairQueue({"a": 1}, maxsize=3)
        fair.put_many("a", [1, 2, 3])
        large = start(lambda: fair.put_many("a", [7, 8, 9]))
        small = start(lambda: fair.put("a", 4))
        got = [fair.get(timeout=SOON)[1] for _ in range(7)]
        assert sorted(got) == [1, 2, 3, 4, 7, 8, 9]
        assert (result_of(large), result_of(small)) == (None, None)

    def test_own_clock(self) -> None:
        """A minute passes for the queue when the test says so."""
        clock = ManualClock()
        fair = FairQueue({"a": 1}, clock=clock)
        getter = start(lambda: fair.get(timeout=60))
        clock.now = 59.9
        fair.put("a", 1)
        assert result_of(getter) == ("a", 1)
        getter = start(lambda: fair.get(timeout=60))
        while not getter[1]:
            clock.now += 61
        assert isinstance(result_of(getter), queue.Empty)

    def test_a_clock_that_raises_does_not_leave_a_waiter_behind(self) -> None:
        times = iter([0.0, 0.0])
        fair = FairQueue({"a": 1}, clock=lambda: next(times))
        with pytest.raises(StopIteration):
            fair.get(timeout=5)
        fair.put("a", 1)
        assert fair.get() == ("a", 1)

    @pytest.mark.parametrize("timeout", [-1, -0.001, math.nan])
    def test_bad_timeout(self, timeout: float) -> None:
        fair = FairQueue({"a": 1}, maxsize=1)
        with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more"):
            fair.get(timeout=timeout)
        fair.put("a", 1)
        with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more"):
            fair.put("a", 1, timeout=timeout)

    @pytest.mark.parametrize("timeout", ["x", b"1", [], 1j])
    def test_a_timeout_that_is_no_number(self, timeout: Any) -> None:
        fair, full = FairQueue({"a": 1}), FairQueue({"a": 1}, maxsize=1)
        full.put("a", 1)
        jobs, stopped = PullQueue(), PullQueue(overflow="flow", max_depth=1)
        stopped.put(1)
        calls: list[Callable[[], Any]] = [
            lambda: fair.get(timeout=timeout),
            lambda: fair.get_many(2, timeout=timeout),
            lambda: full.put("a", 1, timeout=timeout),
            lambda: full.put_many("a", [1], timeout=timeout),
            lambda: jobs.subscribe().get(timeout=timeout),
            lambda: Target([jobs.subscribe()]).get(timeout=timeout),
            lambda: stopped.put(2, timeout=timeout),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=rf"timeout must be a number .*, got {re.escape(repr(timeout))}$"):
                call()

    def test_a_signal_interrupts_the_main_thread(self) -> None:
        """Ctrl-C must work while the main thread waits, and what arrives later must still be got."""
        fair = FairQueue({"a": 1})

        def interrupt() -> None:
            reach(fair.waiting)
            _thread.interrupt_main()

        interrupting = start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            fair.get(timeout=SOON)
        assert result_of(interrupting) is None
        fair.put("a", 1)
        assert fair.get(timeout=SOON) == ("a", 1)


class TestPriorities:
    """Getters of a higher priority are served first, and woken first; no other is kept waiting for them in vain."""

    def waiters(self, fair: FairQueue, *priorities: int) -> list[tuple[threading.Thread, list[Any]]]:
        """Getters that wait, each of which came after the one before it."""
        started = []
        for count, priority in enumerate(priorities, len(fair.waiting()) + 1):
            started.append(start(lambda priority=priority: fair.get(timeout=SOON, priority=priority)))
            reach(lambda count=count: len(fair.waiting()) >= count)
        return started

    def test_the_highest_first_and_equals_in_turn(self) -> None:
        fair = FairQueue({"a": 1})
        waiters = self.waiters(fair, 0, 2, 10, 2)
        assert fair.waiting() == [10, 2, 2, 0]
        for turn, item in [(2, "w"), (1, "x"), (3, "y"), (0, "z")]:
            fair.put("a", item)
            assert result_of(waiters[turn]) == ("a", item)

    def test_a_batch_is_handed_over_from_the_highest_to_the_lowest(self) -> None:
        fair = FairQueue({"a": 1})
        waiters = self.waiters(fair, *range(8))
        fair.put_many("a", range(8))
        assert sorted(result_of(waiter)[1] for waiter in waiters) == list(range(8))

    def test_a_lower_one_does_not_take_what_a_higher_one_was_woken_for(self) -> None:
        fair = FairQueue({"a": 1})
        for item in range(50):
            waiter = self.waiters(fair, 1)[0]
            fair.put("a", item)
            with pytest.raises(queue.Empty):
                fair.get(block=False)
            assert result_of(waiter) == ("a", item)

    def test_a_lower_one_takes_what_no_higher_one_waits_for(self) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(queue.Empty):
            fair.get(timeout=0, priority=10)
        fair.put_many("a", [1, 2])
        assert fair.get(priority=-5) == ("a", 1)
        assert fair.get_many(3, priority=-(2**31)) == [("a", 2)]

    def test_after_a_higher_one_has_given_up_the_item_is_for_a_lower_one(self) -> None:
        clock = ManualClock()
        fair = FairQueue({"a": 1}, clock=clock)
        high = start(lambda: fair.get(timeout=5, priority=1))
        low = start(lambda: fair.get(timeout=10_000))
        reach(lambda: fair.waiting() == [1, 0])
        while not high[1]:
            clock.now = min(clock.now + 6, 5_000)
        assert isinstance(result_of(high), queue.Empty)
        fair.put("a", "item")
        assert result_of(low) == ("a", "item")

    def test_all_priorities_leave_at_a_shutdown(self) -> None:
        fair = FairQueue({"a": 1})
        waiters = self.waiters(fair, 0, 3, -3, 3)
        fair.shutdown()
        assert all(isinstance(result_of(waiter), ShutDown) for waiter in waiters)

    @pytest.mark.parametrize(
        ("priority", "error"),
        [
            (1.5, ValueError),
            ("1", ValueError),
            (None, ValueError),
            (True, ValueError),
            (2**31, OverflowError),
            (-(2**31) - 1, OverflowError),
            (2**70, OverflowError),
        ],
    )
    def test_bad_priority(self, priority: Any, error: type[Exception]) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(error, match="priority must be an integer"):
            fair.get(priority=priority)
        with pytest.raises(error, match="priority must be an integer"):
            fair.get_many(1, priority=priority)


class TestCallbacks:
    """Waiting without blocking a thread."""

    def test_called_once_for_each_item_and_kept_until_it_leaves(self) -> None:
        fair = FairQueue({"a": 1})
        calls: list[str] = []
        first = fair.call_when_ready(lambda: calls.append("first"))
        second = fair.call_when_ready(lambda: calls.append("second"))
        fair.put("a", 1)
        assert calls == ["first"]
        fair.put("a", 2)
        assert calls == ["first", "second"]
        assert fair.get(block=False) == ("a", 1)
        first.leave()
        first.leave()
        assert fair.get(block=False) == ("a", 2)
        second.again()
        fair.put("a", 3)
        assert calls == ["first", "second", "second"]
        second.leave()
        with pytest.raises(RuntimeError, match="has left"):
            second.again()

    def test_called_at_once_when_something_is_queued(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put("a", 1)
        calls: list[int] = []
        waiter = fair.call_when_ready(lambda: calls.append(1), priority=3)
        assert calls == [1]
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        assert fair.get(block=False, priority=3) == ("a", 1)
        waiter.leave()

    def test_what_a_waiter_does_not_take_is_handed_over(self) -> None:
        fair = FairQueue({"a": 1})
        calls: list[str] = []
        high = fair.call_when_ready(lambda: calls.append("high"), priority=1)
        low = fair.call_when_ready(lambda: calls.append("low"))
        getter = start(lambda: fair.get(timeout=SOON, priority=-1))
        fair.put("a", 1)
        assert calls == ["high"]
        high.leave()
        assert calls == ["high", "low"]
        low.leave()
        assert result_of(getter) == ("a", 1)

    def test_a_forgotten_waiter_leaves(self) -> None:
        fair = FairQueue({"a": 1})
        waiter = fair.call_when_ready(lambda: None, priority=1)
        fair.put("a", 1)
        del waiter
        assert fair.get(block=False) == ("a", 1)

    def test_one_in_a_cycle_is_collected(self) -> None:
        class Loop:
            waiter: Any

            def tell(self) -> None:
                pass

        loop, fair = Loop(), FairQueue({"a": 1})
        loop.waiter = fair.call_when_ready(loop.tell)
        alive = weakref.ref(loop)
        del loop
        gc.collect()
        assert alive() is None
        fair.put("a", 1)
        assert fair.get(block=False) == ("a", 1)

    def test_called_at_a_shutdown(self) -> None:
        fair = FairQueue({"a": 1})
        calls: list[int] = []
        waiter = fair.call_when_ready(lambda: calls.append(1))
        fair.shutdown()
        assert calls == [1]
        with pytest.raises(ShutDown):
            fair.get(block=False)
        waiter.leave()

    def test_a_callback_may_use_the_queue_and_may_raise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fair = FairQueue({"a": 1})
        got: list[Any] = []
        raised: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda report: raised.append(report.exc_type))

        def take() -> None:
            got.append(fair.get(block=False))
            waiter.again()
            raise ArithmeticError

        waiter = fair.call_when_ready(take)
        fair.put_many("a", [1, 2])
        fair.put("a", 3)
        assert [item for _, item in got] == [1, 2, 3]
        assert set(raised) == {ArithmeticError}
        waiter.leave()

    def test_errors(self) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(ValueError, match="callback must be callable, got 3"):
            fair.call_when_ready(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="priority must be an integer"):
            fair.call_when_ready(print, priority="x")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="has left"):
            type(fair.call_when_ready(print))().again()


class TestShutdown:
    """As queue.Queue.shutdown behaves in Python 3.13."""

    def test_gets_drain_then_raise(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put_many("a", [1, 2])
        fair.shutdown()
        with pytest.raises(ShutDown):
            fair.put("a", 3)
        with pytest.raises(ShutDown):
            fair.put_many("a", [3])
        assert fair.get() == ("a", 1)
        assert fair.get_many(5) == [("a", 2)]
        for call in (fair.get, lambda: fair.get(block=False), lambda: fair.get(timeout=1), lambda: fair.get_many(2)):
            with pytest.raises(ShutDown):
                call()

    def test_immediate_drops_what_is_queued(self) -> None:
        class Item:
            pass

        item = Item()
        alive = weakref.ref(item)
        fair = FairQueue({"a": 1})
        fair.put("a", item)
        del item
        fair.shutdown(immediate=True)
        assert alive() is None
        assert fair.qsize() == 0
        with pytest.raises(ShutDown):
            fair.get()

    def test_immediate_counts_nothing_as_served(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put_many("a", range(5))
        fair.get()
        fair.shutdown(immediate=True)
        figures = fair.stats()["a"]
        assert (figures.queued, figures.served, figures.work) == (0, 1, 1)

    def test_immediate_forgets_tenants_that_came_on_demand(self) -> None:
        fair = FairQueue({"kept": 1}, default_quantum=1)
        for tenant in ("kept", "x", "y", "held", "in debt"):
            fair.put_many(tenant, range(3))
        for _ in range(7):
            fair.get()
        fair.hold("held", True)
        fair.settle("in debt", 9)
        fair.shutdown(immediate=True)
        assert set(fair.stats()) == {"kept", "held", "in debt"}
        fair.hold("held", False)
        fair.settle("in debt", -9)
        assert set(fair.stats()) <= {"kept", "in debt"}

    def test_wakes_all_that_wait(self) -> None:
        fair = FairQueue({"a": 1})
        getters = [start(fair.get) for _ in range(4)]
        full = FairQueue({"a": 1}, maxsize=1)
        full.put("a", 1)
        putters = [start(lambda: full.put("a", 2)) for _ in range(4)]
        fair.shutdown()
        full.shutdown()
        assert all(isinstance(result_of(waiter), ShutDown) for waiter in getters + putters)

    def test_error_is_caught_as_the_standard_librarys(self) -> None:
        assert issubclass(ShutDown, FairschedError)
        if sys.version_info >= (3, 13):
            assert issubclass(ShutDown, queue.ShutDown)

    def test_twice(self) -> None:
        fair = FairQueue({"a": 1})
        fair.shutdown()
        fair.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            fair.get()


class TestErrors:
    @pytest.mark.parametrize("quantum", [0, -1, 1.0, math.nan, "4", True])
    def test_quantum(self, quantum: Any) -> None:
        with pytest.raises(ValueError, match="quantum of slot 'a' must be a positive integer"):
            FairQueue({"a": quantum})
        with pytest.raises(ValueError, match="default_quantum must be a positive integer"):
            FairQueue(default_quantum=quantum)
        with pytest.raises(ValueError, match="quantum of slot 'a' must be a positive integer"):
            FairQueue({"a": 1}).set_quantum("a", quantum)

    @pytest.mark.parametrize("cost", [0, -5, 2.0, math.nan, "1", None])
    def test_cost(self, cost: Any) -> None:
        fair = FairQueue({"a": 1})
        with pytest.raises(ValueError, match="cost must be a positive integer"):
            fair.put("a", 1, cost=cost)
        assert fair.qsize() == 0

    def test_overflow(self) -> None:
        with pytest.raises(OverflowError, match=str(2**63)):
            FairQueue({"a": 1}).put("a", 1, cost=2**63)

    def test_unknown_slot(self) -> None:
        fair = FairQueue({"a": 1})
        for call in (
            lambda: fair.put("x", 1),
            lambda: fair.set_quantum("x", 1),
            lambda: fair.settle("x", 1),
            lambda: fair.hold("x", True),
        ):
            with pytest.raises(KeyError, match="'x'"):
                call()

    @pytest.mark.parametrize("maxsize", [1.5, "3", None, True])
    def test_maxsize(self, maxsize: Any) -> None:
        with pytest.raises(ValueError, match="maxsize must be an integer"):
            FairQueue({"a": 1}, maxsize=maxsize)

    def test_clock(self) -> None:
        with pytest.raises(ValueError, match="clock must be callable"):
            FairQueue({"a": 1}, clock=3.0)

    def test_refuses_to_pickle(self) -> None:
        with pytest.raises(TypeError):
            pickle.dumps(FairQueue({"a": 1}))


class TestReferences:
    """The queue owns one reference to each item, and shows it to the garbage collector."""

    def test_counts(self) -> None:
        item = object()
        before = sys.getrefcount(item)
        fair = FairQueue({"a": 1})
        fair.put_many("a", [item] * 10)
        fair.put("a", item)
        assert sys.getrefcount(item) == before + 11
        fair.get()
        batch = fair.get_many(3)
        assert sys.getrefcount(item) == before + 10
        del batch
        assert sys.getrefcount(item) == before + 7
        del fair
        assert sys.getrefcount(item) == before

    def test_a_cycle_through_the_queue_is_collected(self) -> None:
        class Node:
            pass

        node = Node()
        node.queue = FairQueue({"a": 1})  # type: ignore[attr-defined]
        node.queue.put("a", node)  # type: ignore[attr-defined]
        node.queue.put("a", (node.queue,))  # type: ignore[attr-defined]
        alive = weakref.ref(node)
        del node
        gc.collect()
        assert alive() is None

    def test_a_live_queue_keeps_its_items(self) -> None:
        fair = FairQueue({"a": 1})
        for i in range(1000):
            fair.put("a", [i])
        gc.collect()
        assert [item for _, item in fair.get_many(1000)] == [[i] for i in range(1000)]

    def test_finalizers_may_use_the_queue(self) -> None:
        class Echo:
            def __init__(self, fair: FairQueue, left: int) -> None:
                self.fair, self.left = fair, left

            def __del__(self) -> None:
                if self.left:
                    self.fair.put("a", Echo(self.fair, self.left - 1))

        fair = FairQueue({"a": 1})
        fair.put("a", Echo(fair, 3))
        for _ in range(4):
            assert fair.qsize() == 1
            fair.get()
        assert fair.qsize() == 0


def test_idle_waiters_use_no_processor() -> None:
    """Four threads wait for two seconds: what they use is a small part of a core."""
    fair = FairQueue({"a": 1})

    def used() -> float:
        before = time.thread_time()
        with pytest.raises(queue.Empty):
            fair.get(timeout=2.0)
        return time.thread_time() - before

    waiters = [start(used) for _ in range(4)]
    assert sum(result_of(waiter) for waiter in waiters) < 0.05 * 2.0
