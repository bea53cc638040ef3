"""All schedules of appending, deleting and walking, with the memory used again; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.nodelist_model import Guards, NodeListModel

SCENARIOS = {
    "append, append": ([["append x"], ["append y"]], "", 4),
    "append, delete, walk": ([["append x"], ["delete a", "walk"], ["walk"]], "ab", 2),
    "two walkers, two dead": ([["delete a", "walk"], ["delete b", "walk"]], "abc", 3),
    "a dead tail is followed": ([["delete b", "walk"], ["append x", "walk"]], "ab", 3),
    "the tail lags behind": ([["append x"], ["delete a", "walk", "walk", "walk", "append y"]], "a", 3),
    "appends while all goes": ([["append x", "append y"], ["delete a", "delete b", "walk", "walk"]], "ab", 2),
    "same entry twice": ([["delete a", "walk"], ["delete a", "walk"]], "ab", 3),
    "two move the same": ([["move a"], ["move a"], ["walk"]], "ab", 2),
    "moves, walks and time": ([["move a"], ["walk", "idle", "idle"], ["move a"]], "ab", 2),
    "three neighbours": ([["delete a", "walk"], ["delete b", "walk"], ["walk"]], "abc", 2),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_schedule_keeps_the_promises(scenario: str) -> None:
    programs, initial, preemptions = SCENARIOS[scenario]
    assert sum(1 for _ in schedules(lambda: NodeListModel(programs, initial), preemptions)) > 100


# What goes wrong without each guard, in which scenario, with how many preemptions.
FAULTS = {
    "freed on unlink": (Guards(pinned=False), [["delete a", "walk"], ["walk"]], "ab", 1, "use after free"),
    "the epoch does not wait": (
        Guards(looks_at_pins=False),
        [["delete a", "walk", "idle", "idle", "idle"], ["walk"]],
        "ab",
        1,
        "use after free",
    ),
    "one epoch of grace": (
        Guards(grace=1),
        [["delete a", "walk", "idle", "idle"], ["walk"]],
        "ab",
        2,
        "use after free",
    ),
    "unlinked from a dead entry": (
        Guards(frozen=False),
        [["delete a", "walk"], ["delete b", "walk"]],
        "abc",
        3,
        "retired twice|use after free|a freed entry is linked",
    ),
    # A thread that moves the tail late is inside, but one that finds it where it was may have entered an epoch later.
    "two epochs of grace, and a tail that lags": (
        Guards(grace=2),
        [["append x"], ["walk", "idle"], ["append y"]],
        "A",
        3,
        "use after free",
    ),
    "two epochs of grace, and a node that names its old entry": (
        Guards(grace=2),
        [["move a"], ["walk", "idle"], ["move a"]],
        "ab",
        3,
        "use after free",
    ),
    "the dead tail is unlinked": (
        Guards(keeps_tail=False),
        [["delete a", "walk"], ["append x"]],
        "a",
        1,
        "are alive|the tail is not the last|use after free",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_guard_the_model_finds_the_fault(fault: str) -> None:
    guards, programs, initial, preemptions, reason = FAULTS[fault]
    with pytest.raises(Fault, match=reason):
        list(schedules(lambda: NodeListModel(programs, initial, guards), preemptions))


@pytest.mark.parametrize("fault", [*FAULTS][:-3])
def test_with_every_guard_there_is_no_fault(fault: str) -> None:
    _, programs, initial, preemptions, _ = FAULTS[fault]
    list(schedules(lambda: NodeListModel(programs, initial), preemptions))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS][-3:])
def test_with_three_epochs_of_grace_there_is_no_fault(fault: str) -> None:
    test_with_every_guard_there_is_no_fault(fault)
