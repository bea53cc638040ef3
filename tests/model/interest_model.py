"""The lists of core/waiting/interest.pxd, step by step: a node that several threads move, and the bitmap of levels.

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


@dataclass(eq=False)
class Entry:
    """The node's entry in a list."""

    where: str
    marked: bool = False


@dataclass
class MoveModel:
    """Threads that move one node. `marks`: one thread wins the mark. `entry_first`: the state is read after it."""

    programs: list[list[str]]
    state: str = INTERESTED
    marks: bool = True
    entry_first: bool = True

    def threads(self) -> list[Any]:
        self.begun = self.state
        self.now = self.state
        self.entry = Entry(self.state)
        self.entries = [self.entry]
        self.moved: list[str] = []
        return [self.run(program) for program in self.programs]

    def run(self, program: list[str]) -> Steps:
        for move in program:
            yield from self.move(move, *MOVES[move])

    def move(self, move: str, allowed: str, target: str) -> Steps:
        while True:
            yield None
            entry, state = self.entry, self.now
            yield None
            if self.entry_first:
                state = self.now
            else:
                entry = self.entry
            if state not in allowed:
                return
            yield None
            if not entry.marked or not self.marks:
                entry.marked = True
                break
            yield lambda old=entry: self.entry is not old  # spins
        self.moved.append(move)
        yield None
        self.now = target
        yield None
        entry = Entry(target)
        self.entries.append(entry)
        yield None
        self.entry = entry

    def check(self, finished: list[bool]) -> None:
        assert all(finished)
        listed = [entry.where for entry in self.entries if not entry.marked]
        assert listed == [self.now], f"the node is {self.now} and stands in {listed}"
        assert not self.entry.marked
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
        self.table = Table(0, [self.marked, False])  # below ours is another, where no node is
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
        """Enqueue, then find a node to notify."""
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
