"""The two pull queues that the same tests run on, and how their lists are written in the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracles.queue import ReferenceQueue
from oracles.target import ReferenceTarget

Engine = Callable[..., Any]


def compiled_queue(*arguments: Any, **options: Any) -> Any:
    """fairsched.pullqueue.PullQueue, looked up when it is needed, so that the tests of the reference do not need it."""
    from fairsched.pullqueue import PullQueue

    return PullQueue(*arguments, **options)


def compiled_target(*arguments: Any) -> Any:
    from fairsched.pullqueue import Target

    return Target(*arguments)


on_both = pytest.mark.parametrize(
    "engine", [pytest.param(ReferenceQueue, id="reference"), pytest.param(compiled_queue, id="compiled")]
)
targets_on_both = pytest.mark.parametrize(
    ("engine", "target"),
    [
        pytest.param(ReferenceQueue, ReferenceTarget, id="reference"),
        pytest.param(compiled_queue, compiled_target, id="compiled"),
    ],
)

LETTERS = {"interested": "I", "notified": "N", "not_interested": "X", "non_acquiring": "B"}


def lists_of(queue: Any) -> str:
    """The lists that are not empty, in order: I[A,B] N[D]."""
    lists = queue.lists()
    assert list(lists) == list(LETTERS)
    return " ".join(f"{LETTERS[name]}[{','.join(names)}]" for name, names in lists.items() if names)


def items(entries: list[Any]) -> list[Any]:
    return [entry.item for entry in entries]


def pulled(subscription: Any) -> Any:
    """The item of the next entry, which is left unsettled; None: there is none."""
    entry = subscription.pull()
    return None if entry is None else entry.item


def drain(subscription: Any) -> list[Any]:
    """Pull until nothing comes."""
    entries = []
    while (entry := subscription.pull()) is not None:
        entries.append(entry)
    return entries


def run(queue: Any, *subscriptions: Any) -> dict[str, list[Any]]:
    """Run to quiescence: notified consumers pull, one message at a time in turn; the entries of each."""
    got: dict[str, list[Any]] = {subscription.name: [] for subscription in subscriptions}
    while notified := queue.lists()["notified"]:
        for subscription in subscriptions:
            if subscription.name in notified and (entry := subscription.pull()) is not None:
                got[subscription.name].append(entry)
    return got


def run_items(queue: Any, *subscriptions: Any) -> dict[str, list[Any]]:
    return {name: items(entries) for name, entries in run(queue, *subscriptions).items()}
