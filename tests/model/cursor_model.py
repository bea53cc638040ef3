"""Cursors and standard groups, step by step: consumers look, take, give back, or go and leave their groups.

What is under the queue's lock is one step here: a look (which carries a cursor past what is not for its consumer), an
acquire, a settlement with the recall of the cursors, a consumer's going. A move between lists is one as well, and so is
every question put to a consumer while a thread walks over the interested.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

Steps = Generator[Callable[[], bool] | None, None, Any]
INTERESTED, NOTIFIED, GONE = "I", "N", "X"
AVAILABLE, ACQUIRED, DELETED = range(3)


@dataclass(eq=False)
class Consumer:
    """`deeds`: what it does with each message it gets; "ack" with all after those. "quit" comes after an ack."""

    name: str
    deeds: tuple[str, ...] = ()
    state: str = INTERESTED
    told: bool = False
    passed: int = -1  # the cursor: the message gone past last


@dataclass(eq=False)
class Message:
    group: str
    state: int = AVAILABLE


@dataclass
class CursorModel:
    """`backlog` and `puts`: a letter for each message, its group. Every consumer has been told of the backlog."""

    GUARDS = (
        "takes what still comes first",
        "recalls to what is given back",
        "notes what is skipped",
        "recalls to what was skipped",
        "passes on when it goes",
    )
    consumers: Callable[[], list[Consumer]]
    backlog: str = ""
    puts: str = ""
    kept: frozenset[str] = field(default_factory=lambda: frozenset(CursorModel.GUARDS))

    def threads(self) -> list[Any]:
        self.all = self.consumers()
        self.messages = [Message(group) for group in self.backlog]
        self.owners: dict[str, Consumer] = {}
        self.skipped: dict[str, int] = {}  # the first of a group that a cursor went past, as it was another's
        for consumer in self.all if self.backlog else []:
            consumer.state, consumer.told = NOTIFIED, True
        return [self.live(consumer) for consumer in self.all] + [self.put(group) for group in self.puts]

    def put(self, group: str) -> Steps:
        yield None
        self.messages.append(Message(group))
        yield from self.offer()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def allowed(self, consumer: Consumer, message: Message) -> bool:
        return self.owners.get(message.group, consumer) is consumer

    def seek(self, consumer: Consumer) -> int | None:
        """The next message for a consumer; its cursor is before that then."""
        for at in range(consumer.passed + 1, len(self.messages)):
            message = self.messages[at]
            if message.state == AVAILABLE and self.allowed(consumer, message):
                return at
            if message.state == AVAILABLE and "notes what is skipped" in self.kept:
                self.skipped[message.group] = min(at, self.skipped.get(message.group, at))
            consumer.passed = at
        return None

    def recall(self, at: int) -> None:
        for consumer in self.all:
            consumer.passed = min(consumer.passed, at - 1)

    def take(self, consumer: Consumer, at: int) -> bool:
        message = self.messages[at]
        taken = message.state == AVAILABLE and self.allowed(consumer, message) and consumer.passed < at
        if "takes what still comes first" in self.kept:
            taken = taken and self.seek(consumer) == at
        if taken:
            message.state = ACQUIRED
            self.owners[message.group] = consumer
            consumer.passed = at
        return taken

    def leave(self, consumer: Consumer) -> None:
        """Its groups have no owner, and what was skipped for them is before all cursors again."""
        for group in [group for group, owner in self.owners.items() if owner is consumer]:
            del self.owners[group]
            at = self.skipped.pop(group, None)
            if at is not None and "recalls to what was skipped" in self.kept:
                self.recall(at)

    # -- in several steps ---------------------------------------------------------------------------------------------

    def offer(self) -> Steps:
        """Tell one of the interested that could take something."""
        for consumer in self.all:
            yield None
            if consumer.state != INTERESTED:
                continue
            yield None
            if self.seek(consumer) is None:
                continue
            yield None
            if consumer.state == INTERESTED:
                consumer.state = NOTIFIED
                yield None
                consumer.told = True
                return

    def live(self, consumer: Consumer) -> Steps:
        """Sleep until told, then pull until nothing comes."""
        deeds = list(consumer.deeds)
        while consumer.state != GONE:
            yield lambda: consumer.told
            consumer.told = False
            at = yield from self.pull(consumer)
            while at is not None and consumer.state != GONE:
                yield from self.settle(consumer, at, deeds.pop(0) if deeds else "ack")
                at = (yield from self.pull(consumer)) if consumer.state != GONE else None

    def settle(self, consumer: Consumer, at: int, deed: str) -> Steps:
        yield None
        if deed == "release":
            self.messages[at].state = AVAILABLE
            if "recalls to what is given back" in self.kept:
                self.recall(at)
            yield from self.offer()
            return
        self.messages[at].state = DELETED
        if deed == "quit":
            yield None
            consumer.state = GONE
            yield None
            self.leave(consumer)
            if "passes on when it goes" in self.kept:
                yield from self.offer()

    def pull(self, consumer: Consumer) -> Steps:
        """The last look is made from the list of the interested."""
        at = yield from self.look(consumer)
        if at is not None:
            return at
        yield None
        consumer.state = INTERESTED if consumer.state == NOTIFIED else consumer.state
        at = yield from self.look(consumer)
        if at is None:
            yield from self.offer()
            return None
        yield None
        consumer.state = NOTIFIED
        return at

    def look(self, consumer: Consumer) -> Steps:
        while True:
            yield None
            at = self.seek(consumer)
            if at is None:
                return None
            yield None
            if self.take(consumer, at):
                return at

    def check(self, finished: list[bool]) -> None:
        assert all(finished[len(self.all) :]), "blocked"
        for consumer in self.all:
            for message in self.messages:
                asleep = consumer.state == INTERESTED and message.state == AVAILABLE
                assert not (asleep and self.allowed(consumer, message)), f"a message waits and {consumer.name} sleeps"
