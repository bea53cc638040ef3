"""Consumers that take a message and do not come back: no consumer that could take the rest sleeps beside it."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from oracles.queue import ReferenceQueue
from support.queue_engines import Engine, compiled_queue, drain, items, lists_of, on_both, pulled
from support.queue_leavers import run
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import _probe_queue
from fairsched.pullqueue import PullQueue

# -- one by one -------------------------------------------------------------------------------------------------------


@on_both
def test_a_pull_goes_past_what_is_for_one_above(engine: Engine) -> None:
    """High is busy, and is to have the message in front; the one behind it is for low only."""
    queue = engine()
    high = queue.subscribe("high", priority=9, filter=lambda item: item != "low's")
    low = queue.subscribe("low")
    queue.put(0)
    assert pulled(high) == 0
    for item in (1, "low's", 2):
        queue.put(item)
    assert lists_of(queue) == "N[high,low]"
    assert items(drain(low)) == ["low's"]
    assert items(drain(high)) == [1, 2]


@on_both
def test_what_was_gone_past_is_taken_when_the_one_above_goes(engine: Engine) -> None:
    for leave in ("interested", "credit", "cancel"):
        queue = engine()
        high = queue.subscribe("high", priority=9, filter=lambda item: item != "low's")
        low = queue.subscribe("low")
        for item in (0, 1, "low's", 2):
            queue.put(item)
        assert pulled(high) == 0
        assert items(drain(low)) == ["low's"]
        assert lists_of(queue) == "I[low] N[high]"
        if leave == "cancel":
            high.cancel()
        else:
            setattr(high, leave, 0)
        assert "N[low]" in lists_of(queue), leave
        assert items(drain(low)) == [1, 2]


@on_both
def test_what_the_one_above_does_not_want_any_more(engine: Engine) -> None:
    """Its filter has come to refuse what it accepted; that is found out when it finds nothing."""
    queue, refused = engine(), {"low's"}
    high = queue.subscribe("high", priority=9, filter=lambda item: item not in refused)
    low = queue.subscribe("low")
    for item in (1, "low's"):
        queue.put(item)
    assert items(drain(low)) == ["low's"]
    refused.add(1)
    assert high.pull() is None
    assert lists_of(queue) == "I[high] N[low]"
    assert items(drain(low)) == [1]


@on_both
def test_the_last_credit_of_one_and_a_filter_of_another(engine: Engine) -> None:
    """High and mid are busy, and the message that is left is for low only."""
    queue = engine()
    high = queue.subscribe("high", priority=9, credit=1)
    mid = queue.subscribe("mid", priority=5, filter=lambda item: item != "B")
    low = queue.subscribe("low")
    for item in "ACB":
        queue.put(item)
    assert (pulled(high), pulled(mid)) == ("A", "C")
    assert lists_of(queue) == "N[mid,low] X[high]"
    assert pulled(low) == "B"


@on_both
def test_one_notification_does_not_stand_for_two_messages(engine: Engine) -> None:
    queue = engine()
    one, two = queue.subscribe("one"), queue.subscribe("two")
    queue.put("X")
    entry = one.pull()
    assert one.pull() is None
    queue.put("Y")
    assert lists_of(queue) == "I[one] N[two]"
    entry.reject()  # which is for two only, that was notified of Y
    assert lists_of(queue) == "I[one] N[two]"
    assert pulled(two) == "X"
    assert lists_of(queue) == "N[two,one]"
    assert pulled(one) == "Y"


@on_both
def test_a_consumer_that_hands_over_is_not_kept_back_by_a_busy_one(engine: Engine) -> None:
    """Of a higher priority, notified, and without a use for what is handed over."""
    queue = engine()
    high = queue.subscribe("high", priority=9, filter=lambda item: item == 0)
    mid, low = queue.subscribe("mid", priority=5), queue.subscribe("low")
    queue.put(0)
    assert pulled(high) == 0
    queue.put(1)
    assert lists_of(queue) == "I[low] N[high,mid]"
    mid.interested = False
    assert lists_of(queue) == "N[high,low] X[mid]"
    assert pulled(low) == 1


@on_both
@pytest.mark.parametrize("groups", ["standard", "shared"])
def test_the_group_of_one_below_is_not_for_those_above(engine: Engine, groups: str) -> None:
    """High would like the message, which is of low's group, and is busy with another."""
    queue = engine(groups=groups)
    low = queue.subscribe("low")
    queue.put(1, key=1)
    assert pulled(low) == 1
    high = queue.subscribe("high", priority=1)
    queue.put(2, key=2)
    assert pulled(high) == 2
    queue.put(3, key=3)
    queue.put(4, key=1)
    assert items(drain(low)) == [4]
    assert pulled(high) == 3


@on_both
def test_a_group_that_becomes_one_s_own(engine: Engine) -> None:
    """Low has gone past a message for high, and then gets another of its group: it is not for high any more."""
    queue = engine(groups="standard")
    high = queue.subscribe("high", priority=1, filter=lambda item: item != "low's")
    low = queue.subscribe("low")
    queue.put("high's", key=1)
    queue.put("low's", key=1)
    assert items(drain(low)) == ["low's", "high's"]
    assert high.pull() is None


@on_both
@pytest.mark.parametrize("kind", ["standard", "priority", "sorted", "last-value", "fair"])
def test_of_any_kind(engine: Engine, kind: str) -> None:
    queue = engine(kind, quanta={"a": 1} if kind == "fair" else None)
    options: dict[str, Any] = {"slot": "a"} if kind == "fair" else {}
    high = queue.subscribe("high", priority=1, filter=lambda item: item % 3 != 0)
    low = queue.subscribe("low")
    for item in range(10):
        queue.put(item, key=item, **options)
    assert items(drain(low)) == [0, 3, 6, 9]
    entries = [high.pull(), high.pull()]
    entries[0].reject()  # it comes back, and is not for high
    assert items(drain(low)) == [1]
    high.interested = False
    assert items(drain(low)) == [4, 5, 7, 8]


# -- what is gone past, and what it costs -----------------------------------------------------------------------------


def test_what_is_for_one_above_is_gone_past_once() -> None:
    """And again only after the one above could have left it."""
    queue, asked = PullQueue(), list[int]()

    def accepts(item: int) -> bool:
        asked.append(item)
        return item >= 0

    high, low = queue.subscribe(priority=1, filter=accepts), queue.subscribe()
    for item in range(100):
        queue.put(item)
    assert low.pull() is None
    asked.clear()
    for item in range(10):
        queue.put(-1 - item)
        assert pulled(low) == -1 - item
        assert low.pull() is None
    assert max(asked) < 0
    assert items(high.pull_many(1000)) == list(range(100))


def test_a_consumer_that_goes_leaves_nothing_behind() -> None:
    """Marks of what a consumer has gone past go with it, and with the messages."""
    for kind in ("standard", "fair"):
        queue = PullQueue(kind, quanta={"a": 1} if kind == "fair" else None)
        high = queue.subscribe(priority=1, filter=lambda item: item != 99)
        for item in range(100):
            queue.put(item, slot="a" if kind == "fair" else None)
        for _ in range(3):
            low = queue.subscribe()
            entry = low.pull()
            assert (entry.item, low.pull()) == (99, None)
            entry.release()
            low.cancel()
        assert _probe_queue.kept(queue)["notes"] <= 1  # high's own refusal
        for entry in high.pull_many(100):
            entry.ack()
        high.cancel()
        assert pulled(queue.subscribe()) == 99
        assert _probe_queue.kept(queue)["messages"] == 1


# -- wake-ups ---------------------------------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("messages", [1, 3, 5, 8])
def test_one_wake_up_for_each_message(engine: Engine, filtered: bool, messages: int) -> None:
    """Of eight that sleep, as many are woken as there are messages, and each gets one and is busy."""
    queue = engine()
    consumers = [queue.subscribe(f"c{n}", filter=(lambda item: item >= 0) if filtered else None) for n in range(8)]
    before = sum(consumer.notified_count for consumer in consumers)
    for item in range(messages):
        queue.put(item)
    taken = [pulled(consumer) for consumer in consumers if consumer.name in queue.lists()["notified"]]
    assert taken == list(range(messages))
    assert sum(consumer.notified_count for consumer in consumers) == before + messages


@on_both
def test_random_consumers_that_leave(engine: Engine) -> None:
    """The same operations on a queue, by seeds; longer runs are below."""
    for seed in range(60 if engine is ReferenceQueue else 800):
        run(engine, seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_a_million_operations_with_consumers_that_leave(block: int) -> None:
    done = sum(run(compiled_queue, seed, 500).operations for seed in range(1000 + 500 * block, 1500 + 500 * block))
    assert done == 500 * 500


def test_hardly_more_wake_ups_than_messages() -> None:
    """Equal consumers without filters: one wake-up for a message, and one for each that comes back."""
    totals = [run(compiled_queue, seed, 400, plain=True) for seed in range(200)]
    assert sum(total.notified for total in totals) <= sum(total.messages for total in totals)


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credit", [None, 1])
def test_threads_that_never_come_back(credit: int | None) -> None:
    """Each of 40 consumers takes one message, in a thread that ends then: no message waits beside one that sleeps.

    With credit, those of a high priority leave the rest to others; without, all are equal.
    """
    for seed in range(10):
        chance, queue = random.Random(seed), PullQueue()
        count = 40
        consumers = [
            queue.subscribe(
                priority=chance.randrange(3) if credit else 0,
                credit=credit,
                filter=(lambda item: True) if chance.random() < 0.5 else None,
            )
            for _ in range(count)
        ]
        ready = threading.Barrier(count + 2, timeout=SOON)

        def take(consumer: Any, ready: threading.Barrier = ready) -> Any:
            ready.wait()
            return consumer.get(timeout=SOON).item

        def put(first: int, queue: PullQueue = queue, count: int = count, ready: threading.Barrier = ready) -> None:
            ready.wait()
            for item in range(first, count, 2):
                queue.put(item)

        takers = [start(lambda consumer=consumer: take(consumer)) for consumer in consumers]
        putters = [start(lambda first=first: put(first)) for first in range(2)]
        assert [result_of(putter) for putter in putters] == [None, None]
        assert sorted(result_of(taker) for taker in takers) == list(range(count))
