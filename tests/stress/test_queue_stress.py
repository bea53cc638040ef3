"""Producers and consumers of one queue, all without the GIL: every message exactly once, none sleeps beside work.

A consumer pulls only when it was told, so a lost wake-up shows as a run that does not end.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.pumping import EACH, FAIR, FULL, PRIORITY, SHARED_GROUPS, SORTED, STANDARD, STANDARD_GROUPS, run, together

from fairsched import _probe_queue

pytestmark = pytest.mark.stress

#: Of a test that is short, but has to be repeated.
ROUNDS = 250 if EACH == FULL else 3
#: Several short rounds, where what a consumer looks at grows with the square of the messages that one producer puts.
SHORT_ROUNDS, SHORT = 4, EACH // 80


def test_eight_producers_and_eight_consumers() -> None:
    """10 % flips of interest, and random cancels and subscriptions."""
    queue = _probe_queue.ProbeQueue(STANDARD, 8 * EACH)
    got = run(queue, 8, EACH, [{"quits": 10}] * 8)
    assert sum(got) == 8 * EACH
    for _ in range(4):
        queue.flush()


def test_consumers_stay_and_the_lists_add_up_at_every_pause() -> None:
    """Idle consumers, which never pull, are registered all the while."""
    for pause in range(5):
        each = EACH // 20
        queue = _probe_queue.ProbeQueue(STANDARD, 4 * each)
        queue.idle(5, 1, False)
        run(queue, 4, each, [{"quits": 5}] * 4)
        assert (queue.consumers, queue.size(3)) == (5, 5), pause


@pytest.mark.parametrize("kind", [PRIORITY, SORTED, FAIR], ids=["priority", "sorted", "fair"])
def test_other_orders(kind: int) -> None:
    each = EACH // 10
    run(_probe_queue.ProbeQueue(kind, 4 * each, 10), 4, each, [{"quits": 5, "returns": 10}] * 4)


@pytest.mark.parametrize("kind", [STANDARD, PRIORITY, SORTED], ids=["standard", "priority", "sorted"])
def test_browsers_see_nothing_twice(kind: int) -> None:
    """Beside consumers that give back what a browser, which does not care for requeues, may have seen before."""
    assert sum(browsed(kind, EACH // 50) for _ in range(10)) > 0


def browsed(kind: int, each: int) -> int:
    """Have two browsers look on, and return how many messages they saw together."""
    queue = _probe_queue.ProbeQueue(kind, 2 * each, 5)
    results = together(
        *(lambda i=i: queue.produce(1 + i * each, each, i) for i in range(2)),
        *(lambda i=i: queue.consume(i, quits=0, returns=30) for i in range(2)),
        *[queue.browse] * 2,
    )
    assert queue.once
    assert [again for _, again in results[-2:]] == [0, 0]
    return sum(distinct for distinct, _ in results[-2:])


def test_priorities_hand_over() -> None:
    """The higher ones have little credit, so the lower ones have to be told again and again."""
    each = EACH // 10
    consumers: list[dict[str, Any]] = [{"priority": p, "credit": 1 + p, "quits": 5} for p in range(4)]
    got = run(_probe_queue.ProbeQueue(STANDARD, 4 * each), 4, each, consumers)
    assert sum(got) == 4 * each


@pytest.mark.parametrize("kind", [STANDARD, PRIORITY, SORTED, FAIR], ids=["standard", "priority", "sorted", "fair"])
def test_cursors_beside_those_that_have_none(kind: int) -> None:
    consumers: list[dict[str, Any]] = [{"walks": i % 2 == 0, "priority": i % 3, "quits": 5} for i in range(6)]
    for _ in range(SHORT_ROUNDS):
        run(_probe_queue.ProbeQueue(kind, 4 * SHORT, 5), 4, SHORT, consumers)


@pytest.mark.parametrize("kind", [STANDARD, FAIR], ids=["standard", "fair"])
def test_rejecting(kind: int) -> None:
    """Some refuse what others then have to take."""
    each = EACH // 20
    consumers: list[dict[str, Any]] = [{"refuses": 20 if i < 3 else 0, "quits": 5} for i in range(5)]
    run(_probe_queue.ProbeQueue(kind, 4 * each), 4, each, consumers)


def test_turns_of_those_that_may_not_have_everything() -> None:
    """Several priorities, of which the higher ones refuse some; the turn may pass between a look and the acquiring."""
    consumers: list[dict[str, Any]] = [
        {"refuses": 20 if i % 3 else 0, "priority": i % 3, "walks": i < 2, "credit": 3 if i % 2 else -1, "quits": 5}
        for i in range(6)
    ]
    for _ in range(SHORT_ROUNDS):
        run(_probe_queue.ProbeQueue(FAIR, 4 * SHORT), 4, SHORT, consumers)


@pytest.mark.parametrize("kind", [STANDARD, FAIR], ids=["standard", "fair"])
@pytest.mark.parametrize("groups", [STANDARD_GROUPS, SHARED_GROUPS], ids=["standard groups", "shared groups"])
def test_groups(groups: int, kind: int) -> None:
    """Many short rounds: a consumer that goes leaves its groups to others, which may just take a later message."""
    for _ in range(ROUNDS):
        queue = _probe_queue.ProbeQueue(kind, 4 * EACH // 100, 1, groups)
        run(queue, 4, EACH // 100, [{"quits": 50, "returns": 10}] * 5)
