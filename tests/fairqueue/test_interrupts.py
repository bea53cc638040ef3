"""Signals that arrive while a thread waits, shortly before the item that it waits for: the item is not lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairsched import Batch, FairQueue
from fairsched.pullqueue import PullQueue, Target


def fair_queue(call: str) -> tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], int]]:
    queue = FairQueue({"a": 1})
    wait = queue.get if call == "get" else lambda: queue.get_many(5)
    return (lambda item: queue.put("a", item)), wait, queue.qsize


def pull_queue(call: str) -> tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], int]]:
    queue = PullQueue()
    subscription = queue.subscribe()
    wait = subscription.get if call == "get" else Target([subscription]).get
    return queue.put, wait, lambda: queue.available


WAITS = {
    "FairQueue.get": lambda: fair_queue("get"),
    "FairQueue.get_many": lambda: fair_queue("get_many"),
    "PullQueue.get": lambda: pull_queue("get"),
    "Target.get": lambda: pull_queue("target"),
}


def interrupt(begun: threading.Event, delay: float, put: Callable[[Any], Any]) -> None:
    """Send a signal to this process while its main thread waits, and put an item that much later."""
    begun.wait()
    never = threading.Event()
    never.wait(0.005)  # by then the main thread sleeps, mostly; if not, nothing is lost either
    os.kill(os.getpid(), signal.SIGINT)
    never.wait(delay)
    put("item")


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.002, 0.01])
@pytest.mark.parametrize("kind", WAITS)
def test_an_interrupt_loses_no_item(kind: str, delay: float) -> None:
    for _ in range(20):
        put, wait, left = WAITS[kind]()
        begun = threading.Event()
        thread = threading.Thread(target=interrupt, args=(begun, delay, put))
        thread.start()
        found = None
        with contextlib.suppress(KeyboardInterrupt):
            begun.set()
            found = wait()
        while thread.is_alive():  # the interrupt may come here, if the item was quicker
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()
        assert (found is None) == (left() == 1), (kind, found, left())


def test_a_batch_is_complete_before_items_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may raise wherever Python code runs: if it did so in `__init__`, nothing would be taken yet."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    queue = FairQueue({"a": 1})
    queue.put_many("a", range(5))
    monkeypatch.setattr(Batch, "__init__", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        assert len(queue.get_many(2)) == 2
        assert queue.qsize() == 3
        return
    assert queue.qsize() == 5
