"""All schedules of putting, pulling, flipping and handing over; and each guard shown to be needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from model.explore import Fault, schedules
from model.queue_model import NOT_INTERESTED, NOTIFIED, Consumer, QueueModel


def told(name: str, **options: Any) -> Consumer:
    return Consumer(name, state=NOTIFIED, told=True, **options)


def equals(*names: str) -> Callable[[], list[Consumer]]:
    return lambda: [Consumer(name) for name in names]


def full_and_low(credit: int, low: Any = Consumer) -> Callable[[], list[Consumer]]:
    """H has been told, and L is interested, or has been told as well."""
    return lambda: [told("H", priority=10, credit=credit), low("L")]


def off_and(*names: str) -> Callable[[], list[Consumer]]:
    """A is not interested."""
    return lambda: [Consumer("A", wish=False, state=NOT_INTERESTED), *(Consumer(name) for name in names)]


# Consumers, programs, backlog, and the preemptions that all schedules of it may have.
ENQUEUE: dict[str, tuple[Any, ...]] = {
    "one consumer, one producer": (equals("A"), ("put, put",), 0, 6),
    "one consumer, two producers": (equals("A"), ("put", "put"), 0, 4),
    "two consumers, two producers": (equals("A", "B"), ("put", "put"), 0, 3),
    "while it pulls to the end": (lambda: [told("A")], ("put",), 1, 6),
}
INTEREST: dict[str, tuple[Any, ...]] = {
    "off while it is notified": (equals("A", "B"), ("put", "A off"), 0, 4),
    "on while a message comes": (off_and(), ("put", "A on"), 0, 5),
    "off and on": (equals("A", "B"), ("put", "A off, A on"), 0, 2),
    "two threads change one wish": (equals("A"), ("A off", "A on", "put"), 0, 3),
}
PRIORITY: dict[str, tuple[Any, ...]] = {
    "the last credit, and a backlog": (full_and_low(2), (), 4, 6),
    "the last credit, and both were told": (full_and_low(1, told), (), 3, 4),
    "the last credit, and a producer": (full_and_low(1), ("put",), 1, 4),
    "the last credit, and an ack elsewhere": (full_and_low(1), ("H credit",), 2, 3),
    "high goes off": (full_and_low(5, told), ("H off",), 2, 2),
    "high comes on": (lambda: [Consumer("H", 10, wish=False, state=NOT_INTERESTED), told("L")], ("H on",), 2, 3),
}
LEAVING: dict[str, tuple[Any, ...]] = {
    "one message each": (lambda: [Consumer(name, leaves=1) for name in "AB"], ("put, put",), 0, 3),
    "two producers": (lambda: [Consumer(name, leaves=1) for name in "AB"], ("put", "put"), 0, 2),
    "the last credit, and one that leaves": (
        lambda: [told("H", priority=10, credit=1), Consumer("M", leaves=1), Consumer("L")], (), 3, 3
    ),
    "two that leave at once": (lambda: [told("A", leaves=1), told("B", leaves=1), Consumer("C")], (), 3, 3),
    "while it pulls": (lambda: [told("A", leaves=2), Consumer("B")], ("put",), 2, 3),
    "one leaves, and one comes on": (
        lambda: [told("A", leaves=1), Consumer("B", wish=False, state=NOT_INTERESTED)], ("B on",), 2, 3
    ),
    "one leaves, and one goes off": (lambda: [told("A", leaves=1), told("B"), Consumer("C")], ("B off",), 2, 2),
}  # fmt: skip
SCENARIOS = {**ENQUEUE, **INTEREST, **PRIORITY, **LEAVING}


@pytest.mark.parametrize("looks_first", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_message_waits_beside_a_sleeping_consumer(scenario: str, looks_first: bool) -> None:
    """Whether a notified consumer moves before each look, as in the sources, or before the last, as in the engine."""
    consumers, programs, backlog, preemptions = SCENARIOS[scenario]
    model = lambda: QueueModel(consumers, programs, backlog=backlog, looks_first=looks_first)  # noqa: E731
    assert sum(1 for _ in schedules(model, preemptions))


@pytest.mark.parametrize("backlog", [1, 2])
def test_spending_the_last_credit_wakes_nobody_in_vain(backlog: int) -> None:
    model = lambda: QueueModel(full_and_low(1), (), backlog=backlog, in_vain=False)  # noqa: E731
    assert sum(1 for _ in schedules(model, 4))


# The guard that is missing: where the fault shows, and as what.
FAULTS: dict[str, tuple[str, str]] = {
    "interested before looking": ("while it pulls to the end", "A sleeps"),
    "looks when it becomes interested": ("on while a message comes", "A sleeps"),
    "hands over": ("off while it is notified", "B sleeps"),
    "flips before it hands over": ("the last credit, and a backlog", "L sleeps"),
    "looks again after the move": ("two threads change one wish", "in the wrong list"),
    "offers the rest": ("the last credit, and one that leaves", "L sleeps"),
    "is not counted when it offers": ("two that leave at once", "C sleeps"),
}


@pytest.mark.parametrize("guard", FAULTS)
def test_without_a_guard_a_message_waits_beside_a_sleeping_consumer(guard: str) -> None:
    scenario, reason = FAULTS[guard]
    consumers, programs, backlog, preemptions = SCENARIOS[scenario]
    kept = frozenset(QueueModel.GUARDS) - {guard}
    with pytest.raises(Fault, match=reason):
        list(schedules(lambda: QueueModel(consumers, programs, kept, backlog), preemptions))


def test_handing_over_before_the_acquire_wakes_in_vain() -> None:
    """The others are judged by a message that is about to be taken."""
    kept = frozenset(QueueModel.GUARDS) - {"hands over after the acquire"}
    with pytest.raises(Fault, match="L is woken in vain"):
        list(schedules(lambda: QueueModel(full_and_low(1), (), kept, backlog=1, in_vain=False), 2))


def test_the_stall_of_broker_j() -> None:
    """As the sources have it: the hand-over comes before the acquire, and before the flag that it judges by."""
    kept = frozenset(QueueModel.GUARDS) - {"hands over after the acquire", "flips before it hands over"}
    with pytest.raises(Fault, match="L sleeps"):
        list(schedules(lambda: QueueModel(full_and_low(2), (), kept, backlog=5), 0))


def test_every_guard_has_its_fault() -> None:
    assert set(QueueModel.GUARDS) == {*FAULTS, "hands over after the acquire"}
