"""Random operations on a pull queue whose consumers may take a message and not come back.

A notified consumer pulls once after that, at some time: then it goes on, or is busy for ever, without saying that it is
not interested (it may still become so, or have credit again, and then is notified again). When no notified consumer is
still to pull, no interested one may find anything: it would sleep beside a message that it could take. Wake-ups are
counted, and what each message has cost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

KINDS = ("standard", "standard", "priority", "sorted", "last-value", "fair")
QUANTA = {"a": 1, "b": 2, "c": 5}
GROUPS = (None, None, None, "shared", "standard")
MOST_CONSUMERS = 7


class Totals(NamedTuple):
    """The operations that were done."""

    operations: int
    messages: int
    notified: int


class Leavers:
    """A queue, its consumers, and those of them that do not come back."""

    def __init__(self, make: Callable[..., Any], chance: random.Random, plain: bool = False) -> None:
        kind = chance.choice(KINDS)
        groups = None if plain else chance.choice(GROUPS)
        quanta = {"quanta": QUANTA} if kind == "fair" else {}
        self.chance, self.kind, self.groups, self.plain = chance, kind, groups, plain
        self.levels = chance.choice((1, 1, 2, 4))
        self.queue = make(kind=kind, groups=groups, **quanta)
        self.consumers: list[Any] = []
        self.looked: dict[Any, int] = {}  # how often each had been notified when it pulled last
        self.entries: list[Any] = []
        self.busy: set[Any] = set()
        self.names = self.items = self.operations = self.notified = 0
        self.log: list[str] = []

    def step(self) -> None:
        """One operation; at times, every notified consumer pulls once, and the queue is looked at."""
        self.operations += 1
        what = self.chance.choices(
            (self.put, self.subscribe, self.cancel, self.pull, self.settle, self.change, self.rest),
            (9, 2, 1, 6, 5, 2, 1),
        )[0]
        what()

    def put(self) -> None:
        options: dict[str, Any] = {"key": self.chance.choice((None, 1, 2, 3))}
        if self.kind == "fair":
            options |= {"slot": self.chance.choice("abc"), "size": self.chance.randrange(4)}
        if self.kind == "priority":
            options["priority"] = self.chance.randrange(10)
        self.items += 1
        self.log.append(f"put({self.items}, {options})")
        self.queue.put(self.items, **options)

    def subscribe(self) -> None:
        if len(self.consumers) == MOST_CONSUMERS:
            self.cancel()
            return
        chance, options = self.chance, dict[str, Any]()
        self.names += 1
        if not self.plain:
            options["priority"] = chance.randrange(self.levels)
            if chance.random() < 0.4:
                modulus, refused = 2 + chance.randrange(2), chance.randrange(2)
                options["filter"] = lambda item: item % modulus != refused
            if chance.random() < 0.3:
                options["credit"] = chance.randrange(1, 3)
        consumer = self.queue.subscribe(f"c{self.names}", **options)
        self.log.append(f"c{self.names}: {options}")
        self.consumers.append(consumer)
        self.looked[consumer] = 0

    def cancel(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.chance.randrange(len(self.consumers)))
            self.log.append(f"{consumer.name}.cancel")
            self.busy.discard(consumer)
            self.notified += consumer.notified_count
            del self.looked[consumer]
            consumer.cancel(release=self.chance.random() < 0.5)

    def pull(self) -> None:
        """A consumer pulls that is not busy; with a message, it may be for ever."""
        free = [consumer for consumer in self.consumers if consumer not in self.busy]
        if free:
            self.take(self.chance.choice(free))

    def take(self, consumer: Any) -> bool:
        entry = consumer.pull()
        self.looked[consumer] = consumer.notified_count
        self.log.append(f"{consumer.name} got {entry and entry.item}  {self.queue.lists()}")
        if entry is None:
            return False
        self.entries.append(entry)
        if self.chance.random() < 0.4:
            self.busy.add(consumer)
        return True

    def settle(self) -> None:
        if self.entries:
            entry = self.entries.pop(self.chance.randrange(len(self.entries)))
            verdict = self.chance.choice(("ack", "ack", "release", "reject"))
            self.log.append(f"{entry.subscription.name}'s {entry.item}: {verdict}")
            getattr(entry, verdict)()

    def change(self) -> None:
        """A consumer is interested, or not any more; or one that was busy has come back."""
        if not self.consumers:
            return
        consumer = self.chance.choice(self.consumers)
        if consumer in self.busy and self.chance.random() < 0.3:
            self.log.append(f"{consumer.name} is back")
            self.busy.discard(consumer)
        else:
            consumer.interested = self.chance.random() < 0.6
            self.log.append(f"{consumer.name}.interested = {consumer.interested}")

    def rest(self) -> None:
        """Check that no interested consumer finds anything once the notified ones have pulled, each once for that."""
        while awaited := [c for c in self.consumers if c.notified_count > self.looked[c]]:
            self.take(self.chance.choice(awaited))
        asleep = set(self.queue.lists()["interested"])
        for consumer in self.consumers:
            if consumer.name in asleep and (entry := consumer.pull()) is not None:
                raise AssertionError(f"{consumer.name} slept beside {entry.item}\n" + "\n".join(self.log))

    def totals(self) -> Totals:
        return Totals(self.operations, self.items, self.notified + sum(c.notified_count for c in self.consumers))


def run(make: Callable[..., Any], seed: int, steps: int, plain: bool = False) -> Totals:
    """A queue of that seed, for so many operations, and then to rest."""
    leavers = Leavers(make, random.Random(seed), plain)
    for _ in range(steps):
        leavers.step()
    leavers.rest()
    return leavers.totals()
