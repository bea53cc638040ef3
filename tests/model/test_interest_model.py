"""All schedules of the moves of one node, and of finding it; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.interest_model import INTERESTED, NOT_INTERESTED, NOTIFIED, LevelsModel, MoveModel

MOVES = {
    "set and notify": ([["set"], ["notify"]], NOT_INTERESTED),
    "unset and notify": ([["unset"], ["notify"]], INTERESTED),
    "two notify one": ([["notify"], ["notify"]], INTERESTED),
    "done and unset": ([["done"], ["unset"]], NOTIFIED),
    "flips and notifies": ([["unset", "set"], ["notify", "done"]], INTERESTED),
    "three at once": ([["unset"], ["notify"], ["notify", "done"]], INTERESTED),
}


@pytest.mark.parametrize("scenario", MOVES)
def test_a_node_is_in_one_list_and_every_move_is_one_step(scenario: str) -> None:
    programs, state = MOVES[scenario]
    assert sum(1 for _ in schedules(lambda: MoveModel(programs, state), preemptions=3))


def test_without_one_winner_of_the_mark_a_node_is_in_two_lists() -> None:
    with pytest.raises(Fault, match="stands in"):
        list(schedules(lambda: MoveModel([["unset"], ["notify"]], marks=False), preemptions=1))


def test_with_a_state_older_than_the_entry_a_move_is_not_in_the_table() -> None:
    with pytest.raises(Fault, match="is no walk"):
        list(schedules(lambda: MoveModel([["unset"], ["notify"]], entry_first=False), preemptions=1))


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("actors", "preemptions"),
    [
        ("consumer producer", 4),
        ("consumer producer finder", 3),
        ("consumer producer registrar", 3),
        ("consumer producer finder registrar", 2),
    ],
)
def test_whoever_sleeps_is_found(actors: str, preemptions: int, marked: bool) -> None:
    assert sum(1 for _ in schedules(lambda: LevelsModel(actors, marked=marked), preemptions)) > 10


# The guard that is missing: which threads take part in the fault, and whether the bit was set.
FAULTS = {
    "looks again": ("consumer producer finder", True),
    "distrusts": ("consumer producer finder", True),
    "starts set": ("consumer producer registrar", False),
    "checks the hint": ("consumer producer registrar", False),
    "marks after the append": ("consumer producer finder", True),
}


@pytest.mark.parametrize("guard", LevelsModel.GUARDS)
def test_without_a_guard_a_consumer_sleeps_while_its_message_waits(guard: str) -> None:
    actors, marked = FAULTS[guard]
    kept = frozenset(LevelsModel.GUARDS) - {guard}
    with pytest.raises(Fault, match="a message waits and its consumer sleeps"):
        list(schedules(lambda: LevelsModel(actors, kept, marked), preemptions=3))
