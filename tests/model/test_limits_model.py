"""Every schedule of getters while slots are at limits, up to a bound on preemptions; each guard shown to be needed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from model.explore import Fault, schedules
from model.limits_model import GUARDS, LimitsModel

PATIENT, HASTY = False, True

#: Getters, slots of puts, ticks of the clock, whether the capped slot is released.
SCENARIOS = {
    "a token": ((PATIENT,), ("rated",), 1, False),
    "two tokens": ((PATIENT, PATIENT), ("rated", "rated"), 2, False),
    "another goes on": ((PATIENT, PATIENT), ("rated", "free"), 1, False),
    "one gives up": ((HASTY, PATIENT), ("rated",), 1, False),
    "one gives up, another goes on": ((HASTY, PATIENT), ("rated", "free"), 1, False),
    "a release": ((PATIENT,), ("capped",), 0, True),
    "a release and a token": ((PATIENT, PATIENT), ("capped", "rated"), 1, True),
    "more getters than items": ((PATIENT, HASTY, PATIENT), ("rated", "capped"), 1, True),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_item_that_may_be_served_lies_beside_a_getter_that_sleeps(scenario: str) -> None:
    assert sum(1 for _ in schedules(lambda: LimitsModel(*SCENARIOS[scenario]), preemptions=3)) > 1


#: Without that guard: in which scenario an item is left.
FAULTS = {
    "a put for a token wakes, if no getter sees to it": "a token",
    "a getter that finds a token awaited sees to it": "a token",
    "a getter that gives up hands over": "one gives up",
    "a getter that has taken hands over": "two tokens",
    "a release wakes": "a release",
}


@pytest.mark.parametrize("guard", FAULTS)
def test_without_a_guard_the_fault_is_found(guard: str) -> None:
    with pytest.raises(Fault, match="an item may be served and a getter sleeps"):
        list(schedules(lambda: LimitsModel(*SCENARIOS[FAULTS[guard]], guard), preemptions=2))


def test_every_other_guard_is_for_speed() -> None:
    """All may see to the same token, at the price of waking all of them for it."""
    assert set(GUARDS) - set(FAULTS) == {"one sees to it", "a getter that sees to it says until when"}
    for guard in set(GUARDS) - set(FAULTS):
        for scenario in SCENARIOS.values():
            list(schedules(lambda s=scenario, g=guard: LimitsModel(*s, g), preemptions=1))


class Forgetful(LimitsModel):
    """Every schedule is run to its end."""

    whole_state = None  # type: ignore[assignment]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "more getters than items"])
def test_schedules_that_meet_end_alike(scenario: str) -> None:
    def ends(kind: type[LimitsModel]) -> set[Hashable]:
        found: set[Hashable] = set()

        class Noting(kind):  # type: ignore[valid-type, misc]
            def check(self, finished: list[bool]) -> None:
                found.add((*finished, LimitsModel.whole_state(self)))
                super().check(finished)

        list(schedules(lambda: Noting(*SCENARIOS[scenario]), preemptions=2))
        return found

    assert ends(LimitsModel) == ends(Forgetful)
