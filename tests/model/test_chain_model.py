"""All schedules of adding and taking, and of notifying and coming to rest; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.chain_model import HandshakeModel, WorksetModel
from model.explore import Fault, schedules


@pytest.mark.parametrize(
    ("programs", "preemptions"),
    [
        (["a", "a"], 4),
        (["a", "b"], 4),
        (["ab", "ba"], 3),
        (["aa", "b"], 3),
        (["a", "b", "a"], 2),
        (["ab", "b", "a"], 2),
    ],
)
def test_whatever_is_added_is_taken(programs: list[str], preemptions: int) -> None:
    assert sum(1 for _ in schedules(lambda: WorksetModel(programs), preemptions)) > 100


WORKSET_FAULTS = {
    "tells after adding": (["a"], "has work and is not taken"),
    "clears before the look": (["a", "a"], "has work and is not taken"),
    "looks at the tail": (["a", "b"], "has work and is not taken"),
    "adds once": (["a", "a"], "is in the set twice"),
}


@pytest.mark.parametrize("guard", WorksetModel.GUARDS)
def test_without_a_guard_of_the_set_the_model_finds_the_fault(guard: str) -> None:
    programs, reason = WORKSET_FAULTS[guard]
    kept = frozenset(WorksetModel.GUARDS) - {guard}
    with pytest.raises(Fault, match=reason):
        list(schedules(lambda: WorksetModel(programs, kept), preemptions=3))


@pytest.mark.parametrize(
    ("notifiers", "threads", "messages", "preemptions"),
    [(1, 1, 2, 5), (2, 1, 1, 5), (2, 2, 1, 3), (2, 2, 2, 2), (3, 2, 1, 2)],
)
def test_no_wake_up_is_lost(notifiers: int, threads: int, messages: int, preemptions: int) -> None:
    explored = sum(1 for _ in schedules(lambda: HandshakeModel(notifiers, threads, messages), preemptions))
    assert explored > 30


# Both halves of the handshake, and what makes them work.
HANDSHAKE_FAULTS = {
    "notifier sets changed": "a message waits and its connection rests",
    "thread looks again": "a message waits and its connection rests",
    "clears before the look": "a message waits and its connection rests",
    "one pushes": "two threads are in one connection",
    "stores before it loads": "a message waits and its connection rests",
}


@pytest.mark.parametrize("guard", HandshakeModel.GUARDS)
def test_without_a_guard_of_the_handshake_the_model_finds_the_fault(guard: str) -> None:
    kept = frozenset(HandshakeModel.GUARDS) - {guard}
    with pytest.raises(Fault, match=HANDSHAKE_FAULTS[guard]):
        list(schedules(lambda: HandshakeModel(2, 2, 1, kept), preemptions=3))
