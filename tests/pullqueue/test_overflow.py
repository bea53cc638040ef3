"""A queue that is full: ring, reject, flow."""

from __future__ import annotations

import queue as queues
from typing import Any

import pytest
from oracles.queue import ReferenceQueue
from support.queue_engines import Engine, drain, items, on_both
from support.threads import result_of, start
from support.waiting import SOON, reach


def content(queue: Any) -> list[Any]:
    """Return the messages a browser sees."""
    browser = queue.subscribe("content", acquires=False)
    seen = items(drain(browser))
    browser.cancel()
    return seen


@on_both
def test_a_ring_of_four(engine: Engine) -> None:
    queue = engine(max_depth=4, overflow="ring")
    for number in range(1, 6):
        queue.put(number, size=20)
    assert (queue.depth, content(queue)) == (4, [2, 3, 4, 5])


@on_both
def test_a_ring_of_four_and_a_hundred_bytes(engine: Engine) -> None:
    queue = engine(max_depth=4, max_bytes=100, overflow="ring")
    for number, size in enumerate([20, 20, 30, 30], 1):
        queue.put(number, size=size)
    assert queue.depth == 4
    queue.put(5, size=30)
    assert (queue.depth, content(queue)) == (3, [3, 4, 5])  # 90 bytes
    queue.put(6, size=10)
    assert queue.depth == 4  # 100 bytes fit


@on_both
def test_a_ring_does_not_take_what_is_acquired(engine: Engine) -> None:
    queue = engine(max_depth=2, overflow="ring")
    only = queue.subscribe("A")
    queue.put("first")
    entry = only.pull()
    queue.put("second")
    queue.put("third")
    assert (queue.depth, content(queue)) == (2, ["third"])
    assert entry.ack()


@on_both
def test_a_ring_of_one(engine: Engine) -> None:
    queue = engine(max_depth=1, overflow="ring")
    only = queue.subscribe("A")
    queue.put("first")
    entry = only.pull()
    queue.put("second")
    assert (queue.depth, queue.available) == (2, 1)
    entry.release()
    assert (queue.depth, content(queue)) == (1, ["second"])
    assert items(drain(only)) == ["second"]


@on_both
def test_a_ring_of_levels_gives_up_the_oldest_of_the_lowest(engine: Engine) -> None:
    queue = engine("priority", max_depth=3, overflow="ring")
    for number, priority in enumerate([5, 1, 9, 1, 9], 1):
        queue.put(number, priority=priority)
    assert content(queue) == [3, 5, 1]


@on_both
def test_a_sorted_ring_gives_up_the_oldest(engine: Engine) -> None:
    queue = engine("sorted", max_depth=2, overflow="ring")
    for key in "mazb":
        queue.put(key, key=key)
    assert content(queue) == ["b", "z"]


@on_both
def test_a_ring_refuses_what_never_fits(engine: Engine) -> None:
    queue = engine(max_bytes=100, overflow="ring")
    queue.put("fits", size=100)
    with pytest.raises((queues.Full, ValueError)):
        queue.put("does not", size=101)
    assert content(queue) == ["fits"]


@on_both
def test_reject_refuses_and_keeps(engine: Engine) -> None:
    queue = engine(max_depth=2, overflow="reject")
    only = queue.subscribe("A")
    queue.put(1)
    queue.put(2)
    before = only.notified_count
    with pytest.raises(queues.Full):
        queue.put(3)
    assert (queue.depth, only.notified_count) == (2, before)
    entry = only.pull()
    with pytest.raises(queues.Full):  # acquired messages count
        queue.put(3)
    entry.ack()
    queue.put(3)
    assert items(drain(only)) == [2, 3]


@on_both
def test_reject_by_bytes(engine: Engine) -> None:
    queue = engine(max_bytes=10, overflow="reject")
    queue.put(1, size=6)
    with pytest.raises(queues.Full):
        queue.put(2, size=5)
    queue.put(3, size=4)
    assert content(queue) == [1, 3]


def test_flow_of_the_reference() -> None:
    """Stopped by what does not fit, it goes on at 80 %, rounded up; the reference says so by queue.Full."""
    queue = ReferenceQueue(max_depth=10, overflow="flow")
    only = queue.subscribe("A")
    for number in range(10):
        queue.put(number)
    for depth in (10, 9):
        assert queue.depth == depth
        with pytest.raises(queues.Full):
            queue.put("more")
        only.get().ack()
    queue.put("more")
    assert queue.depth == 9


@pytest.mark.parametrize("limit", [1, 5, 10])
def test_flow_blocks_producers_until_four_fifths(limit: int) -> None:
    """A producer waits once the limit is reached, without spinning, and goes on when the queue is down to 80 %."""
    from fairsched.pullqueue import PullQueue

    queue = PullQueue(max_depth=limit, overflow="flow")
    only, count = queue.subscribe("A"), 4 * limit + 10

    def produce() -> str:
        for number in range(count):
            queue.put(number)
        return "done"

    producer = start(produce)
    got: list[int] = []
    resume = min(-(-limit * 8 // 10), limit - 1)  # where the next one fits
    while len(got) < count:
        reach(lambda: queue.depth >= min(limit, count - len(got)))
        assert queue.depth <= limit + 1
        while queue.depth > resume:
            entry = only.get(timeout=SOON)
            got.append(entry.item)
            entry.ack()
        if len(got) + queue.depth >= count:
            while (entry := only.pull()) is not None:
                got.append(entry.item)
                entry.ack()
    assert result_of(producer) == "done"
    assert got == list(range(count))


def test_flow_lets_a_closed_queues_producers_go() -> None:
    from fairsched import ShutDown
    from fairsched.pullqueue import PullQueue

    queue = PullQueue(max_depth=1, overflow="flow")
    queue.put(0)
    queue_producer = start(lambda: [queue.put(number) for number in (1, 2, 3)])
    reach(lambda: queue.depth >= 1)
    queue.close()
    assert isinstance(result_of(queue_producer), ShutDown)
