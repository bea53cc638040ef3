"""Queues whose main thread gets signals all the time, the handlers of which use the same queue."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.littering import often
from support.threads import result_of, start

from fairsched import FairQueue, ShutDown
from fairsched.pullqueue import PullQueue

pytestmark = pytest.mark.stress

SECONDS = 2.0


class Signals:
    """Has the main thread called by a handler of a signal, again as soon as the last call has ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.handled = threading.Event()
        self.stopped = threading.Event()
        self.wrong: list[BaseException] = []

    def __enter__(self) -> Signals:
        self.before = signal.signal(signal.SIGUSR1, self.handle)
        self.sender = start(self.send)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopped.set()
        assert result_of(self.sender) is None
        signal.signal(signal.SIGUSR1, self.before)
        assert not self.wrong, self.wrong

    def handle(self, number: int, frame: object) -> None:
        try:
            if not self.stopped.is_set():
                self.call()
        except Exception as error:
            self.wrong.append(error)
            self.stopped.set()
        finally:
            self.handled.set()

    def send(self) -> None:
        while not self.stopped.is_set():
            self.handled.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            while not self.stopped.is_set() and not self.handled.wait(0.01):
                pass


@pytest.mark.parametrize("name", [str, lambda number: uuid.UUID(int=number)], ids=["str", "uuid"])
def test_fair_queue(name: Callable[[int], Any]) -> None:
    """The main thread gets and puts; handlers put and get in the middle of it, and so does another thread."""
    fair = FairQueue(default_quantum=1)
    put: list[int] = []
    got: list[list[int]] = [[], [], []]

    def disturb() -> None:
        if fair.qsize() < 20:
            put.append(len(put))
            fair.put(name(len(put) % 3), put[-1], block=False)
        try:
            got[0].append(fair.get(False)[1])
        except queue.Empty:
            pass

    def consume() -> None:
        while True:
            try:
                got[1].append(fair.get(timeout=0.001)[1])
            except queue.Empty:
                continue
            except ShutDown:
                return

    until = time.monotonic() + SECONDS
    number = 0
    with often(interval=0.0001, threshold=50):
        consumer = start(consume)
        with Signals(disturb):
            while time.monotonic() < until:
                number -= 1
                fair.put_many([name(0), name(1)], [number * 2, number * 2 + 1])
                try:
                    got[2].append(fair.get(timeout=0.0002, priority=1)[1])
                    got[2].extend(fair.get_many(2, 0.0002).items)
                except queue.Empty:
                    continue
        fair.shutdown()
        assert result_of(consumer) is None
    assert put, "no signal came"
    assert sorted(item for items in got for item in items) == [*range(number * 2, 0), *put]


def test_pull_queue() -> None:
    """The main thread pulls, with a time-out; handlers put, and another thread pulls too."""
    pull: Any = PullQueue()
    mine, others = pull.subscribe("main"), pull.subscribe("other")
    put: list[int] = []
    got: list[list[int]] = [[], []]

    def disturb() -> None:
        if pull.depth < 20:
            put.append(len(put))
            pull.put(put[-1])

    def consume() -> None:
        while True:
            try:
                entry = others.get(timeout=0.001)
            except queue.Empty:
                continue
            except ShutDown:
                return
            got[0].append(entry.item)
            entry.ack()

    until = time.monotonic() + SECONDS
    consumer = start(consume)
    with Signals(disturb):
        while time.monotonic() < until:
            try:
                entry = mine.get(timeout=0.0005)
            except queue.Empty:
                continue
            got[1].append(entry.item)
            entry.ack()
    left = [item for item, _ in pull.close()]
    assert result_of(consumer) is None
    assert put, "no signal came"
    assert sorted([*got[0], *got[1], *left]) == put
