"""Targets shared by threads, on queues that producers fill at once: nothing lost, nothing twice, no stall."""

from __future__ import annotations

import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched.pullqueue import PullQueue, Target

pytestmark = pytest.mark.stress


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Have the interpreter change threads more often than it does by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("getters", [1, 4])
@pytest.mark.parametrize("filtered", [False, True])
def test_nothing_is_lost_and_no_getter_sleeps_beside_work(getters: int, filtered: bool) -> None:
    """Three queues, four producers, one target; each getter waits long, so that a lost wake-up is a failure."""
    queues = [PullQueue() for _ in range(3)]
    options: dict[str, Any] = {"filter": lambda item: item is not None} if filtered else {}
    target = Target([one.subscribe(**options) for one in queues])
    each, producers = 4_000, 4
    ready = threading.Barrier(getters + producers)

    def produce(number: int) -> None:
        ready.wait()
        for serial in range(each):
            queues[(number + serial * serial) % 3].put((number, serial))

    def consume() -> list[Any]:
        taken: list[Any] = []
        ready.wait()
        while (entry := target.get(SOON)).item != "end":
            taken.append(entry.item)
            if (hash(entry.item) % 16 == 0) and not entry.redelivered:
                taken.pop()
                entry.release()
            else:
                entry.ack()
        entry.ack()
        return taken

    consuming = [start(consume) for _ in range(getters)]
    for thread in [start(lambda number=number: produce(number)) for number in range(producers)]:
        result_of(thread)
    reach(lambda: not any(one.depth for one in queues), "a message waits, and no consumer takes it")
    for _ in range(getters):
        queues[0].put("end")
    taken = Counter(item for outcome in consuming for item in result_of(outcome))
    assert taken == Counter((number, serial) for number in range(producers) for serial in range(each))


def consume_until(target: Target, finished: threading.Event) -> list[Any]:
    """Take whatever comes until nothing does and the end was announced."""
    taken: list[Any] = []
    while True:
        try:
            entry = target.get(0.05)
        except queue.Empty:
            if finished.is_set():
                return taken
            continue
        taken.append(entry.item)
        entry.ack()


def flip(targets: list[Target]) -> None:
    """Change the targets' interest, now this one's and now that one's; in the end all are interested."""
    for turn in range(400):
        targets[turn % 2].interested = turn % 4 < 2
    for target in targets:
        target.interested = True


def test_interest_flips_while_others_take_over() -> None:
    """Two targets on the same two queues flip; whatever is put is taken by one of them."""
    queues = [PullQueue() for _ in range(2)]
    targets = [Target([one.subscribe() for one in queues]) for _ in range(2)]
    count, finished = 3_000, threading.Event()

    def produce() -> None:
        for serial in range(count):
            queues[serial % 2].put(serial)

    consuming = [start(lambda target=target: consume_until(target, finished)) for target in targets]
    for thread in [start(produce), start(lambda: flip(targets))]:
        result_of(thread)
    reach(lambda: not any(one.available for one in queues), "a message waits, and no consumer takes it")
    finished.set()
    assert sorted(item for outcome in consuming for item in result_of(outcome)) == list(range(count))
