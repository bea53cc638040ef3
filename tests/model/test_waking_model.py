"""Every order of the steps by which publishers wake the I/O thread, up to a bound on preemptions."""

from __future__ import annotations

from functools import partial

import pytest
from model.explore import Fault, schedules
from model.waking_model import GUARDS, WakingModel

CASES = [(1, "p", 4), (1, "f", 4), (2, "p", 2), (2, "f", 2), (2, "pf", 1), (3, "", 2)]


@pytest.mark.parametrize(("publishers", "handlers", "preemptions"), CASES)
def test_each_message_is_confirmed(publishers: int, handlers: str, preemptions: int) -> None:
    assert sum(1 for _ in schedules(lambda: WakingModel(publishers, handlers), preemptions)) > 4


@pytest.mark.parametrize("missing", GUARDS)
def test_without_a_guard_one_is_not(missing: str) -> None:
    def explore() -> None:
        for publishers, handlers, preemptions in CASES:
            for _ in schedules(partial(WakingModel, publishers, handlers, missing), preemptions):
                pass

    with pytest.raises(Fault):
        explore()
