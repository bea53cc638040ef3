"""core/waiting/nodelist.pxd and reclaim.pxd, step by step: what may happen between any two accesses to shared memory.

An entry that is freed stays, and touching it is the fault. Each guard can be taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Steps = Iterator[Callable[[], bool] | None]


@dataclass(eq=False)
class Entry:
    """One entry. `next` is (successor, marked), one word in memory."""

    node: str | None = None
    next: tuple[Entry | None, bool] = (None, False)
    retired: bool = False
    freed: bool = False


@dataclass
class Guards:
    """The invariant of the list."""

    pinned: bool = True  # what is unlinked waits; otherwise it is freed at once
    grace: int = 3  # for so many epochs
    looks_at_pins: bool = True  # the epoch waits for threads that are inside
    frozen: bool = True  # nothing is unlinked from a dead entry
    keeps_tail: bool = True  # a dead tail is not unlinked


@dataclass
class NodeListModel:
    """Threads, each a list of operations: append, delete or move NAME, walk; each lets an epoch pass if it can.

    Entries of `initial` are there before; those in capitals are dead.
    """

    programs: list[list[str]]
    initial: str = ""
    guards: Guards = field(default_factory=Guards)

    def threads(self) -> list[Any]:
        self.head = self.tail = Entry()
        self.entries: dict[str, Entry] = {}
        self.walks: list[list[str]] = []
        self.epoch = 1
        self.pins = [0] * len(self.programs)
        self.bag: list[tuple[int, Entry]] = []
        for name in self.initial:
            entry = self.entries[name] = Entry(name)
            self.tail.next = (entry, self.tail.next[1])
            self.tail = entry
            if name.isupper():
                entry.node, entry.next = None, (None, True)
        return [self.run(number, program) for number, program in enumerate(self.programs)]

    def run(self, pin: int, program: list[str]) -> Steps:
        for step in program:
            what, _, name = step.partition(" ")
            yield
            epoch = self.epoch
            yield
            self.pins[pin] = epoch
            if what == "append":
                yield from self.append(name)
            elif what == "delete":
                yield from self.delete(name)
            elif what == "move":
                yield from self.move(name)
            elif what == "walk":
                yield from self.walk()
            yield from self.advance()
            yield
            self.pins[pin] = 0

    @staticmethod
    def next_of(entry: Entry) -> tuple[Entry | None, bool]:
        assert not entry.freed, "use after free"
        return entry.next

    def swap_next(self, entry: Entry, expected: tuple[Entry | None, bool], desired: tuple[Entry, bool]) -> bool:
        if self.next_of(entry) != expected:
            return False
        entry.next = desired
        return True

    def swap_tail(self, expected: Entry, desired: Entry) -> bool:
        if self.tail is not expected:
            return False
        self.tail = desired
        return True

    def append(self, name: str) -> Steps:
        entry = Entry(name)
        while True:
            yield
            tail = self.tail
            yield
            following, dead = self.next_of(tail)
            if following is not None:
                yield
                self.swap_tail(tail, following)
                continue
            yield
            if self.swap_next(tail, (None, dead), (entry, dead)):
                yield
                self.swap_tail(tail, entry)
                yield
                self.entries[name] = entry
                return

    def delete(self, name: str) -> Steps:
        entry = self.entries[name]
        yield
        if self.mark(entry):
            yield
            self.clear(entry)

    def mark(self, entry: Entry) -> bool:
        following, dead = self.next_of(entry)
        entry.next = (following, True)
        return not dead

    @staticmethod
    def clear(entry: Entry) -> None:
        assert not entry.freed, "use after free"
        entry.node = None

    def move(self, name: str) -> Steps:
        """A consumer node's move: its entry, found by its name, is the lock."""
        while True:
            yield
            entry = self.entries[name]
            yield
            if not self.next_of(entry)[1]:
                yield
                if self.mark(entry):
                    break
            yield lambda old=entry: self.entries[name] is not old  # spins
        yield
        self.clear(entry)
        yield from self.append(name)

    def walk(self) -> Steps:
        names: list[str] = []
        self.walks.append(names)
        entry = self.head
        while True:
            yield
            first, entry_dead = self.next_of(entry)
            current = first
            if current is None:
                return
            yield
            following, dead = self.next_of(current)
            while dead and following is not None:
                current = following
                yield
                following, dead = self.next_of(current)
            if dead and not self.guards.keeps_tail and not entry_dead:
                yield
                if self.swap_next(entry, (first, False), (None, False)):  # type: ignore[arg-type]
                    yield from self.retire(current)
            if current is not first and not (entry_dead and self.guards.frozen):
                yield from self.unlink(entry, (first, entry_dead), current)
            if dead:
                return
            yield
            assert not current.freed, "use after free"
            if current.node is not None:
                names.append(current.node)
                entry = current

    def unlink(self, entry: Entry, expected: tuple[Entry | None, bool], after: Entry) -> Steps:
        yield
        if self.swap_next(entry, expected, (after, expected[1])):
            victim = expected[0]
            while victim is not after:
                assert victim is not None
                following = self.next_of(victim)[0]
                yield from self.retire(victim)
                victim = following

    def retire(self, entry: Entry) -> Steps:
        assert not entry.retired, "retired twice"
        entry.retired = True
        if not self.guards.pinned:
            entry.freed = True
            return
        yield
        self.bag.append((self.epoch, entry))

    def advance(self) -> Steps:
        yield
        epoch = self.epoch
        if self.guards.looks_at_pins:
            for number in range(len(self.pins)):
                yield
                if self.pins[number] not in (0, epoch):
                    return
        yield
        if self.epoch == epoch:
            self.epoch += 1
            for stamp, entry in self.bag:
                if stamp <= self.epoch - self.guards.grace:
                    entry.freed = True

    def check(self, finished: list[bool]) -> None:
        assert all(finished)
        steps = [step.partition(" ")[::2] for program in self.programs for step in program]
        deleted = {name for what, name in steps if what == "delete"} | {name for name in self.initial if name.isupper()}
        expected = {name for what, name in steps if what == "append"} | set(self.initial)
        alive, entry = [], self.head
        while entry.next[0] is not None:
            entry = entry.next[0]
            assert not entry.freed, "a freed entry is linked"
            alive += [] if entry.next[1] else [entry.node]
        assert sorted(alive) == sorted(expected - deleted), f"{alive} are alive"
        assert self.tail is entry, "the tail is not the last"
        moved = {name for what, name in steps if what == "move"}
        stay = [name for name in self.initial if name not in deleted | moved]
        for names in self.walks:
            assert [name for name in names if name in stay] == stay, f"a walk met {names}"
            once = [name for name in names if name not in moved]
            assert len(set(once)) == len(once), f"a walk met {names}"
