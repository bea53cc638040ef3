"""All schedules of looking, taking, giving back and going, with groups; and each guard shown to be needed."""

from __future__ import annotations

from typing import Any

import pytest
from model.cursor_model import Consumer, CursorModel
from model.explore import Fault, schedules

# Consumers by what they do with what they get, the backlog, what is put meanwhile, and the preemptions.
SCENARIOS: dict[str, tuple[dict[str, tuple[str, ...]], str, str, int]] = {
    "one puts, two take": ({"A": (), "B": ()}, "", "gh", 3),
    "one gives back": ({"A": ("release",), "B": ()}, "gg", "", 4),
    "two give back": ({"A": ("release",), "B": ("release",)}, "gh", "", 3),
    "one goes": ({"A": ("quit",), "B": ()}, "ggg", "", 4),
    "one goes while another takes of a later group": ({"A": ("quit",), "B": ()}, "ggh", "", 4),
    "one goes while a message comes": ({"A": ("quit",), "B": ()}, "g", "g", 3),
    "one gives back and goes": ({"A": ("release", "quit"), "B": ()}, "gg", "", 4),
    "one goes beside two": ({"A": ("quit",), "B": (), "C": ()}, "gg", "", 3),
}


def model(scenario: str, kept: Any = frozenset(CursorModel.GUARDS)) -> CursorModel:
    consumers, backlog, puts, _ = SCENARIOS[scenario]
    return CursorModel(lambda: [Consumer(name, deeds) for name, deeds in consumers.items()], backlog, puts, kept)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_message_waits_beside_a_consumer_that_may_take_it(scenario: str) -> None:
    assert sum(1 for _ in schedules(lambda: model(scenario), SCENARIOS[scenario][-1])) > 30


# The guard that is missing, and where the fault shows.
FAULTS = {
    "takes what still comes first": "one goes while another takes of a later group",
    "recalls to what is given back": "one gives back",
    "notes what is skipped": "one goes",
    "recalls to what was skipped": "one goes",
    "passes on when it goes": "one goes",
}


@pytest.mark.parametrize("guard", CursorModel.GUARDS)
def test_without_a_guard_the_model_finds_the_fault(guard: str) -> None:
    kept = frozenset(CursorModel.GUARDS) - {guard}
    with pytest.raises(Fault, match=r"a message waits and . sleeps"):
        list(schedules(lambda: model(FAULTS[guard], kept), SCENARIOS[FAULTS[guard]][-1]))
