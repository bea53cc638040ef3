"""Run something in a thread, and wait for what comes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

SOON = 60.0  # a deadline for what happens at once, unless it never does


def start(target: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `target` in a thread; its result, or the exception it raised, is appended to the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(target())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def result_of(started: tuple[threading.Thread, list[Any]]) -> Any:
    """Wait for a started target."""
    thread, outcome = started
    thread.join(SOON)
    assert not thread.is_alive(), "still blocked"
    return outcome[0]


def reach(condition: Callable[[], object], what: str = "it never came about") -> None:
    """Wait for what other threads are about to bring about, looking every half millisecond."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.0005)
