"""PullQueue under load at its limits: expiry, overflow, close and cancel, while others wait."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.crew import Crew, check_lists, restless
from support.threads import result_of, start
from support.waiting import SOON

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


@pytest.mark.parametrize("refused", [0.0, 0.5])
def test_what_expires_and_what_is_served_add_up(refused: float, caplog: pytest.LogCaptureFixture) -> None:
    """Housekeeping, pulls and releases race for messages that expire; each ends in one place, or is kept."""
    caplog.set_level(logging.CRITICAL, "fairsched.queue")
    dead: list[int] = []
    mood = random.Random(7)

    def alternate(item: int, reason: str) -> None:
        if mood.random() < refused:
            raise ConnectionError
        dead.append(item)

    queue = PullQueue(ttl=0.001, alternate=alternate)

    def consume(crew: Crew, me: int) -> None:
        chance = random.Random(me)
        subscription = crew.subscribe(me)
        crew.ready.wait(SOON)
        while True:
            try:
                entry = subscription.get(timeout=SOON)
            except ShutDown:
                return
            if chance.random() < 0.3:
                entry.release()
            else:
                crew.got[me].append(entry.item)
                entry.ack()

    crew, stop = Crew(queue, 3, consume), threading.Event()

    def keep_house() -> None:
        while not stop.is_set():
            queue.expire()

    keeper = start(keep_house)
    crew.produce(3, 1000, lambda me, number: queue.put(1000 * me + number))
    stop.set()
    assert result_of(keeper) is None
    served = crew.finish()
    assert sorted(served + dead + [item for item, _ in queue.undelivered]) == list(range(3000))
    while queue.close():
        queue.expire()
    assert sorted(served + dead) == list(range(3000))


@pytest.mark.parametrize("overflow", ["ring", "flow"])
def test_limits_hold_under_load(overflow: str) -> None:
    """A ring loses some, and serves none twice; flow loses none."""
    queue = PullQueue(max_depth=20, overflow=overflow)
    crew = Crew(queue, 3, restless)
    most = 0

    def put(me: int, number: int) -> None:
        nonlocal most
        queue.put((me, number))
        most = max(most, queue.available)

    crew.produce(4, 1000, put)
    got = crew.finish()
    assert len(got) == len(set(got))
    assert most <= 20 + 4
    assert overflow == "ring" or len(got) == 4000


def test_no_producer_is_left_behind() -> None:
    """A producer is woken, and finds room before it would have waited, while others are being woken: all go on."""
    for _ in range(60):
        queue = PullQueue(max_depth=5, overflow="flow")
        crew = Crew(queue, 3, restless)
        crew.produce(8, 200, lambda me, number: queue.put((me, number)))  # noqa: B023 - is over when it returns
        assert crew.finish() == [(me, number) for me in range(8) for number in range(200)]


def test_close_wakes_all_that_wait() -> None:
    """Consumers without work, and producers without room."""
    for _ in range(20):
        queue = PullQueue(max_depth=1, overflow="flow")
        idle = [queue.subscribe(f"c{i}", filter=lambda item: False) for i in range(4)]
        queue.put("full")
        ready = threading.Barrier(9)

        def get(subscription: Any, ready: threading.Barrier = ready) -> Any:
            ready.wait(SOON)
            return subscription.get()

        def put(queue: Any = queue, ready: threading.Barrier = ready) -> Any:
            ready.wait(SOON)
            queue.put("more")

        waiters = [start(lambda s=s: get(s)) for s in idle] + [start(put) for _ in range(4)]
        ready.wait(SOON)
        queue.close()
        assert [type(result_of(waiter)) for waiter in waiters] == [ShutDown] * 8


def test_cancel_wakes_a_thread_that_waits_in_it() -> None:
    queue = PullQueue()
    for _ in range(50):
        subscription = queue.subscribe()
        ready = threading.Barrier(2)

        def get(subscription: Any = subscription, ready: threading.Barrier = ready) -> Any:
            ready.wait(SOON)
            return subscription.get()

        waiter = start(get)
        ready.wait(SOON)
        subscription.cancel()
        assert isinstance(result_of(waiter), ShutDown)
    check_lists(queue, 0)
