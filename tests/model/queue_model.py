"""The pull queue, step by step: threads put, pull until nothing is left, lose interest, or may go on.

A move between lists is atomic here (interest_model.py opens it up), and so are one look at the messages and one
acquire. A walk over the interested asks each consumer's state once, in order of priority. A consumer's thread sleeps
until it is told, and then pulls until nothing comes; or, one that leaves, until it has had so many messages, and does
not come back then, nor say that it is not interested.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

Steps = Generator[Callable[[], bool] | None, None, Any]
INTERESTED, NOTIFIED, SERVED, NOT_INTERESTED = "I", "N", "S", "X"
TAKEN, OUTRANKED, NOTHING = range(3)


@dataclass(eq=False)
class Consumer:
    """`credit`: None is unlimited. `flag`: what outranking goes by, if not by the state. `leaves`: after so many."""

    name: str
    priority: int = 0
    credit: int | None = None
    leaves: int | None = None
    wish: bool = True
    state: str = INTERESTED
    flag: bool = True
    told: bool = False
    got: int = 0
    vain: int = 0  # times it was told and found nothing
    was_told: bool = False  # and this pull is the first since

    @property
    def left(self) -> bool:
        return self.leaves is not None and self.got >= self.leaves

    @property
    def desired(self) -> bool:
        return self.wish and self.credit != 0


@dataclass
class QueueModel:
    """`programs`: what threads do, besides those of the consumers; "put", "A off", "A on", "A credit".

    `kept`: the guards; any of those named in GUARDS may be missing. `backlog`: messages there are in the beginning; who
    has been told of them, has been made so.
    """

    GUARDS = (
        "interested before looking",
        "looks when it becomes interested",
        "hands over",
        "hands over after the acquire",
        "flips before it hands over",
        "looks again after the move",
        "offers the rest",
        "is not counted when it offers",
    )
    consumers: Callable[[], list[Consumer]]
    programs: tuple[str, ...]
    kept: frozenset[str] = field(default_factory=lambda: frozenset(QueueModel.GUARDS))
    backlog: int = 0
    in_vain: bool = True  # whether a consumer may be told in vain
    looks_first: bool = False  # a notified consumer looks where it is, and moves only before its last look

    def threads(self) -> list[Any]:
        self.all = self.consumers()  # by priority
        self.messages = [True] * self.backlog  # available
        self.awaited = sum(consumer.state == NOTIFIED for consumer in self.all)
        return [self.live(consumer) for consumer in self.all] + [self.run(program) for program in self.programs]

    def run(self, program: str) -> Steps:
        for action in program.split(", "):
            if action == "put":
                yield None
                self.messages.append(True)
                yield from self.offer()
                continue
            name, what = action.split()
            consumer = next(consumer for consumer in self.all if consumer.name == name)
            yield None
            if what == "credit":
                consumer.credit = (consumer.credit or 0) + 1
            else:
                consumer.wish = what == "on"
            yield from self.recompute(consumer)

    # -- the queue ----------------------------------------------------------------------------------------------------

    def offer(self, but: Consumer | None = None) -> Steps:
        """Tell one of the interested: of a new message, of what is left, of what another will not do."""
        for consumer in self.all:
            yield None
            if consumer is not but and consumer.state == INTERESTED:
                claimed = yield from self.notify(consumer)
                if claimed:
                    return

    def notify(self, consumer: Consumer) -> Steps:
        yield None
        if not any(self.messages):
            return False
        outranked = yield from self.outranked(consumer)
        if outranked:
            return False
        yield None
        if consumer.state != INTERESTED:
            return False
        consumer.state = NOTIFIED
        yield None
        self.awaited += 1
        consumer.told = True
        return True

    def outranked(self, consumer: Consumer) -> Steps:
        """A more important consumer is to have what there is."""
        for other in self.all:
            if other.priority > consumer.priority:
                yield None
                if (other.state != NOT_INTERESTED or not self.by_state()) and other.flag and any(self.messages):
                    return True
        return False

    def by_state(self) -> bool:
        return "flips before it hands over" in self.kept

    def recompute(self, consumer: Consumer) -> Steps:
        """Move it to where it belongs, and see to what follows; until no thread has changed that meanwhile."""
        while True:
            yield None
            desired = consumer.desired
            yield None
            moved = consumer.state == NOT_INTERESTED if desired else consumer.state != NOT_INTERESTED
            if moved:
                awaited = consumer.state == NOTIFIED
                consumer.state = INTERESTED if desired else NOT_INTERESTED
                yield None
                self.awaited -= awaited
                consumer.flag = True if desired else not self.by_state()
            if moved and desired and "looks when it becomes interested" in self.kept:
                yield from self.notify(consumer)
            elif moved and not desired and "hands over" in self.kept:
                yield from self.offer(consumer)
            yield None
            if consumer.desired == desired or "looks again after the move" not in self.kept:
                consumer.flag = desired
                return

    # -- a consumer ---------------------------------------------------------------------------------------------------

    def live(self, consumer: Consumer) -> Steps:
        while True:
            yield lambda: consumer.told
            consumer.told = False
            before = consumer.got
            while not consumer.left and (yield from self.pull(consumer)):
                consumer.got += 1
            consumer.vain += consumer.got == before
            if consumer.left:
                return

    def pull(self, consumer: Consumer) -> Steps:
        """Its last look is made from the list of the interested."""
        yield None
        consumer.was_told = False
        if consumer.state == NOT_INTERESTED:
            return False
        moves = "interested before looking" in self.kept
        if moves and self.looks_first and (yield from self.look(consumer)) == TAKEN:
            return True
        if moves:
            yield from self.done(consumer)
        found = yield from self.look(consumer)
        if found != TAKEN and not moves:
            yield from self.done(consumer)
        if found == OUTRANKED:
            yield from self.offer(consumer)
        return found == TAKEN

    def look(self, consumer: Consumer) -> Steps:
        while True:
            yield None
            at = next((i for i, available in enumerate(self.messages) if available), None)
            if at is None:
                return NOTHING
            if (yield from self.outranked(consumer)):
                return OUTRANKED
            if (yield from self.acquire(consumer, at)):
                return TAKEN

    def done(self, consumer: Consumer) -> Steps:
        yield None
        if consumer.state in (NOTIFIED, SERVED):
            yield from self.move(consumer, INTERESTED)

    def move(self, consumer: Consumer, state: str) -> Steps:
        """It is counted among the awaited until after its move."""
        awaited, consumer.state = consumer.state == NOTIFIED, state
        consumer.was_told = consumer.was_told or awaited
        late = state == SERVED and "is not counted when it offers" not in self.kept
        yield None
        self.awaited -= awaited and not late
        if state == SERVED and consumer.was_told:
            yield from self.offer_rest(consumer)
        self.awaited -= awaited and late

    def offer_rest(self, consumer: Consumer) -> Steps:
        """It was told, and has got something: the rest is for another, unless as many are awaited."""
        yield None
        if "offers the rest" in self.kept and self.awaited < sum(self.messages):
            yield from self.offer(consumer)

    def acquire(self, consumer: Consumer, at: int) -> Steps:
        last = False
        yield None
        if consumer.credit is not None:
            consumer.credit -= 1
            last = consumer.credit == 0
        if last and "hands over after the acquire" not in self.kept:
            yield from self.recompute(consumer)
        yield None
        acquired, self.messages[at] = self.messages[at], False
        if not acquired:
            if consumer.credit is not None:
                consumer.credit += 1
                yield from self.recompute(consumer)
        elif last and "hands over after the acquire" in self.kept:
            yield from self.recompute(consumer)
        elif not last:
            yield None
            if consumer.state != NOT_INTERESTED:
                yield from self.move(consumer, SERVED)
        return acquired

    def check(self, finished: list[bool]) -> None:
        assert all(finished[len(self.all) :]), "blocked"
        for consumer in self.all:
            assert (consumer.state != NOT_INTERESTED) == consumer.desired, f"{consumer.name} is in the wrong list"
            above = any(other.priority > consumer.priority and other.state == SERVED for other in self.all)
            asleep = consumer.state != NOT_INTERESTED and not consumer.left and any(self.messages) and not above
            assert not asleep, f"a message waits and {consumer.name} sleeps"
            assert self.in_vain or not consumer.vain, f"{consumer.name} is woken in vain"
