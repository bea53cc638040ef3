"""CoDel in plain Python, with the loops of the published dequeue: the oracle that the unrolled law is held against."""

from __future__ import annotations

import math
from collections import deque

UNITS = {"rfc": 1, "linux": 1024, "linux-q16": 1024, "queueing-consumer": 1_000_000}


def newton(x: int, count: int) -> int:
    """Step as include/net/codel_impl.h does: x is a Q0.16."""
    root = x << 16
    value = ((3 << 32) - count * (root * root >> 32)) % 2**64
    return ((value >> 2) * root % 2**64 >> 31 >> 16) & 0xFFFF


class ReferenceCoDel:
    """A buffer of moments, in nanoseconds, at which messages were queued, and the law that watches over it."""

    def __init__(self, law: str, target: int, interval: int, min_backlog: int = 1, max_returns: int = 0) -> None:
        self.law = law
        self.unit = UNITS[law]
        self.target, self.interval = target // self.unit, interval // self.unit
        self.min_backlog, self.max_returns = min_backlog, max_returns
        self.buffer: deque[int] = deque()
        self.last_now: int | None = None
        self.forget()

    def forget(self) -> None:
        self.first_above: int | None = None
        self.drop_next: int | None = None
        self.dropping = False
        self.count = self.lastcount = 0
        self.root = 0xFFFF

    def ticks(self, later: int, earlier: int) -> int:
        if self.law.startswith("linux"):
            return (later - earlier + 2**31) % 2**32 - 2**31
        return later - earlier

    def step(self) -> int:
        if self.law == "linux-q16":
            return self.interval * (self.root << 16) >> 32
        exact = self.interval / math.sqrt(self.count)
        return int(exact + 0.5) if self.law == "rfc" else int(exact)

    def set_count(self, count: int) -> None:
        self.count = count
        self.root = newton(self.root, count)

    def take(self, now: int) -> tuple[int | None, bool]:
        """Take the oldest message and say whether it may be dropped."""
        if not self.buffer:
            self.first_above = None
            return None, False
        queued = self.buffer.popleft()
        moment = now // self.unit
        waited = self.ticks(moment, queued // self.unit)
        if waited < self.target or len(self.buffer) <= self.min_backlog or not self.buffer:
            self.first_above = None
        elif self.first_above is None:
            self.first_above = moment + self.interval
        else:
            late = self.ticks(moment, self.first_above)
            return queued, late > 0 if self.law.startswith("linux") else late >= 0
        return queued, False

    def pull(self, now: int) -> tuple[list[int], int | None]:
        """Take messages until one is to be delivered; those that go back, and that one."""
        if self.last_now is not None and now < self.last_now:
            self.forget()
        self.last_now = now
        moment = now // self.unit
        back: list[int] = []
        queued, ripe = self.take(now)
        if self.dropping and not ripe:
            self.dropping = False
        elif self.dropping:
            queued = self.go_on(queued, now, back)
        elif ripe and self.may_enter(moment):
            back.append(queued)  # type: ignore[arg-type]
            self.enter(moment)
            queued, ripe = self.take(now)
            if self.law == "queueing-consumer":
                if ripe:
                    queued = self.go_on(queued, now, back)
                else:
                    self.dropping = False
        return back, queued

    def go_on(self, queued: int | None, now: int, back: list[int]) -> int | None:
        moment = now // self.unit
        while self.dropping and self.ticks(moment, self.drop_next) >= 0:  # type: ignore[arg-type]
            if self.max_returns and len(back) >= self.max_returns:
                self.drop_next = moment + self.step()
                break
            back.append(queued)  # type: ignore[arg-type]
            self.set_count(self.count + 1)
            queued, ripe = self.take(now)
            if ripe:
                self.drop_next += self.step()  # type: ignore[operator]
            else:
                self.dropping = False
        return queued

    def may_enter(self, moment: int) -> bool:
        if self.law != "queueing-consumer" or moment - self.first_above >= self.interval:  # type: ignore[operator]
            return True
        return self.drop_next is not None and moment - self.drop_next < self.interval

    def enter(self, moment: int) -> None:
        self.dropping = True
        since = math.inf if self.drop_next is None else self.ticks(moment, self.drop_next)
        if self.law == "queueing-consumer":
            count = self.count - 2 if since < self.interval and self.count > 2 else 1
        else:
            count = self.count - self.lastcount if since < 16 * self.interval else 1
        if count > 1:
            self.set_count(count)
        else:
            self.count, self.root = 1, 0xFFFF
        self.lastcount = self.count
        self.drop_next = moment + self.step()
