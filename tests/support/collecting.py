"""Have the collector run at the next object that is made, and a finalizer with it, whatever is under way."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Finalizer:
    """Garbage, only found by the collector, which then calls this back, and leaves more of it."""

    def __init__(self, callback: Callable[[], Any]) -> None:
        self.callback: Callable[[], Any] | None = callback
        self.cycle = self

    def __del__(self) -> None:
        if self.callback is not None and gc.get_threshold()[0] == 1:
            self.callback()
            Finalizer(self.callback)


def skip_if_traced() -> None:
    """Skip a test in `make coverage`, whose tracer makes containers between any two lines, so that collectors run."""
    if sys.gettrace() is not None:
        pytest.skip("a tracer runs Python where the engine does not")


@contextlib.contextmanager
def collecting(callback: Callable[[], Any]) -> Iterator[None]:
    """In the block, each container that is made anew runs the collector, and that calls back."""
    skip_if_traced()
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    Finalizer(callback)
    kept = [([], {}, (i, i), (i, i, i)) for i in range(4000)]  # none is left to be used again without allocating
    try:
        gc.set_threshold(1)
        gc.enable()
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        del kept
