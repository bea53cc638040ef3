"""Going past messages for a consumer of higher priority, step by step: one looks, goes past, and calls back.

High is busy with a message, and does not come back; it loses interest at some time, and may be interested again. Low
has been told, and pulls until it finds nothing for it. What is under the queue's lock is one step; so is a move of a
node between lists, and a look at its state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

Steps = Generator[Callable[[], bool] | None, None, Any]
INTERESTED, NOTIFIED, NOT_INTERESTED = "I", "N", "X"


@dataclass
class YieldingModel:
    """`program`: what becomes of high; `messages`: which consumer each is for, "both" or "low"."""

    GUARDS = (
        "looks at the state again under the lock",
        "marks the consumer it goes past for",
        "calls back after the move",
        "passes on after it has called back",
    )
    program: tuple[str, ...]
    messages: tuple[str, ...]
    kept: frozenset[str] = field(default_factory=lambda: frozenset(YieldingModel.GUARDS))

    def threads(self) -> list[Any]:
        self.high, self.low = NOTIFIED, NOTIFIED
        self.told, self.marked = True, False
        self.available = [True] * len(self.messages)
        self.cursor = 0
        self.yielded: int | None = None  # the first message that low has gone past
        return [self.pulls(), self.changes()]

    def ready(self) -> bool:
        return self.high != NOT_INTERESTED

    # -- high ---------------------------------------------------------------------------------------------------------

    def changes(self) -> Steps:
        for what in self.program:
            yield None
            if what == "on":
                self.high = NOTIFIED  # and it is busy again with another message, at once
                continue
            if "calls back after the move" not in self.kept:
                self.recall()
                yield None
            self.high = NOT_INTERESTED
            if "passes on after it has called back" not in self.kept:
                yield from self.pass_on()
            yield None
            if "calls back after the move" in self.kept:
                self.recall()
            if "passes on after it has called back" in self.kept:
                yield from self.pass_on()

    def recall(self) -> None:
        """Under the lock."""
        if self.marked and self.yielded is not None:
            self.cursor, self.yielded = min(self.cursor, self.yielded), None
        self.marked = False

    def pass_on(self) -> Steps:
        yield None
        if self.low == INTERESTED:
            found = yield from self.seek()
            yield None
            if found is not None and self.low == INTERESTED:
                self.low = NOTIFIED
                yield None
                self.told = True

    # -- low ----------------------------------------------------------------------------------------------------------

    def pulls(self) -> Steps:
        while True:
            yield lambda: self.told
            self.told = False
            while (yield from self.pull()):
                pass

    def pull(self) -> Steps:
        """Its last look is made from the list of the interested; what it finds is taken if it is still there."""
        at = yield from self.seek()
        if at is None:
            yield None
            self.low = INTERESTED if self.low == NOTIFIED else self.low
            at = yield from self.seek()
        yield None
        if at is None:
            return False
        taken, self.available[at] = self.available[at], False
        self.low = NOTIFIED
        return taken

    def seek(self) -> Steps:
        """The next message for low, by low or by the thread that passes work on to it; the cursor is before it then."""
        while True:
            yield None
            while self.cursor < len(self.messages) and not self.available[self.cursor]:
                self.cursor += 1
            if self.cursor == len(self.messages):
                return None
            at = self.cursor
            yield None
            if self.messages[at] == "low" or not self.ready():
                return at
            yield None
            again = self.ready() or "looks at the state again under the lock" not in self.kept
            if again and self.cursor == at:
                self.marked = "marks the consumer it goes past for" in self.kept
                self.yielded = at if self.yielded is None else min(at, self.yielded)
                self.cursor = at + 1

    def check(self, finished: list[bool]) -> None:
        assert finished[1], "blocked"
        for at, taste in enumerate(self.messages):
            waits = self.available[at] and (taste == "low" or not self.ready())
            assert not (waits and self.low == INTERESTED), f"message {at} waits and low sleeps"
