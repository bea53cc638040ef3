"""Threads that wait as consumers, step by step: waiters, wakers, time-outs, priorities and a shutdown.

The steps are those of _waitingroom.pyx and _fairqueue.pyx: what they do with the exclusion held is one step, and what
they do without it (park, unpark) is one step each. The lists are atomic here, since they are only touched with the
exclusion held; interest_model.py and nodelist_model.py open them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Steps = Iterator[Callable[[], bool] | None]
INTERESTED, NOTIFIED, NOT_INTERESTED = "I", "N", "X"
GUARDS = (
    "registers with the look",
    "collects",
    "collects when it leaves",
    "outranks",
    "hands over",
    "leaves before it hands over",
    "stays before it hands over",
    "hands over when it stays",
    "counts those on their way",
    "wakes all at the end",
)


@dataclass
class Getter:
    """A thread that waits for at most `amount` items; and what became of it."""

    priority: int = 0
    amount: int = 1
    expires: bool = False
    fails: bool = False  # its wait ends by an exception: a signal's, or that of a clock
    state: str = NOT_INTERESTED
    since: int = 0
    permits: int = 0
    expired: bool = False


@dataclass
class WaitingModel:
    """Getters, putters of so many items each, and perhaps a shutdown. `missing` is a guard that is left out."""

    waiters: tuple[tuple[Any, ...], ...]  # priority, amount, may time out, fails then
    puts: tuple[int, ...]
    closes: bool = False
    missing: str = ""
    queued: int = 0
    got: int = 0
    moves: int = 0
    claims: int = 0
    shut_down: bool = False
    getters: list[Getter] = field(default_factory=list)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        self.getters = [Getter(*waiter) for waiter in self.waiters]
        timers = [self.timer(getter) for getter in self.getters if getter.expires]
        putters = [self.putter(count) for count in self.puts]
        return [self.get(getter) for getter in self.getters] + putters + timers + [self.closer()] * self.closes

    # The policy, with the exclusion held --------------------------------------------------------------------------

    def outranked(self, priority: int) -> bool:
        return any(one.priority > priority and one.state != NOT_INTERESTED for one in self.getters)

    def may_take(self, me: Getter) -> bool:
        return self.queued > 0 and not (self.kept("outranks") and self.outranked(me.priority))

    def move(self, getter: Getter, state: str) -> None:
        self.moves += 1
        getter.state, getter.since = state, self.moves

    def interested(self) -> list[Getter]:
        waiting = [getter for getter in self.getters if getter.state == INTERESTED]
        return sorted(waiting, key=lambda getter: (-getter.priority, getter.since))

    def claim(self) -> list[Getter]:
        """Claim as many as there are items for that no getter on its way takes."""
        left = self.queued
        if self.kept("counts those on their way"):
            left -= sum(getter.amount for getter in self.getters if getter.state == NOTIFIED)
        claimed = []
        while left > 0:
            first = next(iter(self.interested()), None)
            if first is None or self.outranked(first.priority):
                break
            self.move(first, NOTIFIED)
            left -= first.amount
            claimed.append(first)
        self.claims += len(claimed)
        return claimed

    def claim_for_what_is_left(self) -> list[Getter]:
        if not self.kept("hands over"):
            return []
        if self.queued or not self.shut_down or not self.kept("wakes all at the end"):
            return self.claim()
        return self.claim_all()

    def claim_all(self) -> list[Getter]:
        candidates = self.interested()
        for getter in candidates:
            self.move(getter, NOTIFIED)
        return candidates

    # Threads ------------------------------------------------------------------------------------------------------

    def unpark(self, claimed: list[Getter]) -> Steps:
        """The exclusion is given up; then each gets its permit."""
        for getter in claimed:
            yield None
            getter.permits += 1

    def timer(self, getter: Getter) -> Steps:
        yield None
        getter.expired = True

    def closer(self) -> Steps:
        yield None
        self.shut_down = True
        yield from self.unpark(self.claim_all())

    def putter(self, count: int) -> Steps:
        yield None
        if self.shut_down:
            return
        self.queued += count
        yield from self.unpark(self.claim())

    def take(self, me: Getter) -> None:
        assert not self.outranked(me.priority), "an item is taken that a higher priority waits for"
        amount = min(me.amount, self.queued)
        self.queued -= amount
        self.got += amount

    def get(self, me: Getter) -> Steps:
        yield None
        if self.may_take(me):
            self.take(me)
            return
        if self.shut_down and not self.queued:
            return
        if not self.kept("registers with the look"):
            yield None
        self.move(me, INTERESTED)
        while True:
            claimed = yield from self.park(me)
            if me.fails and not claimed:
                yield from self.fail(me)
                return
            if self.may_take(me):
                if self.kept("leaves before it hands over"):
                    self.move(me, NOT_INTERESTED)
                    self.take(me)
                    yield from self.unpark(self.claim_for_what_is_left())
                else:
                    early = self.claim_for_what_is_left()
                    self.move(me, NOT_INTERESTED)
                    self.take(me)
                    yield from self.unpark(early)
                return
            if not claimed or (self.shut_down and not self.queued):
                self.move(me, NOT_INTERESTED)
                yield from self.unpark(self.claim_for_what_is_left())
                return
            yield from self.stay(me)

    def fail(self, me: Getter) -> Steps:
        """An exception is made, which may run a finalizer, which may put: this thread may be claimed on its way out."""
        yield None
        if me.state == NOTIFIED and self.kept("collects when it leaves"):
            yield lambda: me.permits > 0
            me.permits -= 1
            yield None
        self.move(me, NOT_INTERESTED)
        yield from self.unpark(self.claim_for_what_is_left())

    def stay(self, me: Getter) -> Steps:
        """Woken for what one may not take."""
        handed: list[Getter] = []
        if not self.kept("stays before it hands over"):
            handed = self.claim_for_what_is_left()
        self.move(me, INTERESTED)
        if self.kept("stays before it hands over") and self.kept("hands over when it stays"):
            handed = self.claim_for_what_is_left()
        yield from self.unpark(handed)

    def park(self, me: Getter) -> Iterator[Callable[[], bool] | None]:
        """Sleep; then with the exclusion held: True when claimed, and the permit is taken."""
        yield lambda: me.permits > 0 or me.expired
        if me.permits:
            me.permits -= 1
            yield None
            return True  # a sub-generator's result
        yield None
        if me.state == NOTIFIED:
            if self.kept("collects"):
                yield lambda: me.permits > 0
                me.permits -= 1
                yield None
            return True
        return False

    def check(self, finished: list[bool]) -> None:
        done = finished[: len(self.getters)]
        asleep = [getter for getter, left in zip(self.getters, done, strict=True) if not left]
        assert not (self.queued and asleep), "an item is queued and a getter sleeps"
        assert not (self.shut_down and asleep), "the queue is shut down and a getter sleeps"
        for getter, left in zip(self.getters, done, strict=True):
            assert getter.permits == 0, "a permit is left over"
            assert getter.state == (NOT_INTERESTED if left else INTERESTED), "a seat and its thread differ"
        if not self.closes and not any(getter.expires for getter in self.getters):
            equal = len({getter.priority for getter in self.getters}) == 1
            assert not equal or self.claims <= sum(self.puts), "a getter is woken in vain"
