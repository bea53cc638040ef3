"""Every order of the steps of a flag, up to a bound on preemptions; and each guard is needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.flag_model import GUARDS, FlagModel


@pytest.mark.parametrize(
    ("handlers", "setters", "preemptions"),
    [
        (("",), 2, 4),
        (("", ""), 2, 2),
        (("set",), 2, 3),
        (("wait",), 2, 3),
        (("set", ""), 1, 3),
        (("wait", "set"), 1, 2),
    ],
)
def test_no_thread_sleeps_when_the_flag_is_up(handlers: tuple[str, ...], setters: int, preemptions: int) -> None:
    assert sum(1 for _ in schedules(lambda: FlagModel(handlers, setters), preemptions)) >= 8


def test_a_handler_alone_may_raise_it() -> None:
    assert sum(1 for _ in schedules(lambda: FlagModel(("set",), setters=0), preemptions=4)) >= 4


@pytest.mark.parametrize("missing", GUARDS)
def test_each_guard_is_needed(missing: str) -> None:
    with pytest.raises(Fault):
        for _ in schedules(lambda: FlagModel(("set", ""), missing=missing), preemptions=3):
            pass
