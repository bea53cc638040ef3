"""A callback that raises no Exception: all waiters are told first, nothing is lost, and then it is raised."""

from __future__ import annotations

import queue as queues
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.clock import ManualClock
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import ShutDown
from fairsched.pullqueue import Entry, PullQueue, Subscription, Target


class Interrupt(BaseException):
    """An exception that no handler may swallow."""


class Interrupter:
    """A callback that is interrupted the first `times` times."""

    def __init__(self, times: int = 10**9, result: Any = True) -> None:
        self.times = times
        self.calls = 0
        self.result = result

    def __call__(self, *_: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise Interrupt(self.calls)
        return self.result


class FailingClock(ManualClock):
    """A clock that raises what the test sets, and how often each thread has read it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.reads_of: Counter[int] = Counter()

    def __call__(self) -> float:
        self.reads_of[threading.get_ident()] += 1
        if self.error is not None:
            raise self.error
        return self.now

    def wait_for(self, threads: int) -> None:
        """Wait until so many threads wait: each reads the clock once for its deadline, and again when it has a seat."""
        reach(lambda: sum(reads > 1 for reads in list(self.reads_of.values())) >= threads)


def drain(subscription: Subscription) -> list[Any]:
    found = []
    for entry in iter(subscription.pull, None):
        found.append(entry.item)
        assert entry.ack()
    return found


# -- on_work -----------------------------------------------------------------------------------------------------------


def test_all_are_told_though_one_is_interrupted() -> None:
    """Four browsers and a consumer are told by one put: none is left that is claimed, and does not know it."""
    queue = PullQueue()
    interrupted = [Interrupter(0), Interrupter(0)]
    calm: list[str] = []
    queue.subscribe("b0", acquires=False, on_work=interrupted[0])
    queue.subscribe("b1", acquires=False, on_work=lambda s: calm.append(s.name))
    queue.subscribe("b2", acquires=False, on_work=interrupted[1])
    queue.subscribe("b3", acquires=False, on_work=lambda s: calm.append(s.name))
    queue.subscribe("c", on_work=lambda s: calm.append(s.name))
    calm.clear()
    for callback in interrupted:
        callback.times = 2  # each has been called once, when it joined
    with pytest.raises(Interrupt):
        queue.put("m")
    assert sorted(calm) == ["b1", "b3", "c"]
    assert [callback.calls for callback in interrupted] == [2, 2]


def test_all_that_one_call_claims_are_told() -> None:
    """Held messages come free at once, and claims a consumer for each: after an interrupt, puts still wake others."""
    clock = FailingClock()
    queue = PullQueue(clock=clock)
    told: list[str] = []
    workers = [queue.subscribe("w0", on_work=Interrupter())]
    workers += [queue.subscribe(f"w{i}", on_work=lambda s: told.append(s.name)) for i in range(1, 4)]
    for item in range(4):
        queue.put(item, not_before=1)
    clock.now = 2
    with pytest.raises(Interrupt):
        queue.expire()
    assert sorted(told) == ["w1", "w2", "w3"]
    assert all(worker.notified_count == 1 for worker in workers)


def test_threads_that_wait_are_woken_though_another_is_interrupted() -> None:
    clock = FailingClock()
    queue = PullQueue(clock=clock)
    queue.subscribe("interrupted", on_work=Interrupter())
    workers = [queue.subscribe(f"w{i}") for i in range(3)]
    for item in range(4):
        queue.put(item, not_before=1)
    waiting = [start(lambda worker=worker: worker.get(SOON).item) for worker in workers]
    clock.wait_for(3)
    clock.now = 2
    with pytest.raises(Interrupt):
        queue.expire()
    assert len({result_of(thread) for thread in waiting}) == 3


def test_the_first_interrupt_is_raised() -> None:
    queue = PullQueue()
    for name in ("first", "second"):

        def interrupt(subscription: Subscription) -> None:
            if queue.depth:
                raise Interrupt(subscription.name)

        queue.subscribe(name, acquires=False, on_work=interrupt)
    with pytest.raises(Interrupt, match="first"):
        queue.put("m")


def test_what_left_the_queue_reaches_the_alternate_though_on_work_is_interrupted() -> None:
    clock, dead = FailingClock(), []
    queue = PullQueue(clock=clock, alternate=lambda item, reason: dead.append((item, reason)))
    queue.subscribe(on_work=Interrupter(), filter=lambda item: item == "held")
    queue.put("expires", ttl=1)
    queue.put("held", not_before=1)
    clock.now = 2
    with pytest.raises(Interrupt):
        queue.expire()
    assert dead == [("expires", "expired")]


def test_putters_go_on_though_the_alternate_is_interrupted() -> None:
    """A release that makes room, as its message goes to the alternate."""
    clock = FailingClock()
    queue = PullQueue(max_depth=1, overflow="flow", max_deliveries=1, alternate=Interrupter(1), clock=clock)
    queue.put(0)
    entry = queue.subscribe("w").pull()
    assert entry is not None
    putter = start(lambda: queue.put("late", timeout=SOON))
    clock.wait_for(1)
    with pytest.raises(Interrupt):
        entry.release()
    assert result_of(putter) is None
    assert (queue.depth, list(queue.undelivered)) == (1, [(0, "delivery_limit")])


# -- pulls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True], ids=["pull", "pull_many"])
def test_what_was_pulled_goes_back_when_the_call_is_interrupted(many: bool) -> None:
    clock = FailingClock()
    queue = PullQueue(clock=clock, max_deliveries=1)
    worker = queue.subscribe("worker", priority=1, credit=2)
    queue.put("m")
    queue.put("held", not_before=1)
    interrupter = Interrupter(1)
    browser = queue.subscribe("browser", acquires=False, interested=False, on_work=interrupter)
    interrupter.calls = interrupter.times  # not yet
    browser.interested = True
    interrupter.calls = 0
    clock.now = 2
    with pytest.raises(Interrupt):
        worker.pull_many(5) if many else worker.pull()
    assert (queue.depth, queue.available, worker.credit) == (2, 2, 2)
    entries = [worker.pull(), worker.pull()]
    assert [(entry.item, entry.delivery_count, entry.redelivered) for entry in entries if entry is not None] == [
        ("m", 0, False),
        ("held", 0, False),
    ]


def test_a_browser_sees_again_what_it_was_not_given() -> None:
    clock = FailingClock()
    queue = PullQueue(clock=clock)
    browser = queue.subscribe("browser", acquires=False, credit=1)
    queue.put("m")
    queue.put("held", not_before=1)
    queue.subscribe("worker", on_work=Interrupter(1), filter=lambda item: item == "held", priority=1)
    clock.now = 2
    with pytest.raises(Interrupt):
        browser.pull()
    assert browser.credit == 1
    entry = browser.pull()
    assert entry is not None
    assert entry.item == "m"
    assert entry.ack()
    entry = browser.pull()
    assert entry is not None
    assert entry.item == "held"
    assert entry.ack()
    assert browser.pull() is None


# -- settling ----------------------------------------------------------------------------------------------------------


class Item:
    """Something that says when it is gone."""

    gone = 0

    def __del__(self) -> None:
        Item.gone += 1


def test_an_item_goes_though_the_filter_is_interrupted_that_its_ack_asks() -> None:
    Item.gone = 0
    queue = PullQueue()
    interrupter = Interrupter(0)
    worker = queue.subscribe("worker", credit=1, filter=interrupter)
    queue.put(Item())
    queue.put("next")
    entry = worker.pull()
    assert entry is not None
    interrupter.times = 10**9
    with pytest.raises(Interrupt):
        entry.ack()
    assert entry.settled
    assert (queue.depth, worker.credit) == (1, 1)
    del entry
    assert Item.gone == 1
    interrupter.times = 0
    assert drain(worker) == ["next"]


@pytest.mark.parametrize("settle", [Entry.ack, Entry.release, Entry.reject], ids=["ack", "release", "reject"])
def test_an_entry_stays_unsettled_when_the_clock_fails(settle: Callable[[Entry], bool]) -> None:
    clock = FailingClock()
    queue = PullQueue(clock=clock)
    queue.put("m", ttl=10)
    entry = queue.subscribe().pull()
    assert entry is not None
    clock.error = Interrupt()
    with pytest.raises(Interrupt):
        settle(entry)
    clock.error = None
    assert not entry.settled
    assert settle(entry)
    assert queue.available == queue.depth == (0 if settle is Entry.ack else 1)


# -- filters -----------------------------------------------------------------------------------------------------------


def test_a_filter_that_is_interrupted_has_refused_nothing() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker", filter=Interrupter(1))
    with pytest.raises(Interrupt):
        queue.put("m")
    assert drain(worker) == ["m"]


def test_a_filter_that_is_interrupted_in_a_pull_has_refused_nothing() -> None:
    queue = PullQueue()
    queue.put("m")
    interrupter = Interrupter(2)
    worker = queue.subscribe("worker", filter=interrupter, interested=False)
    with pytest.raises(Interrupt):
        worker.interested = True
    assert worker.interested
    with pytest.raises(Interrupt):
        worker.pull()
    assert drain(worker) == ["m"]


def test_a_consumer_with_work_is_told_though_a_filter_above_is_interrupted() -> None:
    queue = PullQueue()
    told: list[str] = []
    queue.subscribe("above", priority=1, filter=Interrupter(1, False), on_work=lambda s: told.append(s.pull()))
    queue.subscribe("below", on_work=lambda s: told.append(s.pull().item))
    with pytest.raises(Interrupt):
        queue.put("m")
    assert "m" in told


# -- joining and leaving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [Interrupt, SystemExit])
def test_a_consumer_that_is_interrupted_while_it_joins_is_not_there(raised: type[BaseException]) -> None:
    def interrupt(*_: Any) -> Any:
        raise raised

    for callback in ("on_work", "filter"):
        queue = PullQueue()
        queue.put("m")
        with pytest.raises(raised):
            queue.subscribe("gone", exclusive=True, **{callback: interrupt})
        assert not any(queue.lists().values())
        assert drain(queue.subscribe("next", exclusive=True)) == ["m"]


def test_no_consumer_joins_when_the_clock_fails() -> None:
    clock = FailingClock()
    queue = PullQueue(clock=clock)
    queue.put("m", ttl=10)
    clock.error = Interrupt()
    with pytest.raises(Interrupt):
        queue.subscribe("gone", exclusive=True, filter=bool)
    clock.error = None
    assert not any(queue.lists().values())
    assert drain(queue.subscribe("next")) == ["m"]


def test_a_consumer_that_leaves_is_gone_though_another_is_interrupted() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker", priority=1)
    queue.subscribe("other", on_work=Interrupter(1))
    queue.put("m")
    with pytest.raises(Interrupt):
        worker.cancel()
    assert queue.lists()["notified"] == ["other"]
    with pytest.raises(ShutDown):
        worker.get(0)


def test_threads_that_wait_see_that_it_was_cancelled_though_another_is_interrupted() -> None:
    queue = PullQueue(live_consumers=1, clock=(clock := FailingClock()))
    worker = queue.subscribe("worker", filter=lambda item: False)
    queue.subscribe("other", on_work=Interrupter(1))
    queue.put("m")
    waiting = [start(lambda: worker.get(SOON)) for _ in range(3)]
    clock.wait_for(3)
    with pytest.raises(Interrupt):
        worker.cancel()
    assert all(isinstance(result_of(thread), ShutDown) for thread in waiting)


@pytest.mark.parametrize("end", [PullQueue.close, Subscription.cancel], ids=["close", "cancel"])
def test_all_threads_that_wait_at_one_subscription_are_woken(end: Callable[[Any], Any]) -> None:
    queue = PullQueue(clock=(clock := FailingClock()))
    worker = queue.subscribe("worker")
    waiting = [start(lambda: worker.get(SOON)) for _ in range(5)]
    clock.wait_for(5)
    end(queue if end is PullQueue.close else worker)
    assert all(isinstance(result_of(thread), ShutDown) for thread in waiting)


def test_each_of_several_threads_at_one_subscription_gets_one() -> None:
    """Only the first of several messages is announced: the thread that takes it has another look."""
    queue = PullQueue(clock=(clock := FailingClock()))
    worker = queue.subscribe("worker")
    waiting = [start(lambda: worker.get(SOON).item) for _ in range(5)]
    clock.wait_for(5)
    for item in range(5):
        queue.put(item)
    assert sorted(result_of(thread) for thread in waiting) == list(range(5))


def test_another_thread_looks_when_one_is_interrupted_in_its_look() -> None:
    """Of three threads, the first takes a message, the second finds one that has expired, and is interrupted."""

    def get() -> Any:
        try:
            return worker.get(SOON).item
        except Interrupt:
            return "interrupted"

    queue = PullQueue(clock=(clock := FailingClock()), alternate=Interrupter(1))
    worker = queue.subscribe("worker", interested=False)
    queue.put("first")
    queue.put("expires", ttl=1)
    queue.put("last")
    waiting = [start(get) for _ in range(3)]
    clock.wait_for(3)
    clock.now = 2
    worker.interested = True
    assert {result_of(thread) for thread in waiting} == {"first", "interrupted", "last"}
    assert list(queue.undelivered) == [("expires", "expired")]


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_target_that_fails_lets_go_of_its_subscriptions() -> None:
    class Wish:
        def __bool__(self) -> bool:
            raise Interrupt

    subscriptions = [PullQueue().subscribe() for _ in range(2)]
    with pytest.raises(Interrupt):
        Target(subscriptions, interested=Wish())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="belongs to a target"):
        Target([*subscriptions, subscriptions[0]])
    assert Target(subscriptions).pull() is None


def test_a_target_that_is_interrupted_while_it_tells_lets_go_of_its_subscriptions() -> None:
    queue = PullQueue()
    queue.put("m")
    subscription = queue.subscribe("s", filter=Interrupter(1), interested=False)
    with pytest.raises(Interrupt):
        Target([subscription])
    entry = Target([subscription]).get(SOON)
    assert entry.item == "m"


def test_a_target_tells_and_cancels_all_though_one_is_interrupted() -> None:
    queues_of = [PullQueue() for _ in range(3)]
    subscriptions = [queue.subscribe("s", filter=Interrupter(1), interested=False, priority=1) for queue in queues_of]
    target = Target(subscriptions, interested=False)
    for queue in queues_of:
        queue.put("m")
    with pytest.raises(Interrupt):
        target.interested = True
    assert [subscription.interested for subscription in subscriptions] == [True] * 3
    assert sorted(entry.item for entry in target.pull_many(9)) == ["m"] * 3
    for queue in queues_of:
        queue.put("m")
        queue.subscribe("other", on_work=Interrupter())
    with pytest.raises(Interrupt):
        target.cancel()
    assert [queue.lists()["notified"] for queue in queues_of] == [["other"]] * 3


def test_what_interrupts_is_not_taken_for_a_time_out() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker", filter=Interrupter(1))
    with pytest.raises(Interrupt):
        queue.put("m")
    assert worker.get(0).item == "m"
    with pytest.raises(queues.Empty):
        worker.get(0)
