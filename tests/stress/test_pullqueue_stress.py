"""PullQueue, hammered by threads that start together. No thread polls: a lost wake-up is a test that never ends."""

from __future__ import annotations

import queue as queues
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.crew import Crew, check_lists, restless
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import ShutDown
from fairsched.pullqueue import PullQueue

pytestmark = pytest.mark.stress


@pytest.fixture(autouse=True)
def restless_switching() -> Iterator[None]:
    """Threads take turns after a few bytecodes, not after milliseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("kind", ["standard", "priority", "sorted", "last-value", "fair"])
def test_every_message_exactly_once(kind: str) -> None:
    queue = PullQueue(kind, quanta={0: 1, 1: 3} if kind == "fair" else None)
    crew, threads, each = Crew(queue, 8, restless), 8, 1000

    def put(me: int, number: int) -> None:
        options: dict[str, Any] = {"slot": me % 2} if kind == "fair" else {"priority": number % 10}
        queue.put((pause, me, number), **options)

    for pause in range(3):  # noqa: B007 - put() reads it
        crew.produce(threads, each, put)
        check_lists(queue, 8)
    expected = [(pause, me, number) for pause in range(3) for me in range(threads) for number in range(each)]
    assert crew.finish() == expected


def test_others_flip_what_waits() -> None:
    """Another thread changes the interest and the credit of consumers that are blocked in get, at any moment."""

    def consume(crew: Crew, me: int) -> None:
        subscription = crew.subscribe(me, priority=me % 3)
        crew.ready.wait(SOON)
        while True:
            try:
                entry = subscription.get(timeout=SOON)
            except ShutDown:
                return
            crew.got[me].append(entry.item)
            entry.ack()

    queue = PullQueue()
    crew, stop = Crew(queue, 6, consume), threading.Event()

    def flip(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            subscription = chance.choice(crew.subscriptions)
            if seed % 2:
                subscription.interested = chance.random() < 0.5
            else:
                subscription.credit = chance.choice([0, 1, 2, None])
        for subscription in crew.subscriptions:
            subscription.interested = True
            subscription.credit = None

    flippers = [start(lambda seed=seed: flip(seed)) for seed in range(2)]
    producers = [start(lambda me=me: [queue.put((me, i)) for i in range(1500)] and None) for me in range(4)]
    assert [result_of(producer) for producer in producers] == [None] * 4
    stop.set()
    assert [result_of(flipper) for flipper in flippers] == [None] * 2
    crew.produce(1, 1, lambda me, number: queue.put((9, 9)))
    assert crew.finish() == [*((me, i) for me in range(4) for i in range(1500)), (9, 9)]


@pytest.mark.parametrize("credit", [1, 3])
def test_entries_are_settled_by_other_threads(credit: int) -> None:
    """The last credit is spent by one thread while another gives some back: neither ends up full with nothing to do."""
    done: queues.SimpleQueue[Any] = queues.SimpleQueue()

    def consume(crew: Crew, me: int) -> None:
        subscription = crew.subscribe(me, credit=credit, priority=me % 2)
        crew.ready.wait(SOON)
        while True:
            try:
                done.put((me, subscription.get(timeout=SOON)))
            except ShutDown:
                return

    queue = PullQueue()
    crew = Crew(queue, 4, consume)

    def settle(seed: int) -> None:
        chance = random.Random(seed)
        while (job := done.get()) is not None:
            me, entry = job
            if chance.random() < 0.05:
                entry.release()
            else:
                crew.got[me].append(entry.item)
                entry.ack()

    settlers = [start(lambda seed=seed: settle(seed)) for seed in range(2)]
    crew.produce(4, 1000, lambda me, number: queue.put((me, number)))
    assert [subscription.credit for subscription in crew.subscriptions] == [credit] * 4
    assert crew.finish() == [(me, number) for me in range(4) for number in range(1000)]
    for _ in settlers:
        done.put(None)
    assert [result_of(settler) for settler in settlers] == [None] * 2


def test_the_notified_consumer_runs_and_no_other() -> None:
    """A pool that only runs consumers whose on_work was called, each in one thread at a time, until nothing is left."""
    jobs: queues.SimpleQueue[Any] = queues.SimpleQueue()
    queue, count = PullQueue(), 6
    got: list[list[int]] = [[] for _ in range(count)]
    locks = [threading.Lock() for _ in range(count)]
    names = {f"c{i}": i for i in range(count)}

    def work() -> None:
        while (subscription := jobs.get()) is not None:
            me = names[subscription.name]
            with locks[me]:
                while (entry := subscription.pull()) is not None:
                    got[me].append(entry.item)
                    entry.ack()

    for name, me in names.items():
        queue.subscribe(name, on_work=jobs.put, priority=me // 2)
    workers = [start(work) for _ in range(4)]
    producers = [start(lambda me=me: [queue.put(1000 * me + i) for i in range(1000)] and None) for me in range(6)]
    assert [result_of(producer) for producer in producers] == [None] * 6
    reach(lambda: queue.depth == 0, f"stalled: {queue.lists()}, {queue.available} available")
    for _ in workers:
        jobs.put(None)
    assert [result_of(worker) for worker in workers] == [None] * 4
    assert sorted(item for items in got for item in items) == list(range(6000))
    check_lists(queue, count)


def test_consumers_with_filters_find_what_is_theirs() -> None:
    """Each takes one residue; releases make them meet messages that others went past."""

    def consume(crew: Crew, me: int) -> None:
        chance = random.Random(me)
        subscription = crew.subscribe(me, filter=lambda item: item[1] % 4 == me, priority=me % 2)
        crew.ready.wait(SOON)
        while True:
            try:
                entry = subscription.get(timeout=SOON)
            except ShutDown:
                return
            assert entry.item[1] % 4 == me
            if chance.random() < 0.1:
                entry.release()
            else:
                crew.got[me].append(entry.item)
                entry.ack()

    queue = PullQueue()
    crew = Crew(queue, 4, consume)
    crew.produce(4, 400, lambda me, number: queue.put((me, number)))
    assert crew.finish() == [(me, number) for me in range(4) for number in range(400)]


@pytest.mark.parametrize("groups", ["standard", "shared"])
def test_a_group_is_active_in_one_place_and_in_order(groups: str) -> None:
    active = [threading.Lock() for _ in range(7)]
    served: list[list[int]] = [[] for _ in range(7)]

    def consume(crew: Crew, me: int) -> None:
        chance = random.Random(me)
        subscription = crew.subscribe(me)
        crew.ready.wait(SOON)
        while True:
            try:
                entry = subscription.get(timeout=SOON)
            except ShutDown:
                return
            group, number = entry.item
            assert active[group].acquire(blocking=False), f"group {group} is active twice"
            served[group].append(number)
            crew.got[me].append(entry.item)
            active[group].release()
            if chance.random() < 0.02:
                subscription.cancel()  # the group may go on elsewhere: what is unsettled has been served already
                subscription = crew.subscribe(me)
            entry.ack()

    queue = PullQueue(groups=groups)
    crew = Crew(queue, 4, consume)
    crew.produce(1, 3000, lambda me, number: queue.put((number % 7, number), key=number % 7))
    assert crew.finish() == sorted((number % 7, number) for number in range(3000))
    assert all(numbers == sorted(numbers) for numbers in served)
