"""PullQueue, its subscriptions and targets, while others come in at every point at which they can run Python."""

from __future__ import annotations

import gc
import queue
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.history import History
from support.intruders import (
    BRIEF,
    IntrudedClock,
    Items,
    Number,
    Script,
    Seconds,
    Step,
    Truth,
    Visit,
    intruder,
    play,
    scripts,
)

from fairsched import ShutDown
from fairsched.pullqueue import PullQueue, Target

CONSUMERS = 3
KINDS = ("standard", "priority", "sorted", "fair")


class Name:
    """A slot's name whose hash and equality are Python code."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        intruder.point("hash")
        return 0

    def __eq__(self, other: object) -> bool:
        intruder.point("equality")
        return isinstance(other, Name) and self.value == other.value


class Key:
    """A key whose text is made by Python code."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        intruder.point("text")
        return f"key {self.value}"


class Consumer:
    """A consumer that pulls, with a filter and a callback that are points."""

    def __init__(self, world: World, number: int, picky: bool) -> None:
        self.number, self.picky = number, picky
        self.world = world
        self.subscription: Any = None

    def accepts(self, item: Any) -> object:
        intruder.point("filter")
        return Truth(item.number % CONSUMERS != self.number or not self.picky)

    def told(self, subscription: Any) -> None:
        intruder.point("callback", raises=False)


class World:
    """A queue, its consumers, and what became of each message."""

    def __init__(self, kind: str, groups: str | None, together: bool, credit: int | None) -> None:
        self.recipe = {"kind": kind, "groups": groups, "together": together, "credit": credit}
        self.history = History()
        self.items = Items()
        self.clock = IntrudedClock()
        self.kind, self.groups, self.credit = kind, groups, credit
        self.inside: set[int] = set()
        self.acked: list[int] = []
        self.elsewhere: list[int] = []
        self.entries: list[Any] = []
        self.leaving: set[int] = set()
        options: dict[str, Any] = {"quanta": {Name(0): 2, Name(1): 1}} if kind == "fair" else {}
        self.queue: Any = PullQueue(kind, groups=groups, clock=self.clock, alternate=self.taken_elsewhere, **options)
        self.consumers = [self.join(number) for number in range(CONSUMERS)]
        self.target = Target([consumer.subscription for consumer in self.consumers[1:]]) if together else None

    def __repr__(self) -> str:
        return f"World(**{self.recipe})"

    def taken_elsewhere(self, item: Any, reason: str) -> None:
        self.elsewhere.append(item.number)
        intruder.point("alternate", raises=False)

    def join(self, number: int) -> Consumer:
        consumer = Consumer(self, number, picky=number == 1)
        consumer.subscription = self.queue.subscribe(
            f"c{number}",
            priority=number % 2,
            credit=self.credit,
            filter=consumer.accepts if number else None,
            on_work=consumer.told,
        )
        return consumer

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def attempt(self, call: Any, *allowed: type[Exception]) -> tuple[bool, Any]:
        return self.history.attempt(call, *allowed)

    def put(self, slot: int, priority: int, life: float | None) -> None:
        item = self.items.make()
        number = item.number
        arguments: dict[str, Any] = {"priority": Number(priority), "size": Number(1)}
        if self.kind == "fair":
            arguments["slot"] = Name(slot)
        if self.kind == "sorted" or self.groups:
            arguments["key"] = Key(slot)
        if life is not None:
            arguments["ttl"] = life
        if self.attempt(lambda: self.queue.put(item, **arguments))[0]:
            self.inside.add(number)

    def note(self, entries: list[Any]) -> None:
        self.entries.extend(entries)

    def pull(self, at: int) -> None:
        done, entry = self.attempt(self.consumers[at].subscription.pull)
        if done and entry is not None:
            self.note([entry])

    def pull_many(self, at: int, size: int) -> None:
        done, entries = self.attempt(lambda: self.consumers[at].subscription.pull_many(Number(size)))
        if done:
            self.note(entries)

    def get(self, at: int) -> None:
        done, entry = self.attempt(lambda: self.consumers[at].subscription.get(Seconds(0)), queue.Empty, ShutDown)
        if done:
            self.note([entry])

    def target_pull(self, waiting: bool) -> None:
        if self.target is None:
            return
        call = (lambda: self.target.get(Seconds(0))) if waiting else self.target.pull
        done, entry = self.attempt(call, queue.Empty, ShutDown)
        if done and entry is not None:
            self.note([entry])

    def target_interest(self, interested: bool) -> None:
        if self.target is not None:
            self.attempt(lambda: setattr(self.target, "interested", Truth(interested)))

    def settle(self, at: int, how: str) -> None:
        if not self.entries:
            return
        entry = self.entries.pop(at % len(self.entries))
        number = entry.item.number
        done, settled = self.attempt(getattr(entry, how))
        if not done:
            self.entries.append(entry)
        elif settled and how == "ack":
            self.acked.append(number)

    def interest(self, at: int, interested: bool) -> None:
        self.attempt(lambda: setattr(self.consumers[at].subscription, "interested", Truth(interested)))

    def leave(self, at: int, release: bool) -> None:
        """Leave, and come back as another subscription."""
        if (self.target is not None and at > 0) or at in self.leaving:
            return
        self.leaving.add(at)
        old = self.consumers[at].subscription
        self.attempt(lambda: old.cancel(Truth(release)))
        with intruder.quiet():
            old.cancel()
            self.consumers[at] = self.join(at)
        self.leaving.discard(at)

    def tick(self, seconds: float) -> None:
        self.clock.now += seconds

    def look(self) -> None:
        self.attempt(self.queue.expire)
        self.attempt(self.queue.lists)

    # -- judging ----------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        assert not self.history.wrong, "; ".join(self.history.wrong)
        assert len(set(self.acked)) == len(self.acked), f"acked twice: {sorted(self.acked)}"
        assert not set(self.acked) & set(self.elsewhere)
        gone = {*self.acked, *self.elsewhere}
        assert self.queue.depth == len(self.inside - gone), (sorted(self.inside), sorted(gone))
        assert 0 <= self.queue.available <= self.queue.depth
        lists = [name for names in self.queue.lists().values() for name in names]
        assert sorted(lists) == [consumer.subscription.name for consumer in self.consumers]

    def finish(self) -> None:
        """A consumer that was told pulls until nothing is left for it; then no other finds anything."""
        for entry in self.entries:
            entry.release()
        self.entries.clear()
        self.pull_what_was_told()
        for name in [] if self.target else self.queue.lists()["interested"]:
            consumer = self.consumers[int(name[1:])]
            found = consumer.subscription.pull()
            assert found is None, f"{name} sleeps beside {found.item}"
        for consumer in self.consumers:
            consumer.subscription.cancel(True)
        last = self.queue.subscribe("last")
        for entry in last.pull_many(10_000):
            assert entry.ack()
            self.acked.append(entry.item.number)
        entry = None
        self.queue.expire()
        assert self.queue.depth == 0
        assert sorted([*self.acked, *self.elsewhere]) == sorted(self.inside)
        last.cancel()

    def pull_what_was_told(self) -> None:
        for _ in range(10 * (len(self.inside) + 2) * CONSUMERS):
            notified = self.queue.lists()["notified"]
            if not notified:
                return
            entry = self.consumers[int(notified[0][1:])].subscription.pull()
            if entry is not None:
                number = entry.item.number
                assert entry.ack()
                self.acked.append(number)
        raise AssertionError(f"still told: {self.queue.lists()}")

    def check_let_go(self) -> None:
        """The queue has let go of every item, of each once."""
        del self.queue, self.consumers, self.target
        self.entries.clear()
        if any(self.items.alive.values()):
            gc.collect()
        assert not any(self.items.alive.values()), {n: count for n, count in self.items.alive.items() if count}


consumers = st.integers(0, CONSUMERS - 1)
putting: st.SearchStrategy[Step] = st.tuples(
    st.just("put"), st.integers(0, 1), st.integers(3, 5), st.sampled_from([None, None, 0.5])
)
pulling: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("pull"), consumers),
    st.tuples(st.just("pull_many"), consumers, st.integers(0, 3)),
    st.tuples(st.just("get"), consumers),
    st.tuples(st.just("target_pull"), st.booleans()),
)
settling: st.SearchStrategy[Step] = st.tuples(
    st.just("settle"), st.integers(0, 3), st.sampled_from(["ack", "release", "reject"])
)
tending: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("interest"), consumers, st.booleans()),
    st.tuples(st.just("target_interest"), st.booleans()),
    st.tuples(st.just("leave"), consumers, st.booleans()),
    st.tuples(st.just("tick"), st.sampled_from([0.25, 1.0])),
    st.just(("look",)),
)
steps = st.one_of(putting, putting, putting, pulling, settling, settling, tending)
worlds = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "groups": st.sampled_from([None, None, "standard", "shared"]),
        "together": st.booleans(),
        "credit": st.sampled_from([None, None, 2]),
    }
)
WHERE = ["", "filter", "callback", "alternate", "truth", "destructor", "clock"]


@BRIEF
@given(options=worlds, script=scripts(steps, steps, WHERE, st.booleans()))
def test_calls_come_in_wherever_python_runs(options: dict[str, Any], script: Script) -> None:
    play(World(**options), script)


def test_two_pulls_of_one_message() -> None:
    """A pull whose entry is made while the collector runs, and cancels: the message is acknowledged once."""
    pull: Any = PullQueue()
    first, second = pull.subscribe("first"), pull.subscribe("second")
    pull.put("item")
    taken: list[Any] = []
    intruder.reset()

    def visit() -> None:
        first.cancel(True)
        taken.extend(second.pull_many(1))

    with intruder.watching([Visit("collector", 0, False, visit)], True):
        entry = intruder.observe(first.pull)
    intruder.raise_faults()
    acks = [one.ack() for one in [*taken, *([entry] if entry is not None else [])]]
    assert acks.count(True) == 1
    assert pull.depth == 0
