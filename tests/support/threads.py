"""Run something in a thread, and wait for what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from support.waiting import SOON


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
