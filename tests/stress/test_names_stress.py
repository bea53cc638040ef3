"""FairQueue whose tenants have names with a Python hash or equality, and getters of different priorities."""

from __future__ import annotations

import enum
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.littering import often
from support.threads import result_of, start

from fairsched import FairQueue, ShutDown

pytestmark = pytest.mark.stress

TENANTS = 6
#: How long a test takes, or twice that.
SECONDS = float(os.environ.get("STRESS_SECONDS", "1"))


class Member(enum.Enum):
    A, B, C, D, E, F = range(TENANTS)


@dataclass(frozen=True)
class Record:
    name: str
    number: int


@dataclass(frozen=True)
class Colliding:
    number: int

    def __hash__(self) -> int:
        return self.number % 2


NAMES: dict[str, Callable[[int], Any]] = {
    "str": lambda number: f"tenant {number}",
    "uuid": lambda number: uuid.UUID(int=number),
    "enum": Member,
    "dataclass": lambda number: Record("tenant", number),
    "tuple": lambda number: ("tenant", uuid.UUID(int=number)),
    "colliding": Colliding,
}


def produce(fair: FairQueue, name: Callable[[int], Any], me: int, until: float) -> int:
    """Put numbers to the tenants in turn, singly or in batches, each time with a new name; how many there were."""
    number = 0
    while time.monotonic() < until:
        try:
            if number % 7 < 5:
                fair.put(name(number % TENANTS), (me, number), timeout=0.01)
                number += 1
            else:
                names = [name((number + i) % TENANTS) for i in range(3)]
                fair.put_many(names, [(me, number + i) for i in range(3)], timeout=0.01)
                number += 3
        except queue.Full:
            continue
    return number


def consume(fair: FairQueue, me: int, got: list[tuple[Any, Any]]) -> None:
    """Get in several ways, until the queue is shut down."""
    round_ = 0
    while True:
        round_ += 1
        try:
            if round_ % 4 == 0:
                got.extend(fair.get_many(3, timeout=0.01, priority=me))
            else:
                got.append(fair.get(timeout=0.001 * (round_ % 3), priority=me))
        except queue.Empty:
            continue
        except ShutDown:
            return


def check(names: Callable[[int], Any], got: list[list[tuple[Any, Any]]], counts: list[int]) -> None:
    """Each item was got once, by the name that it was put to; within a tenant, each getter got them in order."""
    everything = [(name, *item) for pairs in got for name, item in pairs]
    assert sorted((me, number) for _, me, number in everything) == [
        (me, number) for me, count in enumerate(counts) for number in range(count)
    ]
    for name, _, number in everything:
        assert name == names(number % TENANTS)
    for pairs in got:
        last: dict[tuple[int, int], int] = {}
        for _, (me, number) in pairs:
            assert last.get((me, number % TENANTS), -1) < number
            last[me, number % TENANTS] = number


@pytest.mark.parametrize("maxsize", [0, 4])
@pytest.mark.parametrize("kind", NAMES)
def test_tenants_come_and_go(kind: str, maxsize: int) -> None:
    """Queues are short, so that tenants are forgotten and come back all the time."""
    fair = FairQueue(default_quantum=1, maxsize=maxsize)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(2)]
    with often(interval=0.00002):
        until = time.monotonic() + SECONDS / 2
        consumers = [start(lambda me=me: consume(fair, 0, got[me])) for me in range(2)]
        producers = [start(lambda me=me: produce(fair, NAMES[kind], me, until)) for me in range(2)]
        counts = [result_of(producer) for producer in producers]
        fair.shutdown()
        assert [result_of(consumer) for consumer in consumers] == [None, None]
    check(NAMES[kind], got, counts)
    assert fair.stats() == {}


@pytest.mark.parametrize("kind", ["str", "uuid"])
def test_getters_of_different_priorities(kind: str) -> None:
    """A waiter hands over to one of a lower priority; tenants come and go meanwhile."""
    fair = FairQueue(default_quantum=1)
    threads = 4
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(threads)]
    until = time.monotonic() + SECONDS
    consumers = [start(lambda me=me: consume(fair, me % 3, got[me])) for me in range(threads)]
    producers = [start(lambda me=me: produce(fair, NAMES[kind], me, until)) for me in range(2)]
    counts = [result_of(producer) for producer in producers]
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None] * threads
    check(NAMES[kind], got, counts)


def test_callbacks_put_to_the_tenants_that_were_just_emptied() -> None:
    """Waiters of a low priority use the queue in their callbacks, in whatever thread that is."""
    fair = FairQueue(default_quantum=1)
    got: list[list[tuple[Any, Any]]] = [[] for _ in range(2)]
    until = time.monotonic() + SECONDS
    added: list[int] = []
    stopped = threading.Event()

    def called() -> None:
        if not stopped.is_set() and fair.backlog("t") == 0:
            added.append(len(added))
            fair.put("t", ("callback", len(added)))

    def put() -> int:
        number = 0
        while time.monotonic() < until:
            fair.put_many(["t", "u"], [("put", number), ("put", number + 1)])
            number += 2
            waiter.again()
        return number

    waiter = fair.call_when_ready(called, priority=-1)
    consumers = [start(lambda me=me: consume(fair, 5 * me, got[me])) for me in range(2)]
    count = result_of(start(put))
    stopped.set()
    waiter.leave()
    fair.shutdown()
    assert [result_of(consumer) for consumer in consumers] == [None, None]
    items = sorted(item for pairs in got for _, item in pairs)
    expected = [("callback", number + 1) for number in range(len(added))] + [("put", number) for number in range(count)]
    assert items == expected


@pytest.mark.parametrize("kind", ["str", "uuid"])
def test_figures_beside_puts(kind: str) -> None:
    """stats, backlog and waiting, asked while tenants come and go."""
    fair = FairQueue(default_quantum=1)
    got: list[tuple[Any, Any]] = []
    until = time.monotonic() + SECONDS / 2
    asked = 0
    with often(interval=0.00002, threshold=20):
        consumer = start(lambda: consume(fair, 0, got))
        producer = start(lambda: produce(fair, NAMES[kind], 0, until))
        while time.monotonic() < until:
            for figures in fair.stats().values():
                assert figures.queued >= 0
            assert all(fair.backlog(NAMES[kind](number)) >= 0 for number in range(TENANTS))
            fair.waiting()
            asked += 1
        count = result_of(producer)
        fair.shutdown()
        assert result_of(consumer) is None
    check(NAMES[kind], [got], [count])
    assert asked > 0
