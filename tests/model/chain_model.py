"""core/connection/workset.pxd and the handshake of core/connection/scheduler.pxd, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Steps = Iterator[Callable[[], bool] | None]
STUB = "stub"


@dataclass
class WorksetModel:
    """Adders, each of one item after another, and one taker, which looks when an adder has said that there is work.

    An item's work is a number; to work on it is to take one off, so what gets more has to be taken again.
    """

    GUARDS = ("tells after adding", "clears before the look", "looks at the tail", "adds once")
    programs: list[str]
    kept: frozenset[str] = field(default_factory=lambda: frozenset(WorksetModel.GUARDS))

    def threads(self) -> list[Any]:
        self.work = dict.fromkeys("".join(self.programs), 0)
        self.flag = dict.fromkeys(self.work, False)
        self.next: dict[str, str | None] = {STUB: None} | dict.fromkeys(self.work)
        self.head = self.tail = STUB
        self.told = False
        self.linked = {STUB}
        return [self.taker()] + [self.adder(program) for program in self.programs]

    def adder(self, program: str) -> Steps:
        for item in program:
            yield None
            self.work[item] += 1
            if "tells after adding" not in self.kept:
                yield None
                self.told = True
            yield None
            if self.flag[item] and "adds once" in self.kept:
                continue
            self.flag[item] = True
            yield from self.link(item)
            if "tells after adding" in self.kept:
                yield None
                self.told = True

    def link(self, item: str) -> Steps:
        self.next[item] = None
        yield None
        assert item not in self.linked, f"{item} is in the set twice"
        self.linked.add(item)
        before, self.tail = self.tail, item  # W1
        yield None
        self.next[before] = item  # W2

    def taker(self) -> Steps:
        while True:
            yield lambda: self.told
            self.told = False
            item: str | None = STUB
            while item is not None:
                item = yield from self.unlink()
                if item is not None:
                    yield from self.serve(item)

    def serve(self, item: str) -> Steps:
        yield None
        if "clears before the look" in self.kept:
            self.flag[item] = False
            yield None
        found = self.work[item]
        yield None
        self.work[item] -= found
        if "clears before the look" not in self.kept:
            yield None
            self.flag[item] = False

    def unlink(self) -> Any:
        yield None
        item, following = self.head, self.next[self.head]
        if item == STUB:
            if following is None:
                return None
            self.linked.discard(STUB)
            self.head = item = following
            yield None
            following = self.next[item]
        if following is None:
            yield None
            if "looks at the tail" in self.kept:
                if self.tail != item:
                    return None
                yield from self.link(STUB)
                yield None
                following = self.next[item]
                if following is None:
                    return None
            else:  # the last, as it seems: begin again with an empty set
                self.next[STUB] = None
                self.tail = following = STUB
                self.linked.add(STUB)
        self.linked.discard(item)
        self.head = following
        return item

    def check(self, finished: list[bool]) -> None:
        assert all(finished[1:])
        waiting = [item for item, work in self.work.items() if work]
        assert not waiting, f"{waiting} has work and is not taken"


@dataclass
class HandshakeModel:
    """Notifiers of one connection, and I/O threads that take it from the run queue and make passes.

    A notifier makes a message visible and then says so; a pass looks, then serves what it saw. Without "stores before
    it loads", the message is a store that stays in the notifier's buffer, past the loads that follow, until it drains
    or a read-modify-write waits for that.
    """

    GUARDS = (
        "notifier sets changed",
        "thread looks again",
        "clears before the look",
        "one pushes",
        "stores before it loads",
    )
    notifiers: int
    threads_inside: int
    messages: int = 1  # of each notifier
    kept: frozenset[str] = field(default_factory=lambda: frozenset(HandshakeModel.GUARDS))

    def threads(self) -> list[Any]:
        self.waiting = 0
        self.served = 0
        self.changed = self.scheduled = False
        self.queue = 0  # how often the connection stands in the run queue
        self.inside = 0
        self.buffered = [False] * self.notifiers
        notifiers = range(self.notifiers)
        return [
            *(self.io_thread() for _ in range(self.threads_inside)),
            *(self.notifier(me) for me in notifiers),
            *(self.store_buffer(me) for me in notifiers if "stores before it loads" not in self.kept),
        ]

    def store_buffer(self, me: int) -> Steps:
        for _ in range(self.messages):
            yield lambda: self.buffered[me]
            self.waiting += 1
            self.buffered[me] = False

    def notifier(self, me: int) -> Steps:
        for _ in range(self.messages):
            yield None
            if "stores before it loads" in self.kept:
                self.waiting += 1
            else:
                self.buffered[me] = True
            yield None
            if self.changed:  # H0
                continue
            yield lambda: not self.buffered[me]
            scheduled, self.scheduled = self.scheduled, True  # H1
            if "notifier sets changed" in self.kept:
                self.changed = True
            if not scheduled or "one pushes" not in self.kept:
                yield None
                self.queue += 1

    def io_thread(self) -> Steps:
        while True:
            yield lambda: self.queue > 0
            self.queue -= 1
            while True:
                yield from self.one_pass()
                yield None
                if not self.changed or "thread looks again" not in self.kept:
                    self.scheduled = False  # H3
                    break

    def one_pass(self) -> Steps:
        self.inside += 1
        assert self.inside == 1, "two threads are in one connection"
        if "clears before the look" in self.kept:
            yield None
            self.changed = False  # H2
        yield None
        seen = self.waiting
        if seen:
            yield None
            self.waiting -= seen
            self.served += seen
        if "clears before the look" not in self.kept:
            yield None
            self.changed = False
        self.inside -= 1

    def check(self, finished: list[bool]) -> None:
        assert all(finished[self.threads_inside :])
        assert not self.waiting, "a message waits and its connection rests"
        assert self.served == self.notifiers * self.messages
        assert not self.scheduled
        assert not self.queue
