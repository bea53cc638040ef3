"""Queues of any kind with consumers of any mixture, drawn: whatever they do together, every message is taken once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.pumping import (
    EACH,
    FAIR,
    FULL,
    NO_GROUPS,
    PRIORITY,
    SHARED_GROUPS,
    SORTED,
    STANDARD,
    STANDARD_GROUPS,
    run,
)

from fairsched import _probe_queue

pytestmark = pytest.mark.stress

#: Mixtures drawn from each seed, and rounds of each.
MIXTURES, ROUNDS = (60, 4) if EACH == FULL else (3, 1)


def consumer(draw: random.Random, groups: int, ranked: bool, number: int) -> dict[str, Any]:
    """The work of one of several consumers."""
    found: dict[str, Any] = {
        "flips": draw.choice([0, 10, 40]),
        "quits": draw.choice([0, 5, 50]),
        "returns": draw.choice([0, 5, 30]),
        "priority": number % 3 if ranked else 0,
        "walks": draw.random() < 0.3,
    }
    if groups == NO_GROUPS and draw.random() < 0.3:
        found["credit"] = 1 + number
    return found


@pytest.mark.parametrize("seed", range(4))
def test_no_getter_sleeps_beside_work(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(MIXTURES):
        kind = draw.choice([STANDARD, PRIORITY, SORTED, FAIR, FAIR])
        groups = draw.choice([NO_GROUPS, NO_GROUPS, STANDARD_GROUPS, SHARED_GROUPS])
        ranked, refusing = draw.random() < 0.4, groups == NO_GROUPS and draw.random() < 0.3
        consumers = [consumer(draw, groups, ranked, number) for number in range(draw.choice([2, 3, 5]))]
        for one in consumers[:-2] if refusing else []:  # two are left that take everything
            one["refuses"] = 20
        producers, each = draw.choice([1, 2, 4]), draw.choice([200, 1000])
        for _ in range(ROUNDS):
            run(_probe_queue.ProbeQueue(kind, producers * each, 5, groups), producers, each, consumers)
