"""FairQueue where Python code runs in the middle of a call: callbacks, clocks, odd names, finalizers.

tests/reentrancy tries all such points at random; these are the cases that once went wrong, one by one.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import enum
import gc
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import Dwrr, FairQueue, ShutDown


@dataclasses.dataclass(frozen=True)
class Tenant:
    number: int


class Colour(enum.Enum):
    RED = 0
    GREEN = 1


class TestForgetting:
    """A tenant is forgotten when it is idle at that moment, whichever call reported it."""

    def test_a_callback_puts_to_a_tenant_that_was_just_emptied(self) -> None:
        fair = FairQueue(default_quantum=1)
        getter = start(lambda: fair.get(timeout=SOON, priority=5))
        reach(lambda: fair.waiting() == [5])

        def refill() -> None:
            if not fair.backlog("t"):
                fair.put("t", "again")

        waiter = fair.call_when_ready(refill)
        fair.put_many(["t", "u"], ["first", "second"])
        got = [result_of(getter)]
        waiter.leave()
        while fair.qsize():
            got.append(fair.get(block=False))
        assert sorted(got) == [("t", "again"), ("t", "first"), ("u", "second")]
        assert fair.stats() == {}

    def test_a_look_that_takes_nothing_retires_a_slot(self) -> None:
        """With anticipation, one that ends in Empty may find that a debt is paid; the tenant gets an item after it."""
        fair = FairQueue({"gold": 1}, default_quantum=1, anticipation=1, clock=lambda: 0.0)
        fair.hold("gold", True)
        fair.settle("t", 2)
        fair.put("gold", 0)
        fair.put("u", 1)
        assert [fair.get(block=False), fair.get(block=False)] == [("gold", 0), ("u", 1)]
        fair.put("u", 2)
        with pytest.raises(queue.Empty):  # gold is waited for; before that, t has paid
            fair.get(block=False)
        fair.put_many(["t", "u", "t"], [3, 4, 5])
        fair.anticipate(0)
        assert sorted(fair.get(block=False) for _ in range(4)) == [("t", 3), ("t", 5), ("u", 2), ("u", 4)]
        assert list(fair.stats()) == ["gold"]

    def test_a_name_that_is_let_go_of_may_use_the_queue(self) -> None:
        """The destructor of a forgotten name puts to the very tenant: it is another one by then."""
        fair = FairQueue(default_quantum=1)

        class Name:
            def __hash__(self) -> int:
                return 1

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Name)

            def __del__(self) -> None:
                if fair.qsize() == 0 and not done:
                    done.append(True)
                    fair.put(Name(), "from the destructor")

        done: list[bool] = []
        fair.put(Name(), "first")
        assert fair.get(block=False)[1] == "first"
        gc.collect()
        done.append(True)
        assert fair.get(block=False)[1] == "from the destructor"
        assert fair.stats() == {}


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [uuid.UUID(int=7), Colour.RED, Tenant(3), (Tenant(1), Colour.GREEN), 1.5, True, None, frozenset({1}), "\ud800"],
        ids=repr,
    )
    def test_any_hashable_object_is_one(self, name: Hashable) -> None:
        fair = FairQueue(default_quantum=2)
        fair.put(name, 1)
        fair.put_many([name, "other", name], [2, 3, 4])
        assert fair.backlog(name) == 3
        assert [item for slot, item in fair.get_many(4) if slot == name] == [1, 2, 4]
        assert fair.stats() == {}

    def test_equal_names_of_different_types_are_one(self) -> None:
        fair = FairQueue(default_quantum=1)
        fair.put(1, "a")
        fair.put(True, "b")
        fair.put(1.0, "c")
        assert fair.backlog(1) == 3

    def test_equal_hashes(self) -> None:
        class Same(str):
            def __hash__(self) -> int:
                return 5

        fair = FairQueue(default_quantum=1)
        names = [Same(letter) for letter in "abcdefghij"]
        fair.put_many(names, names)
        for name in names:
            assert fair.backlog(name) == 1
        assert sorted(fair.get_many(10).items) == names
        assert fair.stats() == {}

    def test_two_that_come_at_the_same_time_are_one(self) -> None:
        """While an unknown name is compared with another, another thread adds it."""
        fair = FairQueue(default_quantum=1)
        inside: list[Any] = []

        class Name:
            def __init__(self, text: str) -> None:
                self.text = text

            def __hash__(self) -> int:
                return 5

            def __eq__(self, other: object) -> bool:
                if not inside and "new" in (self.text, getattr(other, "text", "")):
                    inside.append(True)
                    fair.put(Name("new"), "inner")
                return isinstance(other, Name) and other.text == self.text

        fair.put(Name("old"), "old")
        fair.put(Name("new"), "outer")
        inside.append(True)
        assert fair.backlog(Name("new")) == 2
        assert sorted(fair.get_many(3).items) == ["inner", "old", "outer"]

    @pytest.mark.parametrize("raising", ["__hash__", "__eq__"])
    def test_what_a_name_raises_reaches_the_caller_and_changes_nothing(self, raising: str) -> None:
        fair = FairQueue(default_quantum=1)

        def fail(*_: object) -> Any:
            raise ArithmeticError

        bad = type("Bad", (), {"__hash__": lambda self: hash("t"), "__eq__": lambda *_: False, raising: fail})()
        fair.put("t", 1)
        calls: list[Callable[[], Any]] = [
            lambda: fair.put(bad, 2),
            lambda: fair.put_many(["t", bad], [2, 3]),
            lambda: fair.backlog(bad),
            lambda: fair.settle(bad, 1),
            lambda: fair.set_quantum(bad, 1),
            lambda: fair.hold(bad, True),
        ]
        for call in calls:
            with pytest.raises(ArithmeticError):
                call()
        assert (fair.qsize(), list(fair.stats())) == (1, ["t"])

    def test_a_batch_keeps_the_tenants_that_it_has_found(self) -> None:
        """They are not forgotten, though others empty them while the batch waits for room."""
        fair = FairQueue(default_quantum=1, maxsize=2)
        fair.put_many(["t", "u"], [1, 2])
        putter = start(lambda: fair.put_many(["t", "u"], [3, 4], timeout=SOON))
        fair.get_many(2)
        assert result_of(putter) is None
        assert sorted(fair.get_many(2)) == [("t", 3), ("u", 4)]
        assert fair.stats() == {}


class TestRoom:
    @pytest.mark.parametrize("many", [False, True])
    def test_room_is_looked_for_after_the_name(self, many: bool) -> None:
        """Finding the slot lets others put: what is there then counts."""
        fair = FairQueue(default_quantum=1, maxsize=1)

        class Name:
            def __hash__(self) -> int:
                if not fair.qsize():
                    fair.put("other", 1)
                return 5

        with pytest.raises(queue.Full):
            fair.put_many([Name()], [2], block=False) if many else fair.put(Name(), 2, block=False)
        assert fair.qsize() == 1
        assert list(fair.stats()) == ["other"]


class TestArguments:
    def test_hold_asks_for_truth_before_it_begins(self) -> None:
        """A question empties the tenant, which is forgotten."""
        fair = FairQueue({"a": 1}, default_quantum=1)

        class Truth:
            def __bool__(self) -> bool:
                fair.get_many(1)
                return False

        fair.put("t", 1)
        fair.hold("t", True)
        fair.hold("t", False)
        with pytest.raises(KeyError):
            fair.hold("t", Truth())  # type: ignore[arg-type]
        fair.put("t", 2)
        assert fair.get(block=False) == ("t", 2)
        assert list(fair.stats()) == ["a"]

    def test_stats_beside_puts_are_of_one_moment(self) -> None:
        fair = FairQueue(default_quantum=1)
        over = threading.Event()

        def churn() -> None:
            number = 0
            while not over.is_set():
                number += 1
                fair.put_many([Tenant(number), Tenant(-number)], [1, 1])
                fair.get_many(2)

        churner = start(churn)
        for _ in range(300):
            figures = fair.stats()
            assert sum(slot.queued for slot in figures.values()) in (0, 2)
        over.set()
        assert result_of(churner) is None

    def test_a_second_init_changes_nothing(self) -> None:
        fair = FairQueue({"a": 1})
        fair.put("a", 1)
        getter = start(lambda: [fair.get(timeout=SOON) for _ in range(2)])
        reach(fair.waiting)
        fair.__init__({"b": 1})  # type: ignore[misc]
        fair.put("a", 2)
        assert result_of(getter) == [("a", 1), ("a", 2)]

    def test_new_without_init_is_a_queue(self) -> None:
        fair = FairQueue.__new__(FairQueue, default_quantum=1)
        fair.put("a", 1)
        assert fair.get() == ("a", 1)
        with pytest.raises(TypeError):
            Dwrr.__new__(Dwrr)  # type: ignore[call-arg]

    @pytest.mark.parametrize("now", [float("inf"), float("-inf"), float("nan"), 1e300])
    def test_a_clock_that_tells_no_time(self, now: float) -> None:
        fair = FairQueue({"a": 1, "b": 1}, anticipation=1, clock=lambda: now)
        fair.put("a", 1)
        fair.hold("a", True)
        fair.put("b", 2)
        assert [fair.get(block=False), fair.get(block=False)] == [("a", 1), ("b", 2)]
        fair.put("b", 3)
        with pytest.raises(queue.Empty):  # a is waited for
            fair.get(block=False)
        assert fair.anticipated() == 1
        fair.put("a", 4)
        assert fair.get(block=False) == ("a", 4)


class TestCallbacks:
    def test_one_that_is_interrupted_ends_nothing_and_passes_ctrl_c_on(self) -> None:
        """The others are told; the main thread gets the interrupt after the put."""
        fair = FairQueue({"a": 1})
        told: list[int] = []

        def interrupted() -> None:
            raise KeyboardInterrupt

        def put_and_wait() -> None:
            fair.put_many("a", range(4))
            reach(lambda: False)

        waiters = [fair.call_when_ready(interrupted)]
        waiters += [fair.call_when_ready(lambda me=me: told.append(me)) for me in range(3)]
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                put_and_wait()
        finally:
            signal.signal(signal.SIGINT, handler)
        assert told == [0, 1, 2]
        assert fair.qsize() == 4
        for waiter in waiters:
            waiter.leave()

    def test_one_that_exits_is_reported_and_the_others_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fair = FairQueue({"a": 1})
        told: list[int] = []
        raised: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda report: raised.append(report.exc_type))
        waiters = [fair.call_when_ready(sys.exit), fair.call_when_ready(lambda: told.append(1))]
        fair.put_many("a", range(2))
        assert (raised, told) == ([SystemExit], [1])
        for waiter in waiters:
            waiter.leave()

    def test_a_waiter_that_leaves_while_others_are_told(self) -> None:
        """The first callback has all waiters leave, and as many come anew: none of those is forgotten."""
        fair = FairQueue({"a": 1})
        told: list[str] = []
        again: list[Any] = []

        def leave_all() -> None:
            for waiter in waiters:
                waiter.leave()
            again.extend(fair.call_when_ready(lambda me=me: told.append(f"new {me}")) for me in range(3))

        waiters = [fair.call_when_ready(leave_all)]
        waiters += [fair.call_when_ready(lambda me=me: told.append(f"old {me}")) for me in range(2)]
        fair.put_many("a", range(3))
        assert {"new 0", "new 1", "new 2"} <= set(told)
        for waiter in again:
            waiter.leave()
        assert len(fair.get_many(3)) == 3

    def test_waiting_again_before_being_called(self) -> None:
        fair = FairQueue({"a": 1})
        told: list[int] = []
        waiters: list[Any] = []

        def first() -> None:
            told.append(0)
            waiters[1].again()
            fair.put("a", "more")

        waiters.append(fair.call_when_ready(first))
        waiters.append(fair.call_when_ready(lambda: told.append(1)))
        fair.put_many("a", ["x", "y"])
        assert told[0] == 0
        assert 1 in told
        for waiter in waiters:
            waiter.leave()


class TestAnticipation:
    @pytest.mark.parametrize("change", ["settle", "let go", "no patience"])
    def test_a_getter_that_waits_for_a_turn_that_is_over_goes_on(self, change: str) -> None:
        """A thread and an event loop wait for t; then there is nothing to wait for, and u has an item for each."""
        fair = FairQueue({"t": 5, "u": 5}, anticipation=3600)
        told: list[int] = []
        fair.put("t", 0)
        fair.put_many("u", [1, 2])
        fair.hold("t", True)
        assert fair.get() == ("t", 0)
        getter = start(lambda: fair.get(timeout=SOON))
        reach(fair.waiting)
        reach(lambda: fair.anticipated() is not None)
        waiter = fair.call_when_ready(lambda: told.append(1))
        told.clear()
        if change == "settle":
            fair.settle("t", 100)
        elif change == "let go":
            fair.hold("t", False)
        else:
            fair.anticipate(0)
        assert result_of(getter)[0] == "u"
        reach(lambda: told)
        assert fair.anticipated() is None
        assert fair.get(block=False)[0] == "u"
        waiter.leave()

    def test_a_slot_that_was_let_go_of_is_not_held_again(self) -> None:
        now = [0.0]
        fair = FairQueue(default_quantum=5, anticipation=1.0, clock=lambda: now[0])
        fair.put("t", 0)
        fair.put("u", 0)
        fair.hold("t", True)
        fair.get(block=False)
        with pytest.raises(queue.Empty):
            fair.get(block=False)
        fair.hold("t", False)
        assert fair.anticipated() is None
        now[0] = 2.0
        assert fair.anticipated() is None
        assert fair.get(block=False) == ("u", 0)
        fair.put("v", 0)
        fair.get(block=False)
        assert fair.stats() == {}


class TestDwrr:
    def test_a_name_during_which_another_thread_pushes(self) -> None:
        """add_slot looks last whether a call without the GIL is under way, which writes to the table it would move."""
        number = 300_000
        slots = np.arange(number, dtype=np.int32) % 8
        for _ in range(5):
            engine = Dwrr({f"s{i}": 1 for i in range(8)})
            pusher = threading.Thread(target=engine.push_many, args=(slots, np.arange(number, dtype=np.uint64)))

            class Name:
                def __hash__(self) -> int:
                    if not pusher.ident:  # noqa: B023
                        pusher.start()  # noqa: B023
                        while pusher.is_alive():  # noqa: B023
                            try:
                                engine.stats()  # noqa: B023
                            except RuntimeError:
                                break
                    return 5

            with contextlib.suppress(RuntimeError):
                engine.add_slot(Name(), 1)
            pusher.join()
            assert sum(slot.queued for slot in engine.stats().values()) == number

    def test_costs_that_are_changed_after_they_were_checked(self) -> None:
        costs = array.array("q", [1, 1])
        fair = FairQueue(default_quantum=1)

        class Name:
            def __hash__(self) -> int:
                costs[0] = -5
                return 1

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Name)

        fair.put_many([Name(), Name()], ["x", "y"], costs)
        fair.get()
        (figures,) = fair.stats().values()
        assert (figures.work, figures.deficit) == (1, 0)

    def test_a_cost_that_removes_the_slot(self) -> None:
        engine = Dwrr({"a": 1, "b": 1})

        class Cost:
            def __index__(self) -> int:
                engine.remove_slot("a")
                return 1

        with pytest.raises(KeyError):
            engine.push("a", 1, Cost())
        with pytest.raises(KeyError):
            engine.settle("a", 1)
        engine.push("b", 2)
        assert engine.pop() == ("b", 2)
        assert engine.pop() is None

    def test_shutdown_is_not_overtaken_by_a_name(self) -> None:
        fair = FairQueue({"a": 1})

        class Name(str):
            def __hash__(self) -> int:
                fair.shutdown()
                return hash("a")

        with pytest.raises(ShutDown):
            fair.put(Name("a"), 1)
        assert fair.qsize() == 0
