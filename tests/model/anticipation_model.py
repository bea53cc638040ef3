"""A model of FairQueue's getters while the turn of an empty slot is waited for.

Two slots: the turn is that of `held`, which is empty and waited for; `other` has its turn when that has passed or been
used. Every step is what FairQueue does within its exclusion; between steps threads are parked, or have not begun. A
wait that has an end may end at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from model.explore import Step

#: What keeps an item from lying beside getters that sleep; the tests leave out one at a time.
GUARDS = (
    "puts wake when no getter sees to the turn",
    "a getter that finds the turn awaited sees to it",
    "a getter that gives up hands over",
    "a getter that has taken hands over",
    "letting go wakes",
)


@dataclass
class Getter:
    """One that takes one item; `hasty` may give up whenever it waits."""

    hasty: bool = False
    interested: bool = False
    permits: int = 0
    timed: bool = False  # waits until the turn passes at most
    done: bool = False


@dataclass
class AnticipationModel:
    """Getters and putters, for one schedule. `puts` names the slots; `release` lets go of the held one."""

    getters: tuple[bool, ...]
    puts: tuple[str, ...]
    release: bool = False
    without: str = ""
    held: bool = True
    queued: dict[str, int] = field(default_factory=lambda: {"held": 0, "other": 0})
    all: list[Getter] = field(default_factory=list)

    def threads(self) -> list[Step]:
        self.held = True
        self.queued = {"held": 0, "other": 0}
        self.all = [Getter(hasty) for hasty in self.getters]
        steps = [self.get(getter) for getter in self.all] + [self.put(slot) for slot in self.puts]
        return steps + ([self.let_go()] if self.release else [])

    def has(self, guard: str) -> bool:
        return self.without != guard

    # What the queue knows ----------------------------------------------------------------------------------------

    def is_awaiting(self) -> bool:
        return self.held and self.queued["held"] == 0 and self.queued["other"] > 0

    def may_take(self) -> bool:
        return sum(self.queued.values()) > 0 and not self.is_awaiting()

    def wanted(self) -> int:
        seen_to = any(getter.timed for getter in self.all) or not self.has("puts wake when no getter sees to the turn")
        return 0 if seen_to and self.is_awaiting() else sum(self.queued.values())

    def wake(self, count: int) -> None:
        """Claim getters that are interested, but for what those on their way take."""
        count -= sum(getter.permits for getter in self.all)
        for getter in self.all:
            if count > 0 and getter.interested and not getter.permits:
                getter.interested, getter.permits = False, 1
                count -= 1

    # Threads -----------------------------------------------------------------------------------------------------

    def get(self, getter: Getter) -> Step:
        yield None
        waited = False
        while not self.may_take():
            if waited and not self.is_awaiting():
                self.wake(self.wanted())
            waited = True
            getter.interested = True
            getter.timed = self.is_awaiting() and self.has("a getter that finds the turn awaited sees to it")
            ends: Callable[[], bool] = lambda: bool(getter.permits) or getter.timed or getter.hasty  # noqa: E731
            yield ends
            timed, getter.timed, getter.interested = getter.timed, False, False
            if getter.permits:
                getter.permits = 0
            elif getter.hasty:  # its own time is over first
                if self.has("a getter that gives up hands over"):
                    self.wake(self.wanted())
                getter.done = True
                return
            elif timed and self.is_awaiting():
                self.held = False  # the turn passes
        self.queued["held" if self.queued["held"] else "other"] -= 1
        getter.done = True
        if waited and self.has("a getter that has taken hands over"):
            self.wake(self.wanted())

    def put(self, slot: str) -> Step:
        yield None
        self.queued[slot] += 1
        self.wake(self.wanted())

    def let_go(self) -> Step:
        yield None
        self.held = False
        if self.has("letting go wakes"):
            self.wake(sum(self.queued.values()))

    def check(self, finished: list[bool]) -> None:
        asleep = sum(not getter.done for getter in self.all)
        assert not (asleep and sum(self.queued.values())), "an item is queued and a getter sleeps"
