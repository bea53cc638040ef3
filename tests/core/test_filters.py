"""The cost of filters that refuse everything: each is asked once, and a few answers are looked up for each question."""

from __future__ import annotations

import pytest

from fairsched import _probe_queue

KINDS = {"standard": 0, "priority": 1, "sorted": 2, "last-value": 3, "fair": 4}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
priorities = pytest.mark.parametrize("levels", [1, 300])
COUNT = 300
LOOKS = 20


@priorities
def test_a_put_is_linear_in_the_consumers_that_refuse(levels: int) -> None:
    queue = _probe_queue.ProbeQueue()
    queue.idle_refusing(COUNT, levels)
    asked, looked = queue.offer_refused()
    assert (asked, looked <= LOOKS * COUNT) == (COUNT, True), looked
    assert set(queue.told()) == {0}


def test_a_put_is_linear_in_browsers_and_consumers_together() -> None:
    queue = _probe_queue.ProbeQueue()
    queue.idle_refusing(COUNT, acquires=False)
    before = queue.told()
    queue.idle_refusing(COUNT)
    asked, looked = queue.offer_refused()
    assert (asked, looked <= 2 * LOOKS * COUNT) == (2 * COUNT, True), looked
    assert queue.told() == before + [0] * COUNT


@kinds
def test_a_look_is_linear_in_the_messages_refused(kind: int) -> None:
    queue = _probe_queue.ProbeQueue(kind, 0, 10)
    queue.idle_refusing(1)
    for _ in range(COUNT):
        queue.offer_refused()
    taken, asked, looked = queue.pull_refused(0)
    assert (taken, asked, looked <= LOOKS * COUNT) == (0, COUNT if kind == KINDS["fair"] else 0, True), looked


@priorities
def test_a_pull_is_linear_in_the_consumers_above_that_refuse(levels: int) -> None:
    queue = _probe_queue.ProbeQueue()
    queue.idle(1)
    queue.offer_refused()
    queue.idle_refusing(COUNT, levels, 1)
    taken, asked, looked = queue.pull_refused(0)
    assert (taken, asked, looked <= LOOKS * COUNT) == (1, COUNT, True), looked


@priorities
def test_a_pull_in_vain_is_linear_in_the_consumers_that_refuse(levels: int) -> None:
    """The consumer finds nothing, and passes on work that all have refused when it was announced."""
    queue = _probe_queue.ProbeQueue()
    queue.idle_refusing(COUNT, levels)
    for _ in range(2):
        queue.offer_refused()
    taken, asked, looked = queue.pull_refused(0)
    assert (taken, asked, looked <= 2 * LOOKS * COUNT) == (0, 0, True), looked
