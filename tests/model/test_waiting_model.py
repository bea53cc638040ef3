"""Every schedule of threads that wait, up to a bound on preemptions; and each guard shown to be needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.waiting_model import GUARDS, WaitingModel

ONE, SHORT, FAILING = (0, 1, False), (0, 1, True), (0, 1, True, True)  # priority, amount, may time out, fails then
HIGH, HIGH_SHORT, HIGHEST, MANY = (1, 1, False), (1, 1, True), (2, 1, False), (0, 2, False)

SCENARIOS = {
    "one": ((ONE,), (1,), False),
    "one and a time-out": ((SHORT,), (1,), False),
    "two and a time-out": ((SHORT, ONE), (1, 1), False),
    "one fails": ((FAILING,), (1,), False),
    "one of two fails": ((FAILING, ONE), (1, 1), False),
    "two items at once": ((ONE, ONE, ONE), (2,), False),
    "one takes many": ((MANY, ONE), (2, 1), False),
    "high and low": ((HIGH, ONE), (1, 1), False),
    "high times out": ((HIGH_SHORT, ONE), (1, 1), False),
    "low times out": ((HIGH, SHORT), (1, 1), False),
    "three priorities": ((HIGHEST, HIGH, ONE), (2,), False),
    "high ones come while a low one wakes up": ((ONE, ONE, HIGHEST, HIGH), (1, 2), False),
    "shutdown": ((ONE, SHORT), (1,), True),
    "shutdown of two priorities": ((HIGH, ONE), (1,), True),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_wake_up_is_lost_left_over_or_taken_from_a_higher_priority(scenario: str) -> None:
    waiters, puts, closes = SCENARIOS[scenario]
    preemptions = 3 if len(waiters) + len(puts) < 6 else 0  # switches at a thread's end or sleep are free
    assert sum(1 for _ in schedules(lambda: WaitingModel(waiters, puts, closes), preemptions)) > 1


# Without that guard: what goes wrong, and in which scenario.
FAULTS = {
    "registers with the look": ("an item is queued and a getter sleeps", "one"),
    "collects": ("a permit is left over", "one and a time-out"),
    "collects when it leaves": ("a permit is left over", "one fails"),
    "outranks": ("an item is taken that a higher priority waits for", "high and low"),
    "hands over": ("an item is queued and a getter sleeps", "high and low"),
    "leaves before it hands over": ("an item is queued and a getter sleeps", "high and low"),
    "stays before it hands over": ("a getter sleeps", "high ones come while a low one wakes up"),
    "hands over when it stays": ("a getter sleeps", "high ones come while a low one wakes up"),
    "counts those on their way": ("a getter is woken in vain", "two items at once"),
    "wakes all at the end": ("the queue is shut down and a getter sleeps", "shutdown of two priorities"),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_the_fault_is_found(guard: str) -> None:
    fault, scenario = FAULTS[guard]
    waiters, puts, closes = SCENARIOS[scenario]
    with pytest.raises(Fault, match=fault):
        list(schedules(lambda: WaitingModel(waiters, puts, closes, guard), preemptions=2))
