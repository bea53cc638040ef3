"""All schedules of callbacks added to a confirmation while it is settled; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.confirmation_model import ConfirmationModel
from model.explore import Fault, schedules


@pytest.mark.parametrize("removes", [False, True])
def test_each_callback_is_called_or_removed_and_only_once(removes: bool) -> None:
    assert sum(1 for _ in schedules(lambda: ConfirmationModel(removes=removes), preemptions=4))


@pytest.mark.parametrize("guard", ["adds_at_once", "takes_at_once"])
def test_with_a_step_between_the_two_a_callback_is_never_called(guard: str) -> None:
    with pytest.raises(Fault, match="were called or removed"):
        list(schedules(lambda: ConfirmationModel(**{guard: False}), preemptions=2))
