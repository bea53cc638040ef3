"""A model of FairQueue's getters while slots are at their limits.

Three slots: `free` has no limit; `rated` has a token at every tick of the clock, one at most; `capped` has all in hand
that it may, until a thread releases it. Every step is what FairQueue does within its exclusion; between steps threads
are parked, or have not begun. A getter prefers `rated`, then `capped`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf

from model.explore import Step

#: What keeps an item from lying beside getters that sleep; the tests leave out one at a time.
GUARDS = (
    "a put for a token wakes, if no getter sees to it",
    "a getter that finds a token awaited sees to it",
    "one sees to it",
    "a getter that sees to it says until when",
    "a getter that gives up hands over",
    "a getter that has taken hands over",
    "a release wakes",
)


@dataclass
class Getter:
    """One that takes one item; `hasty` may give up whenever it waits."""

    hasty: bool = False
    interested: bool = False
    permits: int = 0
    until: float = inf
    done: bool = False


@dataclass
class LimitsModel:
    """Getters, putters, and a clock, for one schedule. `puts` names the slots; `release` lets go of `capped`."""

    getters: tuple[bool, ...]
    puts: tuple[str, ...]
    ticks: int = 0
    release: bool = False
    without: str = ""
    now: int = 0
    due: float = 1  # when `rated` has its next token
    open: set[str] = field(default_factory=set)  # slots that take turns
    queued: dict[str, int] = field(default_factory=dict)
    watched: float = inf  # until when a getter waits that sees to the token
    all: list[Getter] = field(default_factory=list)

    def threads(self) -> list[Step]:
        self.now, self.due, self.watched, self.open = 0, 1, inf, {"free"}
        self.queued = {"free": 0, "rated": 0, "capped": 0}
        self.all = [Getter(hasty) for hasty in self.getters]
        steps = [self.get(getter) for getter in self.all] + [self.put(slot) for slot in self.puts]
        return steps + [self.clock()] * bool(self.ticks) + [self.let_go()] * self.release

    def has(self, guard: str) -> bool:
        assert guard in GUARDS
        return self.without != guard

    def whole_state(self) -> Hashable:
        getters = [(getter.interested, getter.permits, getter.until, getter.done) for getter in self.all]
        queued = tuple(self.queued.values())
        return (self.now, self.due, self.watched, frozenset(self.open), queued, *getters)

    # What the queue knows ----------------------------------------------------------------------------------------

    def ready(self) -> int:
        return sum(self.queued[slot] for slot in self.open)

    def token_due(self) -> float:
        return self.due if "rated" not in self.open and self.ready() < sum(self.queued.values()) else inf

    def wanted(self) -> int:
        unseen = self.token_due() < self.watched and self.has("a put for a token wakes, if no getter sees to it")
        return self.ready() + unseen

    def tell(self) -> None:
        if self.now >= self.due:
            self.open.add("rated")

    def wake(self, count: int) -> None:
        """Claim getters that are interested, but for what those on their way take."""
        count -= sum(getter.permits for getter in self.all)
        for getter in self.all:
            if count > 0 and getter.interested and not getter.permits:
                getter.interested, getter.permits = False, 1
                count -= 1

    def take(self) -> None:
        slot = next(slot for slot in ("rated", "capped", "free") if slot in self.open and self.queued[slot])
        self.queued[slot] -= 1
        if slot == "rated":
            self.open.discard("rated")
            self.due = self.now + 1

    # Threads -----------------------------------------------------------------------------------------------------

    def get(self, getter: Getter) -> Step:
        yield None
        self.tell()
        while not self.ready():
            getter.interested = True
            due = self.token_due()
            unseen = due < self.watched or not self.has("one sees to it")
            getter.until = due if unseen and self.has("a getter that finds a token awaited sees to it") else inf
            if getter.until < inf and self.has("a getter that sees to it says until when"):
                self.watched = getter.until
            ends: Callable[[], bool] = lambda: bool(getter.permits) or self.now >= getter.until or getter.hasty  # noqa: E731
            yield ends
            claimed, getter.permits, getter.interested = getter.permits, 0, False
            if self.watched == getter.until:
                self.watched = inf
            self.tell()
            if getter.hasty and not claimed and not self.ready():
                getter.done = True
                if self.has("a getter that gives up hands over"):
                    self.wake(self.wanted())
                return
        self.take()
        getter.done = True
        if self.has("a getter that has taken hands over"):
            self.wake(self.wanted())

    def put(self, slot: str) -> Step:
        yield None
        self.queued[slot] += 1
        self.wake(self.wanted())

    def let_go(self) -> Step:
        yield None
        self.open.add("capped")
        if self.has("a release wakes"):
            self.wake(self.wanted())

    def clock(self) -> Step:
        for _ in range(self.ticks):
            yield None
            self.now += 1

    def check(self, finished: list[bool]) -> None:
        self.tell()
        asleep = sum(not getter.done for getter in self.all)
        assert not (asleep and self.ready()), "an item may be served and a getter sleeps"
