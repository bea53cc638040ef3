"""With one slot, a FairQueue answers as `queue.Queue` does: the same methods, arguments and exceptions."""

from __future__ import annotations

import inspect
import queue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import FairQueue

OPERATIONS = st.lists(
    st.sampled_from(
        ["put_nowait", "get_nowait", "put", "get", "put without block", "get without block", "qsize", "empty", "full"]
    ),
    max_size=40,
)


class OneSlot:
    """A FairQueue with one slot, called as queue.Queue is."""

    def __init__(self, maxsize: int) -> None:
        self.queue = FairQueue({"slot": 1}, maxsize=maxsize)

    def put(self, item: Any, *arguments: Any) -> None:
        self.queue.put("slot", item, *arguments)

    def put_nowait(self, item: Any) -> None:
        self.queue.put_nowait("slot", item)

    def get(self, *arguments: Any) -> Any:
        return self.queue.get(*arguments)[1]

    def get_nowait(self) -> Any:
        return self.queue.get_nowait()[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


def outcome(one: Any, operation: str, item: int) -> Any:
    name, _, how = operation.partition(" ")
    waits = ([False] if how else [True, 0.001]) if name in ("put", "get") else []
    arguments = [item, *waits] if name.startswith("put") else waits
    try:
        return getattr(one, name)(*arguments)
    except (queue.Full, queue.Empty) as error:
        return type(error)


@given(st.integers(-1, 4), OPERATIONS)
def test_any_sequence_is_answered_alike(maxsize: int, operations: list[str]) -> None:
    ours, theirs = OneSlot(maxsize), queue.Queue[int](maxsize)
    for item, operation in enumerate(operations):
        assert outcome(ours, operation, item) == outcome(theirs, operation, item), operation


@pytest.mark.parametrize("name", ["put", "get", "qsize", "empty", "full"])
def test_arguments_stand_where_those_of_a_queue_stand(name: str) -> None:
    """But for the slot in front, and what only a fair queue has, which is by keyword."""
    ours = inspect.signature(getattr(FairQueue, name)).parameters.values()
    theirs = inspect.signature(getattr(queue.Queue, name)).parameters.values()
    places = [(one.name, one.default) for one in ours if one.kind is not one.KEYWORD_ONLY and one.name != "slot"]
    assert places == [(one.name, one.default) for one in theirs]


def test_costs_of_items_that_are_put_without_waiting() -> None:
    fair = FairQueue({"a": 2, "b": 2})
    for number in range(3):
        fair.put_nowait("a", number, cost=2)
        fair.put_nowait("b", number, cost=1)
    assert [fair.get_nowait() for _ in range(6)] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("b", 2), ("a", 2)]
