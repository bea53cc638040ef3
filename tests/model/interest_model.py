"""core/interest.pxd and core/levels.pxd, step by step: a node that several threads move, and the bitmap of levels.

The lists themselves are atomic here; nodelist_model.py opens them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Steps = Iterator[Callable[[], bool] | None]
INTERESTED, NOTIFIED, NOT_INTERESTED = "I", "N", "X"
MOVES = {
    "notify": (INTERESTED, NOTIFIED),
    "done": (NOTIFIED, INTERESTED),
    "set": (NOT_INTERESTED, INTERESTED),
    "unset": (INTERESTED + NOTIFIED, NOT_INTERESTED),
}


@dataclass
class MoveModel:
    """Threads that move one node. Without `locks`, the test of the state and the move are two steps."""

    programs: list[list[str]]
    state: str = INTERESTED
    locks: bool = True

    def threads(self) -> list[Any]:
        self.locked = False
        self.begun = self.state
        self.lists = {INTERESTED: 0, NOTIFIED: 0, NOT_INTERESTED: 0}
        self.lists[self.state] = 1
        self.entry = self.state  # the list in which the node's entry stands
        self.moved: list[str] = []
        return [self.run(program) for program in self.programs]

    def run(self, program: list[str]) -> Steps:
        for move in program:
            allowed, target = MOVES[move]
            yield (lambda: not self.locked) if self.locks else None
            if self.state not in allowed:
                continue
            self.locked = True
            yield None
            source = self.entry
            yield None
            if self.lists[source]:  # delete marks an entry once
                self.lists[source] -= 1
            yield None
            self.lists[target] += 1
            yield None
            self.entry = target
            yield None
            self.state = target
            self.moved.append(move)
            self.locked = False

    def check(self, finished: list[bool]) -> None:
        assert all(finished)
        assert sum(self.lists.values()) == 1, f"the node stands in {self.lists}"
        assert self.lists[self.state] == 1, f"the node is {self.state} and stands in {self.lists}"
        state = self.begun  # the moves that took place are a walk through the table
        for move in self.moved:
            assert state in MOVES[move][0], f"{self.moved} is no walk from {self.begun}"
            state = MOVES[move][1]


@dataclass
class Table:
    """A table of levels: where ours stands in it, and the bits."""

    index: int
    bits: list[bool]
    clearing: int = 0  # at work
    cleared: int = 0  # and there ever were


@dataclass
class LevelsModel:
    """A consumer that goes to sleep while a producer looks for one, another finder cleans up, and the table changes.

    `kept` are the guards; any of those named in GUARDS may be missing. `marked`: the bit of our level in the beginning.
    """

    GUARDS = ("looks again", "distrusts", "starts set", "checks the hint", "marks after the append")
    actors: str = "consumer producer finder"
    kept: frozenset[str] = field(default_factory=lambda: frozenset(LevelsModel.GUARDS))
    marked: bool = True

    def threads(self) -> list[Any]:
        self.table = Table(0, [self.marked, False])  # below ours is another, where nobody is
        self.hint = 0
        self.interested = False  # our consumer stands in the list of its level
        self.messages = 0
        self.awake = False  # it took a message, or was notified
        return [getattr(self, actor)() for actor in self.actors.split()]

    def consumer(self) -> Steps:
        """Done: append, then mark, and then look at the queue."""
        if "marks after the append" in self.kept:
            yield None
            self.interested = True
        yield None
        table = self.table
        yield None
        at = self.hint
        if at >= len(table.bits) or ("checks the hint" in self.kept and at != table.index):
            at = table.index
        yield None
        if not table.bits[at]:
            yield None
            table.bits[at] = True
        if "marks after the append" not in self.kept:
            yield None
            self.interested = True
        yield None
        self.awake |= self.messages > 0

    def producer(self) -> Steps:
        """Enqueue, then find somebody to notify."""
        yield None
        self.messages += 1
        yield from self.finder()

    def finder(self) -> Steps:
        yield None
        table = self.table
        for at in range(len(table.bits)):
            yield None
            clearing, cleared = table.clearing, table.cleared
            yield None
            bit = table.bits[at]
            yield None
            stable = (table.clearing, table.cleared) == (clearing, cleared) and not clearing
            if (stable or "distrusts" not in self.kept) and not bit:
                continue
            yield None
            if at == table.index and self.interested:
                self.awake = True
                return
            yield from self.unmark(table, at)

    def unmark(self, table: Table, at: int) -> Steps:
        yield None
        if not table.bits[at]:
            return
        yield None
        if at == table.index and self.interested:
            return
        yield None
        table.clearing += 1
        table.cleared += 1
        yield None
        table.bits[at] = False
        yield None
        if "looks again" in self.kept and at == table.index and self.interested:
            yield None
            table.bits[at] = True
        yield None
        table.clearing -= 1

    def registrar(self) -> Steps:
        """A higher priority comes: ours stands one further down in a new table."""
        bits = [True] * 3 if "starts set" in self.kept else [True, *self.table.bits]
        yield None
        self.hint = 1
        yield None
        self.table = Table(1, bits)

    def check(self, finished: list[bool]) -> None:
        assert all(finished)
        assert self.awake or not (self.messages and self.interested), "a message waits and its consumer sleeps"
