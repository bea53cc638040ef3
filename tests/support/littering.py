"""Work for the garbage collector: cycles whose finalizers are Python code, so that threads switch in them."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Litter:
    """Garbage in a cycle; when it is found, some Python code runs."""

    def __init__(self, at_end: Callable[[], object]) -> None:
        self.itself = self
        self.at_end = at_end

    def __del__(self) -> None:
        for _ in range(20):  # long enough for a switch
            self.at_end()


def nothing() -> None:
    """Let the interpreter switch threads: it does so at calls."""


@contextlib.contextmanager
def often(interval: float | None = None, threshold: int | None = None) -> Iterator[None]:
    """Switch threads, and collect garbage, that often."""
    before: tuple[Any, Any] = (sys.getswitchinterval(), gc.get_threshold())
    if interval is not None:
        sys.setswitchinterval(interval)
    if threshold is not None:
        gc.set_threshold(threshold, 1000, 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before[0])
        gc.set_threshold(*before[1])
