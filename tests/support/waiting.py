"""Wait for a condition that another thread, process or server is about to bring about."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

SOON = 60.0  # a deadline for what happens at once, unless it never does
LONGEST_PAUSE = 0.25  # between two looks at what takes long to ask, such as a broker


def eventually(condition: Callable[[], object], timeout: float = 30.0, what: str = "", every: float = 0.01) -> None:
    """Return once `condition()` is true; fail when that takes longer than `timeout` seconds.

    No more than a third of the time is spent on asking: a question to a broker takes ten milliseconds of two processes.
    """
    pause = threading.Event()
    begun = time.monotonic()
    deadline = begun + timeout
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {timeout:g} s: {what or condition}"
        pause.wait(max(every, min(2 * (now - begun), LONGEST_PAUSE)))
        begun = time.monotonic()


def reach(condition: Callable[[], object], what: str = "") -> None:
    """Wait for another thread of this process, and check every half millisecond."""
    eventually(condition, SOON, what, every=0.0005)


async def reach_in_loop(condition: Callable[[], object]) -> None:
    """Wait for another thread, and check in every turn of the event loop."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # threads change what is waited for, and tell no event
            await asyncio.sleep(0)
