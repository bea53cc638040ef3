"""The consumers' lists in plain Python, one operation at a time: the oracle for core/waiting (nodelist, interest)."""

from __future__ import annotations

from dataclasses import dataclass, field

REMOVED, INTERESTED, NOTIFIED, NOT_INTERESTED, NON_ACQUIRING = 1, 2, 4, 8, 16
NO_PRIORITY = -(2**31)


class ReferenceList:
    """Entries are numbered in order of appending; a walk goes on from where it stood, deleted or not."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, object]] = []
        self.appended = 0

    def append(self, node: object) -> int:
        self.appended += 1
        self.entries.append((self.appended, node))
        return self.appended

    def delete(self, number: int) -> bool:
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[0] != number]
        return len(self.entries) < before

    def after(self, number: int) -> tuple[int, object] | None:
        return next((entry for entry in self.entries if entry[0] > number), None)

    def items(self) -> list[object]:
        return [node for _, node in self.entries]


@dataclass
class ReferenceCursor:
    """An iterator of a ReferenceList."""

    nodes: ReferenceList
    last: int = 0
    found: tuple[int, object] | None = None

    def has_next(self) -> bool:
        self.found = self.nodes.after(self.last)
        return self.found is not None

    def next(self) -> object | None:
        if self.found is None and not self.has_next():
            return None
        assert self.found is not None
        (self.last, node), self.found = self.found, None
        return node


@dataclass
class ReferenceInterest:
    """The state machine: nodes by number, as (priority, acquires), and each list in the order of its moves."""

    nodes: list[tuple[int, bool]] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)  # registered nodes, by their last move
    registered: list[int] = field(default_factory=list)  # by registration

    def make(self, priority: int, acquires: bool) -> int:
        self.nodes.append((priority, acquires))
        self.states.append(REMOVED)
        return len(self.nodes) - 1

    def move(self, number: int, allowed: int, target: int) -> bool:
        if not self.states[number] & allowed:
            return False
        self.states[number] = target
        if number in self.order:
            self.order.remove(number)
        if target != REMOVED:
            self.order.append(number)
        return True

    def ready(self, number: int) -> int:
        return INTERESTED if self.nodes[number][1] else NON_ACQUIRING

    def add(self, number: int, desired: bool) -> bool:
        moved = self.move(number, REMOVED, self.ready(number) if desired else NOT_INTERESTED)
        if moved:
            self.registered.append(number)
        return moved

    def remove(self, number: int) -> bool:
        moved = self.move(number, ~REMOVED, REMOVED)
        if moved:
            self.registered.remove(number)
        return moved

    def set(self, number: int, desired: bool) -> bool:
        if desired:
            return self.move(number, NOT_INTERESTED, self.ready(number))
        return self.move(number, INTERESTED | NOTIFIED | NON_ACQUIRING, NOT_INTERESTED)

    def notify(self, number: int) -> bool:
        return not self.nodes[number][1] or self.move(number, INTERESTED, NOTIFIED)

    def done(self, number: int) -> bool:
        return not self.nodes[number][1] or self.move(number, NOTIFIED, INTERESTED)

    def by_priority(self, numbers: list[int]) -> list[int]:
        return sorted(numbers, key=lambda number: -self.nodes[number][0])

    def listed(self, state: int) -> list[int]:
        numbers = [number for number in self.order if self.states[number] == state]
        return self.by_priority(numbers) if state & (INTERESTED | NOTIFIED) else numbers

    def all(self) -> list[int]:
        return self.by_priority(self.registered)

    def first(self) -> int:
        return next(iter(self.listed(INTERESTED)), -1)

    def highest_notified(self) -> int:
        return max((self.nodes[number][0] for number in self.listed(NOTIFIED)), default=NO_PRIORITY)
