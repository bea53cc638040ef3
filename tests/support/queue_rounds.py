"""Rounds of random operations on a pull queue, looked at whenever it has come to rest.

At rest none is notified: each consumer that was told has pulled until there was nothing. Then no interested consumer
finds anything, browsers included; else it would sleep beside work. And what was put is in the queue, was acknowledged,
or is where the queue puts what leaves it.

A round is what the queue is like, and what is done to it: steps of numbers that mean something in any state. So a round
that fails can be made shorter (`shortest`) and told (`story`), and what is left of it be written down as a test.
"""

from __future__ import annotations

import queue as queues
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.clock import ManualClock
from support.queue_engines import lists_of

KINDS = ("standard", "priority", "sorted", "last-value", "fair")
GROUPS = (None, "shared", "standard")
QUANTA = {"a": 1, "b": 2, "c": 5}
VERDICTS = ("ack", "ack", "release", "reject")
CREDITS = (None, 0, 1, 2)
MOST_CONSUMERS = 6
WHAT = {
    "put": 8, "subscribe": 3, "cancel": 1, "pull": 4, "settle": 8, "credit": 2, "interest": 2, "time": 2, "refuse": 1,
    "meddle": 3, "interrupt": 1, "rest": 3,
}  # fmt: skip
STEPS = [what for what, share in WHAT.items() for _ in range(share)]
MEDDLING = [what for what in STEPS if what not in ("rest", "meddle", "interrupt")]

Make = Callable[..., Any]


class Step(NamedTuple):
    """One operation; what its numbers mean depends on what there is."""

    what: str
    which: int
    more: int


def options_of(chance: random.Random) -> dict[str, Any]:
    """The properties of a queue."""
    kind = chance.choice(KINDS)
    options: dict[str, Any] = {"kind": kind, "groups": chance.choice(GROUPS)}
    if kind == "priority":
        options["levels"] = chance.choice((1, 2, 10))
    if kind == "fair":
        options["quanta"] = QUANTA
    if chance.random() < 0.25:
        options["live_consumers"] = chance.choice((1, 1, 2))
    if chance.random() < 0.25:
        options["max_deliveries"] = chance.choice((1, 2, 3))
    if chance.random() < 0.2:
        options["ttl"] = chance.choice((1, 4))
    if chance.random() < 0.2:
        options |= {"overflow": chance.choice(("ring", "reject")), "max_depth": chance.choice((2, 5))}
    return options


def steps_of(chance: random.Random, count: int) -> list[Step]:
    """The operations on it."""
    bits = chance.getrandbits
    return [Step(STEPS[bits(16) % len(STEPS)], bits(16), bits(48)) for _ in range(count)]


class Taste:
    """A filter: what it refuses, of items that differ by their remainder. It may come to refuse more, never less."""

    def __init__(self, called: Callable[[], None], modulus: int, refused: int) -> None:
        self.called, self.modulus, self.refused = called, modulus, {refused}

    def __call__(self, item: int) -> bool:
        self.called()
        return item % self.modulus not in self.refused

    def __repr__(self) -> str:
        return f"lambda item: item % {self.modulus} not in {self.refused}"


class Round:
    """A queue, its consumers and what they have; and a method for each kind of step."""

    def __init__(self, make: Make, options: dict[str, Any]) -> None:
        self.clock = ManualClock()
        self.options = options
        self.queue = make(**options, clock=self.clock, alternate=self.bury)
        self.consumers: list[Any] = []
        self.seen: dict[Any, int] = {}  # how often a browser had been told when it pulled last
        self.tastes: dict[Any, Taste] = {}
        self.pulling: list[Any] = []
        self.entries: list[Any] = []
        self.meddling: list[Step] = []
        self.interrupts = self.interrupted = 0
        self.numbers = self.names = self.accepted = self.acknowledged = self.buried = 0
        self.log: list[str] | None = None  # what happens, in words, if wanted

    def note(self, text: Any) -> None:
        if self.log is not None:
            self.log.append(text())

    def play(self, steps: Sequence[Step]) -> None:
        """All of it, to rest."""
        for step in steps:
            self.do(step)
        self.meddling.clear()
        self.interrupts = 0
        self.do(Step("rest", 0, 0))

    def do(self, step: Step) -> None:
        try:
            getattr(self, step.what)(step.which, step.more)
        except KeyboardInterrupt:
            self.note(lambda: "  interrupted")

    # -- what the queue calls -----------------------------------------------------------------------------------------

    def bury(self, item: int, reason: str) -> None:
        self.buried += 1
        self.called()

    def work(self, consumer: Any) -> None:
        if consumer in self.seen:
            self.take(consumer)
        self.called()

    def called(self) -> None:
        """In a callback anything may happen to the queue, as if by another thread."""
        if self.meddling:
            self.note(lambda: f"  meanwhile: {self.meddling[-1].what}")
            self.do(self.meddling.pop())

    def asked(self) -> None:
        """As `called`, in a filter, which may also be interrupted."""
        self.called()
        if self.interrupts:
            self.interrupts = 0
            self.interrupted += 1
            raise KeyboardInterrupt

    # -- steps --------------------------------------------------------------------------------------------------------

    def put(self, which: int, more: int) -> None:
        options: dict[str, Any] = {}
        if self.options["kind"] == "priority":
            options["priority"] = more % 10
        if self.options["kind"] == "fair":
            options |= {"slot": "abc"[more % 3], "size": which // 8 % 4}
        if self.options["groups"] or self.options["kind"] in ("sorted", "last-value"):
            options["key"] = (None, 1, 1, 2, 2, 3)[more // 16 % 6]
        if which % 8 == 0:
            options["ttl"] = which // 8 % 4
        if which % 8 == 1:
            options["not_before"] = self.clock.now + which // 8 % 4
        item = self.numbers
        self.numbers += 1
        self.note(lambda: f"put({item}, {options})")
        self.accepted += 1
        try:
            self.queue.put(item, **options)
        except queues.Full:
            self.accepted -= 1

    def subscribe(self, which: int, more: int) -> None:
        if len(self.consumers) == MOST_CONSUMERS:
            return
        self.names += 1
        options: dict[str, Any] = {"name": f"c{self.names}", "priority": which % 3}
        if which // 4 % 6 == 0:
            options |= {"acquires": False, "sees_requeues": bool(which // 32 % 2)}
        if more % 2 == 0:
            options["filter"] = Taste(self.asked, 2 + more // 2 % 3, more // 8 % 2)
        if more // 16 % 3 == 0:
            options["credit"] = more // 64 % 4
        if more // 256 % 8 == 0:
            options["interested"] = False
        if more // 2048 % 6 == 0:
            options["on_work"] = self.work
        self.note(lambda: f"subscribe({options})")
        consumer = self.queue.subscribe(**options)
        self.consumers.append(consumer)
        self.seen[consumer] = 0
        if "filter" in options:
            self.tastes[consumer] = options["filter"]

    def cancel(self, which: int, more: int) -> None:
        if self.consumers:
            consumer = self.consumers.pop(which % len(self.consumers))
            del self.seen[consumer]
            self.note(lambda: f"{consumer.name}.cancel(release={more % 2 == 0})")
            consumer.cancel(release=more % 2 == 0)

    def pull(self, which: int, more: int) -> None:
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            self.take(consumer, more // 4 % 3 if more % 4 == 0 else None)

    def take(self, consumer: Any, count: int | None = None) -> bool:
        """Pull, unless that is under way."""
        if consumer in self.pulling:
            return False
        self.pulling.append(consumer)
        try:
            entries = [consumer.pull()] if count is None else consumer.pull_many(count)
        finally:
            self.pulling.remove(consumer)
        self.note(lambda: f"{consumer.name} got {[entry and entry.item for entry in entries]}   {lists_of(self.queue)}")
        self.entries += [entry for entry in entries if entry is not None]
        return entries != [None]

    def settle(self, which: int, more: int) -> None:
        if self.entries:
            entry = self.entries.pop(which % len(self.entries))
            verdict = VERDICTS[more % 4]
            self.note(lambda: f"{entry.subscription.name}'s {entry.item}: {verdict}")
            self.acknowledged += verdict == "ack" and entry.subscription.acquires
            if not getattr(entry, verdict)() and verdict == "ack":
                self.acknowledged -= 1

    def credit(self, which: int, more: int) -> None:
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            self.note(lambda: f"{consumer.name}.credit = {CREDITS[more % 4]}")
            consumer.credit = CREDITS[more % 4]

    def interest(self, which: int, more: int) -> None:
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            self.note(lambda: f"{consumer.name}.interested = {more % 3 != 0}")
            consumer.interested = more % 3 != 0

    def refuse(self, which: int, more: int) -> None:
        """A filter refuses from now on what it might have accepted."""
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            if consumer in self.tastes:
                taste = self.tastes[consumer]
                taste.refused.add(more % taste.modulus)
                self.note(lambda: f"{consumer.name}: {taste!r}")

    def time(self, which: int, more: int) -> None:
        """Time passes; the queue's owner sees to what is due, or a consumer whose `get` ends for it does."""
        self.clock.now += more % 3 + 1
        interested = [consumer for consumer in self.consumers if consumer.interested and consumer not in self.pulling]
        self.note(lambda: f"clock.now += {more % 3 + 1}")
        if which % 2 and interested:
            self.take(interested[which // 2 % len(interested)])
        else:
            self.note(lambda: "expire()")
            self.queue.expire()

    def meddle(self, which: int, more: int) -> None:
        """Something is to happen in the next callback."""
        self.meddling.append(Step(MEDDLING[which % len(MEDDLING)], which // 64, more))

    def interrupt(self, which: int, more: int) -> None:
        """The next filter is to be interrupted."""
        self.interrupts = 1

    # -- rest ---------------------------------------------------------------------------------------------------------

    def rest(self, which: int, more: int) -> None:
        """Have told consumers pull until there is nothing. Then none finds anything."""
        meddling, self.meddling = self.meddling, []
        self.interrupts = 0
        while self.stir(which):
            pass
        for consumer in self.consumers:
            if consumer.interested:
                assert not self.take(consumer), f"{consumer.name} slept beside {self.entries[-1].item}"
        self.check()
        self.meddling = meddling

    def stir(self, which: int) -> bool:
        """Have every consumer pull that was told; False: none was."""
        told = False
        for consumer in self.consumers:
            if not consumer.acquires and self.seen[consumer] != consumer.notified_count:
                self.seen[consumer] = consumer.notified_count
                while self.take(consumer):
                    pass
                told = True
        by_name = {consumer.name: consumer for consumer in self.consumers}
        while notified := self.queue.lists()["notified"]:
            self.take(by_name[notified[which % len(notified)]])
            told = True
        return told

    def check(self) -> None:
        """Check that no consumer and no message is forgotten."""
        names = sorted(name for names in self.queue.lists().values() for name in names)
        assert names == sorted(consumer.name for consumer in self.consumers)
        drops = self.options.get("overflow") == "ring" or self.options["kind"] == "last-value"
        if not drops and not self.interrupted:
            assert self.queue.depth == self.accepted - self.acknowledged - self.buried


def play(make: Make, options: dict[str, Any], steps: Sequence[Step]) -> None:
    Round(make, options).play(steps)


def fails(make: Make, options: dict[str, Any], steps: Sequence[Step]) -> bool:
    try:
        play(make, options, steps)
    except AssertionError:
        return True
    return False


def shortest(make: Make, options: dict[str, Any], steps: Sequence[Step]) -> list[Step]:
    """A round that fails, without the steps that it fails without."""
    left = list(steps)
    size = len(left) // 2
    while size:
        at, length = 0, len(left)
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if fails(make, options, fewer):
                left = fewer
            else:
                at += size
        if size > 1 or len(left) == length:
            size //= 2
    return left


def story(make: Make, options: dict[str, Any], steps: Sequence[Step]) -> str:
    """Return the events of a round, in words."""
    told = Round(make, options)
    told.log = [f"queue: {options}"]
    try:
        told.play(steps)
    except AssertionError as error:
        told.log.append(f"-> {error}")
    return "\n".join(told.log)
