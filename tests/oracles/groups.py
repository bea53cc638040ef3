"""Message groups in plain Python: whose a group is, and when it is free again.

put(key=...) names the group. `standard`: a group is its first consumer's for as long as that lives; messages without a
key belong to no group. `shared`: only while one of its messages is acquired; messages without a key are one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracles.kinds import Stored

NO_GROUP = "qpid.no-group"


@dataclass(eq=False)
class Assignment:
    """A group that is a consumer's, with its acquired messages."""

    owner: Any
    active: int = 0


class Groups:
    """`mode`: None, "standard" or "shared"."""

    def __init__(self, mode: str | None) -> None:
        self.mode = mode
        self.assigned: dict[Any, Assignment] = {}

    def of(self, message: Stored) -> Any:
        if message.key is None:
            return NO_GROUP if self.mode == "shared" else None
        return (message.key,)

    def allow(self, consumer: Any, message: Stored) -> bool:
        assignment = self.assigned.get(self.of(message))
        return not consumer.acquires or assignment is None or assignment.owner is consumer

    def acquired(self, consumer: Any, message: Stored) -> None:
        if self.mode is None or self.of(message) is None:
            return
        message.assignment = self.assigned.setdefault(self.of(message), Assignment(consumer))
        message.assignment.active += 1

    def settled(self, message: Stored) -> Any:
        """The group that became free by it, or None."""
        assignment, message.assignment = message.assignment, None
        if assignment is None:
            return None
        assignment.active -= 1
        group = self.of(message)
        if self.mode == "shared" and assignment.active == 0 and self.assigned.get(group) is assignment:
            del self.assigned[group]
            return group
        return None

    def clear(self, consumer: Any) -> list[Any]:
        """The consumer is gone; returns the groups that are free now."""
        groups = [group for group, assignment in self.assigned.items() if assignment.owner is consumer]
        for group in groups:
            del self.assigned[group]
        return groups
