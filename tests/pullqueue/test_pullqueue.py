"""PullQueue beyond what its plain reference knows: threads that wait, memory, callbacks from inside, odd moments."""

from __future__ import annotations

import gc
import logging
import queue as queues
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.clock import ManualClock
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import ShutDown
from fairsched.errors import ExclusiveSubscription
from fairsched.pullqueue import Entry, PullQueue, Subscription, Target


class Thing:
    """Something that weak references can watch."""

    other: Any = None


def drain(subscription: Subscription) -> list[Any]:
    return [entry.item for entry in iter(subscription.pull, None)]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_get_waits_for_a_put() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker")
    waiting = start(lambda: worker.get(SOON).item)
    reach(lambda: queue.lists()["interested"] == ["worker"])
    queue.put("job")
    assert result_of(waiting) == "job"


def test_each_waiting_thread_gets_one() -> None:
    queue, count = PullQueue(), 8
    workers = [queue.subscribe() for _ in range(count)]
    waiting = [start(lambda worker=worker: worker.get(SOON).item) for worker in workers]
    for number in range(count):
        queue.put(number)
    assert sorted(result_of(thread) for thread in waiting) == list(range(count))


@pytest.mark.parametrize(
    "wake",
    [
        lambda queue, worker: queue.close(),
        lambda queue, worker: worker.cancel(),
    ],
    ids=["close", "cancel"],
)
def test_get_ends_when_there_will_be_nothing(wake: Callable[[PullQueue, Subscription], None]) -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker")
    waiting = start(lambda: worker.get(SOON))
    wake(queue, worker)
    assert isinstance(result_of(waiting), ShutDown)


def test_get_on_a_closed_queue_waits_for_what_is_held() -> None:
    clock = ManualClock()
    queue = PullQueue(clock=clock)
    worker, other = queue.subscribe("worker"), queue.subscribe("other", credit=0)
    target = Target([queue.subscribe("target", filter=lambda item: item == "third")])
    for item, moment in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
        queue.put(item, not_before=clock.now + moment)
    queue.close()
    with pytest.raises(ShutDown):
        other.get(SOON)
    with pytest.raises(queues.Empty):
        worker.get(0)
    waiting = start(lambda: [worker.get().item, worker.get().item])
    clock.now += 2.5
    assert result_of(waiting) == ["first", "second"]
    waiting = start(lambda: target.get().item)
    clock.now += 1
    assert result_of(waiting) == "third"
    for consumer in (worker, target):
        with pytest.raises(ShutDown):
            consumer.get()


def test_a_target_does_not_wait_for_what_was_held_and_is_not_for_it() -> None:
    """It has time left, but nothing will come: when the message is due, its group is another's."""
    clock = ManualClock()
    queue = PullQueue(clock=clock, groups="standard")
    queue.put(0, key=1)
    entry = queue.subscribe().pull()
    target = Target([queue.subscribe()])
    queue.put(1, key=1, not_before=clock.now + 1)
    queue.close()
    waiting = start(lambda: target.get(1000))
    clock.now += 2
    assert isinstance(result_of(waiting), ShutDown)
    assert entry.item == 0


def test_pull_many_names_what_is_wrong() -> None:
    worker = PullQueue().subscribe()
    for number in (-1, 1.5, "x"):
        with pytest.raises(ValueError, match=rf"^n must be an integer of 0 or more, got {number!r}$"):
            worker.pull_many(number)  # type: ignore[arg-type]


def test_get_gives_up_in_time() -> None:
    clock = ManualClock()
    worker = PullQueue(clock=clock).subscribe()
    before = clock.reads
    waiting = start(lambda: worker.get(5.0))
    reach(lambda: clock.reads > before, "get never asked when its time is over")
    clock.now = 5.0
    assert isinstance(result_of(waiting), queues.Empty)
    with pytest.raises(ValueError, match="-1"):
        worker.get(-1)


def test_get_takes_a_held_message_when_it_is_due() -> None:
    clock = ManualClock()
    queue = PullQueue(clock=clock)
    worker = queue.subscribe("worker")
    queue.put("later", not_before=3.0)
    waiting = start(lambda: worker.get(60.0).item)
    clock.now = 3.5
    assert result_of(waiting) == "later"


def test_get_waits_for_interest_and_credit() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker", credit=0, interested=False)
    queue.put("job")
    waiting = start(lambda: worker.get(SOON).item)
    worker.credit = 1
    worker.interested = True
    assert result_of(waiting) == "job"


def test_the_main_thread_notices_signals_while_it_waits() -> None:
    worker = PullQueue().subscribe()
    timer = threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT))

    def wait() -> None:
        timer.start()  # in here, so that it is never early
        worker.get(SOON)

    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()
    with pytest.raises(queues.Empty):
        worker.get(0)


def test_put_waits_for_room_or_not() -> None:
    queue = PullQueue(max_depth=2, overflow="flow")
    worker = queue.subscribe("worker")
    queue.put(0)
    queue.put(1)
    with pytest.raises(queues.Full, match="2 messages of at most 2"):
        queue.put(2, block=False)
    with pytest.raises(queues.Full):
        queue.put(2, timeout=0)
    putting = start(lambda: queue.put(2))
    first = worker.get(SOON)
    assert queue.depth == 2  # 80 % of two, rounded up, is two; but a third does not fit
    first.ack()
    assert result_of(putting) is None
    assert drain(worker) == [1, 2]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_an_item_goes_with_its_message() -> None:
    queue = PullQueue()
    worker = queue.subscribe()
    thing = Thing()
    watch = weakref.ref(thing)
    queue.put(thing)
    del thing
    entry = worker.pull()
    assert entry is not None
    assert watch() is not None
    assert entry.ack()
    del entry
    assert watch() is None


@pytest.mark.parametrize("state", ["queued", "pulled", "released", "held", "cancelled"])
def test_cycles_through_the_queue_are_collected(state: str) -> None:
    queue = PullQueue()
    thing = Thing()
    thing.other = queue
    worker = queue.subscribe(on_work=lambda s, thing=thing: None)
    watch, watch_queue = weakref.ref(thing), weakref.ref(queue)
    queue.put(thing, not_before=time.monotonic() + 1000 if state == "held" else None)
    entry = worker.pull() if state in ("pulled", "released") else None
    if entry is not None and state == "released":
        entry.release()
    if state == "cancelled":
        worker.cancel()
    if entry is not None:
        thing.other = [queue, entry]
    del thing, worker, queue, entry
    gc.collect()
    gc.collect()
    assert watch() is None
    assert watch_queue() is None


def test_a_queue_that_is_dropped_lets_its_items_go() -> None:
    queue = PullQueue()
    things = [Thing() for _ in range(10)]
    watches = [weakref.ref(thing) for thing in things]
    for thing in things:
        queue.put(thing)
    del things, thing, queue
    gc.collect()
    assert [watch() for watch in watches] == [None] * 10


def test_a_cancelled_subscription_is_let_go() -> None:
    queue = PullQueue()
    watches = []
    for _ in range(100):
        subscription = queue.subscribe()
        watches.append(weakref.ref(subscription))
        subscription.cancel()
    del subscription
    queue.put(0)
    assert sum(watch() is not None for watch in watches) == 0


def test_a_subscription_stays_without_a_reference() -> None:
    queue, told = PullQueue(), []
    queue.subscribe(on_work=lambda subscription: told.append(subscription.name), name="kept")
    gc.collect()
    queue.put(0)
    assert told == ["kept"]


def test_an_entry_outlives_the_rest() -> None:
    worker = PullQueue().subscribe()
    queue_of_worker = worker  # the queue is kept by its subscription
    entry = worker.pull()
    assert entry is None
    queue = PullQueue()
    queue.put("item")
    entry = queue.subscribe().pull()
    del queue, worker, queue_of_worker
    gc.collect()
    assert entry is not None
    assert (entry.item, entry.ack(), entry.ack()) == ("item", True, False)


# -- odd moments -------------------------------------------------------------------------------------------------------


def test_cancel_may_release_what_it_had() -> None:
    queue = PullQueue()
    one, two = queue.subscribe("A"), queue.subscribe("B")
    for item in range(5):
        queue.put(item)
    entries = one.pull_many(3)
    entries[1].ack()
    one.cancel(release=True)
    assert [(e.item, e.redelivered) for e in two.pull_many(9)] == [(0, True), (2, True), (3, False), (4, False)]
    assert [entry.settled for entry in entries] == [False, True, False]
    assert [entry.ack() for entry in entries] == [False, False, False]
    assert queue.depth == 4


def test_a_nondestructive_queue_has_browsers_only() -> None:
    queue = PullQueue(nondestructive=True)
    one = queue.subscribe("A", sees_requeues=True)
    queue.put(0)
    assert not one.acquires
    assert queue.lists()["non_acquiring"] == ["A"]
    entry = one.pull()
    assert entry is not None
    entry.ack()
    assert (queue.depth, one.pull()) == (1, None)


@pytest.mark.parametrize("kind", ["priority", "sorted"])
def test_a_browser_sees_what_overtakes_once(kind: Any) -> None:
    queue = PullQueue(kind)
    browser = queue.subscribe("B", acquires=False)
    for item in (5, 3):
        queue.put(item, priority=item, key=9 - item)
    assert drain(browser) == [5, 3]
    queue.put(7, priority=7, key=2)
    queue.put(4, priority=4, key=5)
    queue.put(1, priority=1, key=8)
    assert sorted(drain(browser)) == [1, 4, 7]
    assert drain(browser) == []


def test_bytes_are_keys_as_they_are() -> None:
    queue = PullQueue("sorted", key=lambda item: item)
    for item in (b"b", b"a", "c", "\ud800"):
        queue.put(item)
    assert drain(queue.subscribe()) == [b"a", b"b", "c", "\ud800"]


def test_keys_that_have_gone_take_no_room() -> None:
    queue = PullQueue("last-value", key=lambda item: item)
    worker = queue.subscribe()
    for item in range(3000):
        queue.put(item)
        if item % 3 == 0:
            queue.put(item)
    assert queue.depth == 3000
    for entry in worker.pull_many(4000):
        entry.ack()
    queue.put(7)
    assert drain(worker) == [7]


def test_filters_may_use_the_queue() -> None:
    queue = PullQueue()
    seen: list[Any] = []

    def look(item: Any) -> bool:
        if not seen:
            seen.append(item)
            queue.put("from the filter")
            queue.subscribe("from the filter", interested=False)
        return True

    worker = queue.subscribe("A", filter=look)
    queue.put("first")
    assert sorted(drain(worker)) == ["first", "from the filter"]


def test_a_filter_that_is_interrupted_loses_nothing() -> None:
    def interrupt(item: Any) -> bool:
        raise KeyboardInterrupt

    queue = PullQueue()
    queue.subscribe("A", filter=interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.put("m")
    assert (queue.depth, queue.available) == (1, 1)
    assert drain(queue.subscribe("B", priority=1)) == ["m"]


def test_a_filter_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    queue = PullQueue()
    queue.subscribe("A", filter=lambda item: item.missing)
    for item in range(5):
        queue.put(item)
    assert sum("filter" in record.message for record in caplog.records) == 1


def refuse(item: Any, reason: str) -> None:
    """An alternate that takes nothing."""
    raise queues.Full


def test_an_alternate_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    queue = PullQueue(max_deliveries=1, alternate=refuse)
    worker = queue.subscribe()
    for item in range(3):
        queue.put(item)
    for entry in worker.pull_many(3):
        assert entry.release()
    queue.expire()
    assert queue.depth == 0
    assert ["delivery_limit" in record.message for record in caplog.records] == [True]
    assert [item for item, _ in queue.undelivered] == [0, 1, 2]


def test_an_alternate_that_fails_again_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    takes = iter([False, False, True, False])

    def alternate(item: Any, reason: str) -> None:
        if not next(takes):
            raise queues.Full

    queue = PullQueue(ttl=0, clock=(clock := ManualClock()), alternate=alternate)
    for item in range(4):
        queue.put(item)
    clock.now = 1
    queue.expire()
    assert len(caplog.records) == 2
    assert list(queue.undelivered) == [(item, "expired") for item in (0, 1, 3)]


def test_an_interrupt_in_the_alternate_loses_nothing() -> None:
    def interrupt(item: Any, reason: str) -> None:
        raise KeyboardInterrupt

    queue = PullQueue(ttl=0, clock=(clock := ManualClock()), alternate=interrupt)
    for item in range(3):
        queue.put(item)
    clock.now = 1
    with pytest.raises(KeyboardInterrupt):
        queue.expire()
    assert (queue.depth, [item for item, _ in queue.undelivered]) == (0, [0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        queue.expire()
    assert sorted(item for item, _ in queue.undelivered) == [0, 1, 2]


def test_an_interrupt_in_on_work_loses_nothing() -> None:
    """One call finds what has expired, and lets go of what was held, which a subscription is told of."""

    def interrupt(subscription: Subscription) -> None:
        raise KeyboardInterrupt

    dead: list[Any] = []
    queue = PullQueue(clock=(clock := ManualClock()), alternate=lambda item, reason: dead.append(item))
    queue.put("expires", ttl=1)
    queue.put("held", not_before=1)
    queue.subscribe(on_work=interrupt, filter=lambda item: item == "held")
    clock.now = 2
    with pytest.raises(KeyboardInterrupt):
        queue.expire()
    assert (queue.depth, dead) == (1, ["expires"])


def test_a_queue_in_a_cycle_through_what_is_undelivered_is_collected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "fairsched.queue")  # a record would keep the frames, and the item with them
    queue = PullQueue(max_deliveries=1, alternate=refuse)
    thing = Thing()
    thing.other = queue
    queue.put(thing)
    entry = queue.subscribe().pull()
    assert entry is not None
    entry.release()
    assert queue.undelivered[0] == (thing, "delivery_limit")
    watch = weakref.ref(thing)
    del thing, queue, entry
    gc.collect()
    gc.collect()
    assert watch() is None


def test_exclusive_errors_are_named() -> None:
    queue = PullQueue()
    only = queue.subscribe("A", exclusive=True)
    with pytest.raises(ExclusiveSubscription, match="the queue has an exclusive subscription: 'A'"):
        queue.subscribe("B")
    only.cancel()
    queue.subscribe("C")
    with pytest.raises(ExclusiveSubscription, match="cannot be exclusive: the queue has others, 'C'"):
        queue.subscribe("D", exclusive=True)


def test_expire_counts() -> None:
    clock = ManualClock()
    queue = PullQueue(clock=clock)
    for item in range(500):
        queue.put(item, ttl=1 + item % 2)
    clock.now = 1.5
    assert (queue.expire(), queue.expire(), queue.depth) == (250, 0, 250)
    assert drain(queue.subscribe()) == list(range(1, 500, 2))


def test_bytes_of_what_is_there() -> None:
    queue = PullQueue()
    queue.put("a", size=5)
    queue.put("b", size=7)
    assert queue.bytes == 12
    entry = queue.subscribe().pull()
    assert entry is not None
    entry.ack()
    assert queue.bytes == 7


def test_what_cannot_be_made() -> None:
    for kind in (Subscription, Entry):
        with pytest.raises(TypeError):
            kind()


def test_representations_show_no_items() -> None:
    queue = PullQueue()
    worker = queue.subscribe("worker", priority=3)
    queue.put("secret")
    entry = worker.pull()
    assert "secret" not in repr((queue, worker, entry))
    assert "'worker'" in repr(worker)
    assert "unsettled" in repr(entry)
