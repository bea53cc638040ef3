"""Every schedule of a connection that is lent; and each guard shown to be needed."""

from __future__ import annotations

from functools import partial

import pytest
from model.explore import Fault, schedules
from model.lending_model import GUARDS, LendingModel

CASES = [
    ("d", ((1, "s"),), (True,), 5),
    ("df", ((2, "s"),), (True,), 3),
    ("dfd", ((2, "a"),), (True,), 3),
    ("dd", ((2, "a"),), (True, False), 3),
    ("df", ((2, "a"),), (True, False, True), 3),
    ("dd", ((1, "s"), (1, "s")), (True,), 2),
    ("dfd", ((2, "s"), (1, "a")), (True,), 2),
    ("", ((2, "w"),), (True,), 3),
    ("d", ((1, "s"), (2, "w")), (True,), 2),
]


@pytest.mark.parametrize(("frames", "consumers", "lends", "preemptions"), CASES)
def test_everything_is_taken_in_order(
    frames: str, consumers: tuple[tuple[int, str], ...], lends: tuple[bool, ...], preemptions: int
) -> None:
    assert sum(1 for _ in schedules(lambda: LendingModel(frames, consumers, lends), preemptions)) > 1


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_something_is_not(guard: str) -> None:
    def explore() -> None:
        for frames, consumers, lends, preemptions in CASES:
            list(schedules(partial(LendingModel, frames, consumers, lends, guard), preemptions))

    with pytest.raises(Fault):
        explore()
