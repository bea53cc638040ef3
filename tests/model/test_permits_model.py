"""Every order of the steps of two members and two keepers, up to a bound on preemptions; each guard is needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.permits_model import FINDINGS, GUARDS, KilledModel, PermitsModel

#: What happens to the two members and the first keeper.
HISTORIES = {
    "one keeper": PermitsModel(takeover=False),
    "takeover": PermitsModel(),
    "a lost connection": PermitsModel(takeover=False, reconnects=(0,)),
    "a lost connection and a takeover": PermitsModel(reconnects=(0,)),
    "a lost keeper and a member that is cut off": PermitsModel(lost=True),
}


def make(history: str, missing: str = "") -> PermitsModel:
    one = HISTORIES[history]
    return PermitsModel(takeover=one.takeover, reconnects=one.reconnects, missing=missing, lost=one.lost)


@pytest.mark.parametrize("history", HISTORIES)
def test_no_two_messages_are_in_hand(history: str) -> None:
    assert sum(1 for _ in schedules(lambda: make(history), preemptions=4)) > 10


def test_a_keeper_that_heard_nothing_of_a_member_cannot_know_what_it_holds() -> None:
    with pytest.raises(Fault):
        for _ in schedules(lambda: PermitsModel(lost=True, heard=False), preemptions=4):
            pass


@pytest.mark.parametrize("missing", GUARDS)
def test_each_guard_is_needed(missing: str) -> None:
    def explore() -> None:
        for history in HISTORIES:
            for _ in schedules(lambda history=history: make(history, missing), preemptions=4):
                pass

    with pytest.raises(Fault):
        explore()


def test_permits_of_a_killed_member_are_free_in_the_end_also_if_keepers_are_killed() -> None:
    assert sum(1 for _ in schedules(KilledModel, preemptions=6)) > 10


@pytest.mark.parametrize("missing", FINDINGS)
def test_permits_of_a_killed_member_stay_taken_without(missing: str) -> None:
    with pytest.raises(Fault, match="stays taken"):
        for _ in schedules(lambda: KilledModel(missing=missing), preemptions=6):
            pass
