"""Deficit weighted round robin with limits, in plain Python: buckets of tokens, and a list of those that take turns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fractions import Fraction

from oracles.dwrr import ReferenceDwrr

from fairsched import Limit


class Bucket:
    """So many tokens at a time: exact, and refilled when it is read."""

    def __init__(self) -> None:
        self.burst, self.interval = 1, 0
        self.tokens, self.since = Fraction(1), 0

    def look(self, now: int) -> Fraction:
        if self.interval:
            self.tokens = min(Fraction(self.burst), self.tokens + Fraction(now - self.since, self.interval))
        self.since = now
        return self.tokens

    def change(self, burst: int, interval: int, now: int) -> None:
        """Another size and speed: it is full when it would have been, or sooner."""
        missing = (self.burst - self.look(now)) * self.interval
        self.burst, self.interval = burst, interval
        self.tokens = max(Fraction(0), burst - missing / interval) if interval else Fraction(burst)

    def due(self, now: int) -> int:
        """Return when there is a token; a moment that is over, if there is one."""
        lacking = 1 - self.look(now)
        return now if lacking <= 0 else now + -(-lacking * self.interval // 1)


class ReferenceLimits(ReferenceDwrr):
    """A slot at its limit stands in no list; it goes on with an interrupted turn when it comes back."""

    def __init__(self, quanta: Mapping[Hashable, int], limit: Limit | None = None) -> None:
        super().__init__(quanta)
        self.now = 0
        self.most: dict[Hashable, int | None] = dict.fromkeys(quanta)
        self.in_hand: dict[Hashable, int] = dict.fromkeys(quanta, 0)
        self.buckets = {name: Bucket() for name in quanta}
        self.withheld: set[Hashable] = set()
        for name in quanta:
            self.set_limit(name, limit)

    def __len__(self) -> int:
        return sum(len(slot.fifo) for name, slot in self.slots.items() if name not in self.withheld)

    def qsize(self) -> int:
        return sum(len(slot.fifo) for slot in self.slots.values())

    def is_full(self, name: Hashable) -> bool:
        most = self.most[name]
        return most is not None and self.in_hand[name] >= most

    def may_be_served(self, name: Hashable) -> bool:
        return not self.is_full(name) and self.buckets[name].look(self.now) >= 1

    def retry_after(self, name: Hashable, now: int) -> int | None:
        bucket = self.buckets[name]
        bucket.look(self.now)
        lacking = 1 - min(Fraction(bucket.burst), bucket.tokens)
        left = self.now + lacking * bucket.interval - now
        return int(left) if left > 0 else None

    def look(self, name: Hashable) -> None:
        slot, may = self.slots[name], self.may_be_served(name)
        interrupted = slot.granted and bool(slot.fifo)
        if not may and name not in self.withheld:
            self.withheld.add(name)
            if name in self.active:
                self.active.remove(name)
                self.trim(slot)
                slot.granted = interrupted
        elif may and name in self.withheld:
            self.withheld.remove(name)
            self.trim(slot)
            slot.granted = False
            if slot.fifo or slot.deficit < 0:
                if interrupted:
                    self.active.appendleft(name)
                    slot.granted = True
                else:
                    self.active.append(name)

    def tell(self, now: int) -> None:
        order = list(self.slots)
        due = sorted(
            (self.buckets[name].due(self.now), order.index(name)) for name in self.withheld if not self.is_full(name)
        )
        self.now = max(self.now, now)
        for when, index in due:
            if when <= self.now:
                self.look(order[index])

    def push(self, name: Hashable, token: int, cost: int = 1) -> None:
        if name in self.withheld:
            self.slots[name].fifo.append((token, cost))
            self.max_cost = max(self.max_cost, cost)
        else:
            super().push(name, token, cost)

    def get(self, now: int) -> tuple[Hashable, int] | None:
        self.tell(now)
        found = self.pop()
        if found is None:
            return None
        assert isinstance(found, tuple)
        name = found[0]
        bucket = self.buckets[name]
        assert self.may_be_served(name), "a slot at its limit is served"
        if self.most[name] is not None:
            self.in_hand[name] += 1
        if bucket.interval:
            bucket.tokens -= 1
        self.look(name)
        return found

    def release(self, name: Hashable) -> None:
        if self.most[name] is not None:
            assert self.in_hand[name]
            self.in_hand[name] -= 1
        self.look(name)

    def settle(self, name: Hashable, difference: int) -> None:
        active, granted = list(self.active), self.slots[name].granted
        super().settle(name, difference)
        if name in self.withheld and name not in active and name in self.active:
            self.active.remove(name)
            self.slots[name].granted = granted  # what was interrupted goes on

    def set_limit(self, name: Hashable, limit: Limit | None, now: int = 0) -> None:
        self.tell(now)
        self.most[name] = None if limit is None else limit.concurrency
        if self.most[name] is None:
            self.in_hand[name] = 0
        interval = 0 if limit is None else limit.interval_ns
        self.buckets[name].change((limit and limit.burst) or 1, interval, self.now)
        self.look(name)
