"""All schedules of going past messages and of calling back; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.yielding_model import YieldingModel

PROGRAMS = [("off",), ("off", "on"), ("off", "on", "off")]
MESSAGES = [("both",), ("both", "low"), ("low", "both", "both", "low")]


@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_message_is_gone_past_for_ever(program: tuple[str, ...], messages: tuple[str, ...]) -> None:
    assert sum(1 for _ in schedules(lambda: YieldingModel(program, messages), 4))


@pytest.mark.parametrize("guard", YieldingModel.GUARDS)
def test_without_a_guard_a_message_waits_beside_a_sleeping_consumer(guard: str) -> None:
    kept = frozenset(YieldingModel.GUARDS) - {guard}

    def search() -> None:
        for program in PROGRAMS:
            for messages in MESSAGES:
                list(schedules(lambda p=program, m=messages: YieldingModel(p, m, kept), 4))  # type: ignore[misc]

    with pytest.raises(Fault, match="low sleeps"):
        search()
