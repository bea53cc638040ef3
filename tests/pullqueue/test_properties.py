"""PullQueue against the oracle, on whatever Hypothesis thinks of: every result, every list, every count."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from support.queue_machine import QueueMachine, seldom


class PriorityMachine(QueueMachine):
    kind = "priority"
    browsers = False
    options = st.fixed_dictionaries({"levels": st.sampled_from([1, 2, 3, 10])})

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {**super().message(data), "priority": data.draw(st.integers(-1, 11))}


class SortedMachine(QueueMachine):
    kind = "sorted"
    browsers = False

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {**super().message(data), "key": data.draw(st.sampled_from([None, "", "a", "b", "ba", 1, 10, 9]))}


class LastValueMachine(QueueMachine):
    kind = "last-value"

    def message(self, data: st.DataObject) -> dict[str, Any]:
        ttl = {"ttl": data.draw(st.integers(0, 5))} if data.draw(seldom) else {}
        return {**ttl, "key": data.draw(st.sampled_from([None, "a", "b", "c"]))}


class FairMachine(QueueMachine):
    kind = "fair"
    browsers = False
    times = ("ttl",)  # with held ones that become due as well, what has expired may leave in the order of turns
    options = st.fixed_dictionaries(
        {"quanta": st.sampled_from([{"a": 1, "b": 1, "c": 1}, {"a": 3, "b": 1, "c": 2}, {"a": 2, "b": 5, "c": 1}])}
    )

    def message(self, data: st.DataObject) -> dict[str, Any]:
        slot = {"slot": data.draw(st.sampled_from("abc")), "size": data.draw(st.integers(0, 9))}
        return {**super().message(data), **slot}


class FairGroupMachine(FairMachine):
    """The receiver of each message, and that no consumer sleeps beside one;
    not which one is told of a group that has become free.

    The oracle offers the group's first message, whichever consumer that is for; the engine tells one only if a
    message of the group was passed over.
    """

    filters = ("all",)
    times = ("held",)
    options = st.fixed_dictionaries(
        {
            "quanta": st.sampled_from([{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 5, "c": 1}]),
            "groups": st.sampled_from(["standard", "shared"]),
        }
    )

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {**super().message(data), "key": data.draw(st.sampled_from([None, 1, 2, 3]))}

    @rule()
    def run(self) -> None:
        while notified := self.queues[1].lists()["notified"]:
            pair = next(pair for pair in self.consumers if pair[1].name == notified[0])
            self.received(*(consumer.pull() for consumer in pair))
        for pair in self.consumers:
            assert [consumer.pull() for consumer in pair] == [None, None]

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "queues"):
            return
        reference, compiled = self.queues
        assert (reference.depth, reference.available) == (compiled.depth, compiled.available)
        assert self.dead[0] == self.dead[1]
        assert all(one.interested == other.interested for one, other in self.consumers)


class RingMachine(QueueMachine):
    options = st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["standard", "sorted", "last-value"]),
            "overflow": st.sampled_from(["ring", "reject"]),
            "max_depth": st.integers(1, 5),
            "max_bytes": st.sampled_from([0, 10]),
        }
    )
    browsers = False

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {"size": data.draw(st.integers(0, 4)), "key": data.draw(st.sampled_from([None, "a", "b"]))}


class GroupMachine(QueueMachine):
    options = st.fixed_dictionaries({"groups": st.sampled_from(["standard", "shared"])})
    filters = ("all",)

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {"key": data.draw(st.sampled_from([None, 1, 2, 3]))}


class LiveMachine(QueueMachine):
    options = st.fixed_dictionaries(
        {
            "live_consumers": st.integers(1, 2),
            "max_deliveries": st.integers(0, 3),
            "ttl": st.sampled_from([None, 3]),
        }
    )
    browsers = False

    def message(self, data: st.DataObject) -> dict[str, Any]:
        return {"ttl": data.draw(st.sampled_from([None, 0, 2, 10]))}


MACHINES = {
    machine.__name__: machine
    for machine in (
        QueueMachine,
        PriorityMachine,
        SortedMachine,
        LastValueMachine,
        FairMachine,
        FairGroupMachine,
        RingMachine,
        GroupMachine,
        LiveMachine,
    )
}
# Quick and the same each time, unless a profile asks for more.
PROFILE = (
    settings(stateful_step_count=80)
    if os.environ.get("HYPOTHESIS_PROFILE", "default") != "default"
    else settings(stateful_step_count=50, max_examples=30, derandomize=True)
)


@pytest.mark.parametrize("name", MACHINES)
def test_any_sequence_does_what_the_oracle_does(name: str) -> None:
    machine: Any = MACHINES[name].TestCase
    machine.settings = PROFILE
    machine().runTest()
