"""All schedules of a lane, its publisher and two workers, one of which may die; and each guard shown to be needed."""

from __future__ import annotations

from typing import Any

import pytest
from model.explore import Fault, schedules
from model.lanes_model import LanesModel


@pytest.mark.parametrize(
    ("options", "preemptions"),
    [
        ({"known": False}, 3),
        ({"known": False, "publishes": 2}, 3),
        ({"known": False, "crashes": True}, 3),
        ({"known": False, "reads": True, "handles": 0}, 3),
        ({}, 3),
        ({"publishes": 2}, 1),
        ({"crashes": True}, 2),
        ({"handles": 0, "crashes": True}, 2),
        ({"reads": True}, 2),
        ({"handles": 0, "reads": True}, 2),
        ({"crashes": True, "reads": True}, 1),
    ],
    ids=str,
)
def test_messages_are_neither_lost_nor_left_alone(options: dict[str, Any], preemptions: int) -> None:
    assert sum(1 for _ in schedules(lambda: LanesModel(**options), preemptions))


@pytest.mark.parametrize(
    ("guard", "options", "fault"),
    [
        ("if_empty", {}, "lost with its lane"),
        ("if_unused", {}, "lost"),
        ("closes", {}, "lost with its lane"),
        ("mandatory", {}, "a message is lost"),
        ("patient", {"crashes": True}, "not consumed"),
        ("remembers", {"known": False, "handles": 0}, "not be found"),
        ("after", {"known": False}, "not consumed"),
    ],
)
def test_without_a_guard_there_is_a_fault(guard: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(Fault, match=fault):
        list(schedules(lambda: LanesModel(**{guard: False}, **options), preemptions=3))
