"""Priorities of messages in plain Python: a scheduler for each, and the highest that has anything is asked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from oracles.dwrr import ReferenceDwrr

PRIORITIES = range(10)


class ReferencePriorities:
    """Ten times deficit weighted round robin, one behind the other, each with all slots."""

    def __init__(self, quanta: Mapping[Hashable, int]) -> None:
        self.of = {priority: ReferenceDwrr(quanta) for priority in PRIORITIES}

    def push(self, name: Hashable, token: int, cost: int, priority: int) -> None:
        for one in self.of.values():  # the largest cost is that of all
            one.max_cost = max(one.max_cost, cost)
        self.of[priority].push(name, token, cost)

    def pop(self) -> tuple[Hashable, int] | None:
        found = next((self.of[priority].pop() for priority in reversed(PRIORITIES) if len(self.of[priority])), None)
        assert not isinstance(found, int)
        return found

    def settle(self, name: Hashable, difference: int, priority: int) -> None:
        self.of[priority].settle(name, difference)

    def set_quantum(self, name: Hashable, quantum: int) -> None:
        for one in self.of.values():
            one.set_quantum(name, quantum)

    def hold(self, name: Hashable, held: bool) -> None:
        """Keep the deficits of an empty slot; none is waited for."""
        for one in self.of.values():
            one.hold(name, held, False)

    def deficit(self, name: Hashable) -> int:
        return sum(one.slots[name].deficit for one in self.of.values())

    def queued(self, name: Hashable) -> list[int]:
        """Return the number of messages by priority."""
        return [len(self.of[priority].slots[name].fifo) for priority in PRIORITIES]

    def served(self, name: Hashable) -> tuple[int, int]:
        """Return the number of messages served, and their cost."""
        slots = [one.slots[name] for one in self.of.values()]
        return sum(slot.served for slot in slots), sum(slot.work for slot in slots)
