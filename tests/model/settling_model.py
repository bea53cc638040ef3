"""Settlements on their way to the I/O thread, step by step: threads settle, mark the channel, and ask for the sending.

The steps are those of _delivery.pyx and consumer/io_thread.py: a stretch without Python code is one step. The ledger of
the one channel is a number here, since `AckLedger` excludes by itself. The timer, which would send in the end whatever
became of a request, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
GUARDS = (
    "settles before it marks",
    "marks before it asks",
    "notes the request before it makes it",
    "clears the request before it takes",
    "takes and unmarks in one step",
    "unmarks before it flushes",
)


@dataclass
class SettlingModel:
    """Threads that settle so many messages each, and the I/O thread. `missing` is a guard that is left out."""

    settlers: tuple[int, ...]
    missing: str = ""
    pending: int = 0  # settled in the ledger, and not sent
    sent: int = 0
    marked: bool = False  # ChannelDeliveries.unsent
    unsent: list[str] = field(default_factory=list)
    requested: bool = False
    callbacks: int = 0  # of the loop, which are still to be called

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        return [self.settle(count) for count in self.settlers] + [self.serve()]

    # A thread that settles ----------------------------------------------------------------------------------------

    def settle(self, count: int) -> Steps:
        for _ in range(count):
            steps = [self.note, self.mark] if self.kept("settles before it marks") else [self.mark, self.note]
            if self.kept("marks before it asks"):
                steps.append(self.ask)
            else:
                steps.insert(1, self.ask)
            for step in steps:
                yield from step()

    def note(self) -> Steps:
        yield None
        self.pending += 1

    def mark(self) -> Steps:
        yield None
        if not self.marked:
            self.marked = True
            self.unsent.append("channel")

    def ask(self) -> Steps:
        yield None
        if not self.unsent or self.requested:
            return
        yield None
        if self.kept("notes the request before it makes it"):
            self.requested = True
        yield None
        self.callbacks += 1
        if not self.kept("notes the request before it makes it"):
            yield None
            self.requested = True

    # The I/O thread -----------------------------------------------------------------------------------------------

    def serve(self) -> Steps:
        while True:
            yield lambda: self.callbacks > 0
            self.callbacks -= 1
            if self.kept("clears the request before it takes"):
                yield None
                self.requested = False
            found = yield from self.take()
            for _ in found:
                yield None
                self.sent, self.pending = self.sent + self.pending, 0
                if not self.kept("unmarks before it flushes"):
                    yield None
                    self.marked = False
            if not self.kept("clears the request before it takes"):
                yield None
                self.requested = False

    def take(self) -> Iterator[Callable[[], bool] | None]:
        yield None
        if not self.kept("takes and unmarks in one step"):
            self.marked = False
            yield None
        found, self.unsent = self.unsent, []
        if self.kept("unmarks before it flushes") and self.kept("takes and unmarks in one step"):
            self.marked = False
        return found  # a sub-generator's result

    def check(self, finished: list[bool]) -> None:
        assert all(finished[:-1]), "a thread that settles is blocked"
        assert self.pending == 0, "a settlement is not sent, and no thread will send it"
        assert self.sent == sum(self.settlers)
