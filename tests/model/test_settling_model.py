"""Every schedule of threads that settle and the one that sends; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.settling_model import GUARDS, SettlingModel


@pytest.mark.parametrize(("settlers", "preemptions"), [((2,), 6), ((3,), 4), ((1, 1), 4), ((2, 1), 3), ((1, 1, 1), 2)])
def test_no_settlement_stays_unsent(settlers: tuple[int, ...], preemptions: int) -> None:
    assert sum(1 for _ in schedules(lambda: SettlingModel(settlers), preemptions)) > 1


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_a_settlement_stays(guard: str) -> None:
    with pytest.raises(Fault, match="a settlement is not sent, and no thread will send it"):
        list(schedules(lambda: SettlingModel((2, 1), guard), preemptions=3))
