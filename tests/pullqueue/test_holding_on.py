"""The references that keep a target alive, and what a getter waits for that may take nothing."""

from __future__ import annotations

import gc
import queue
import sys
import time
import weakref
from typing import Any

import pytest

from fairsched.pullqueue import PullQueue, Target


class Item:
    pass


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_target_that_is_dropped_lets_go_of_everything(cancelled: bool) -> None:
    def make() -> list[weakref.ref[Any]]:
        jobs, item = PullQueue(), Item()
        jobs.put(item)
        target = Target([jobs.subscribe()])
        target.interested = False
        target.interested = True
        if cancelled:
            target.cancel(release=True)
        return [weakref.ref(item), weakref.ref(target)]

    references = [reference for _ in range(20) for reference in make()]
    gc.collect()
    assert [reference() for reference in references] == [None] * 40


def test_a_change_of_interest_keeps_no_reference() -> None:
    target = Target([PullQueue().subscribe()])
    before = sys.getrefcount(target)
    for number in range(50):
        target.interested = bool(number % 2)
    assert sys.getrefcount(target) == before


@pytest.mark.parametrize("getter", ["no credit", "not interested", "spare", "target"])
def test_a_held_message_that_is_due_is_not_for_all(getter: str) -> None:
    """A consumer that may take nothing waits for its time-out, and does not look again and again until then."""
    jobs = PullQueue(live_consumers=1) if getter == "spare" else PullQueue()
    live = jobs.subscribe() if getter == "spare" else None
    subscription = jobs.subscribe(
        credit=0 if getter == "no credit" else None, interested=getter not in ("not interested", "target")
    )
    one: Any = Target([subscription], interested=False) if getter == "target" else subscription
    jobs.put(1, not_before=time.monotonic() + 0.01)
    with pytest.raises(queue.Empty):
        one.get(timeout=0.2)
    assert live is None or live.get(timeout=10).item == 1
