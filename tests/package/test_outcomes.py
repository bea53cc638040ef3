"""The sums of `make chaos`."""

from __future__ import annotations

import json

import pytest
from support.outcomes import Outcomes, counted


@pytest.mark.parametrize(
    ("expected", "handled", "lost", "again", "overtaken"),
    [
        ([], [], 0, 0, 0),
        ([1, 2, 3], [1, 2, 3], 0, 0, 0),
        ([1, 2, 3], [1, 3], 1, 0, 0),
        ([1, 2, 3], [], 3, 0, 0),
        ([1, 2, 3], [1, 2, 1, 2, 3], 0, 2, 0),
        ([1, 2, 3], [3, 1, 2, 3], 0, 1, 2),
        ([1, 2, 3, 4], [2, 1, 4, 3], 0, 0, 2),
        ([2, 1], [2, 1], 0, 0, 0),
        ([1], [1, 5, 5], 0, 1, 0),  # 5 was not to be seen in the end
    ],
)
def test_counts(expected: list[int], handled: list[int], lost: int, again: int, overtaken: int) -> None:
    counts = counted(expected, handled)
    assert counts == {"messages": len(expected), "lost": lost, "again": again, "overtaken": overtaken}


def test_what_has_no_order_is_not_overtaken() -> None:
    assert counted({1, 2, 3}, [3, 1]) == {"messages": 3, "lost": 1, "again": 0}


def test_runs_are_added_up_and_noted() -> None:
    noted: list[tuple[str, object]] = []
    Outcomes(lambda *pair: noted.append(pair)).note("kill", "us", ([1, 2], [1]), ([1, 2], [2, 1, 1]))
    [(name, value)] = noted
    assert name == "outcome"
    assert json.loads(str(value)) == {
        "fault": "kill", "subject": "us", "messages": 4, "lost": 1, "again": 1, "overtaken": 1,
    }  # fmt: skip
