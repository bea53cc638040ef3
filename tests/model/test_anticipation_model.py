"""Every schedule of getters while a turn is waited for, up to a bound on preemptions; each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.anticipation_model import GUARDS, AnticipationModel
from model.explore import Fault, schedules

PATIENT, HASTY = False, True

#: Getters, slots of puts, whether the held slot is let go.
SCENARIOS = {
    "one": ((PATIENT,), ("other",), False),
    "two": ((PATIENT, PATIENT), ("other", "other"), False),
    "the awaited item comes": ((PATIENT, PATIENT), ("other", "held"), False),
    "one gives up": ((HASTY, PATIENT), ("other", "other"), False),
    "let go": ((PATIENT, PATIENT), ("other", "other"), True),
    "more getters than items": ((PATIENT, HASTY, PATIENT), ("other", "held"), False),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_item_lies_beside_a_getter_that_sleeps(scenario: str) -> None:
    getters, puts, release = SCENARIOS[scenario]
    assert sum(1 for _ in schedules(lambda: AnticipationModel(getters, puts, release), preemptions=3)) > 1


#: Without that guard: in which scenario an item is left.
FAULTS = {
    "puts wake when no getter sees to the turn": "one",
    "a getter that finds the turn awaited sees to it": "one",
    "a getter that gives up hands over": "one gives up",
    "a getter that has taken hands over": "two",
}


@pytest.mark.parametrize("guard", FAULTS)
def test_without_a_guard_the_fault_is_found(guard: str) -> None:
    getters, puts, release = SCENARIOS[FAULTS[guard]]
    with pytest.raises(Fault, match="an item is queued and a getter sleeps"):
        list(schedules(lambda: AnticipationModel(getters, puts, release, guard), preemptions=2))


def test_every_other_guard_is_for_speed() -> None:
    """Letting go wakes a getter that waits for a turn that will not be used; its wait would end all the same."""
    assert set(GUARDS) - set(FAULTS) == {"letting go wakes"}
    for getters, puts, _ in SCENARIOS.values():
        list(schedules(lambda g=getters, p=puts: AnticipationModel(g, p, True, "letting go wakes"), preemptions=1))
