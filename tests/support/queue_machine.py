"""A pull queue and its oracle, side by side, for Hypothesis to do with whatever it thinks of."""

from __future__ import annotations

import functools
import queue as queues
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.queue import ReferenceQueue
from support.clock import ManualClock
from support.queue_engines import compiled_queue

# By name, so that a failure is readable: what a consumer accepts.
FILTERS: dict[str, Any] = {
    "all": None,
    "even": lambda item: item % 2 == 0,
    "thirds": lambda item: item % 3 != 0,
    "fifths": lambda item: item % 5 == 2,
}
seldom = st.integers(0, 7).map(lambda number: number == 0)


class QueueMachine(RuleBasedStateMachine):
    """Any sequence of operations, by one thread, has the same results on both."""

    kind = "standard"
    verdicts: tuple[str, ...] = ("ack", "ack", "release", "reject")
    filters = tuple(FILTERS)
    browsers = True
    times: tuple[str, ...] = ("ttl", "held")
    options: Any = st.just({})

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        options = {"kind": self.kind, **data.draw(self.options)}
        self.clock = ManualClock()
        self.dead: tuple[list[Any], list[Any]] = ([], [])
        self.broken = False
        self.queues = [
            make(**options, clock=self.clock, alternate=functools.partial(self.bury, dead))
            for make, dead in zip((ReferenceQueue, compiled_queue), self.dead, strict=True)
        ]
        self.consumers: list[tuple[Any, Any]] = []
        self.entries: list[tuple[Any, Any]] = []
        self.numbers = self.names = 0

    def bury(self, dead: list[Any], item: Any, reason: str) -> None:
        """The alternate of both, each with a list of its own."""
        if self.broken:
            raise OSError
        dead.append((item, reason))

    def message(self, data: st.DataObject) -> dict[str, Any]:
        """The other arguments a message is put with."""
        what = data.draw(st.sampled_from(["plain", "plain", "plain", *self.times]))
        if what == "ttl":
            return {"ttl": data.draw(st.integers(0, 5))}
        if what == "held":
            return {"not_before": self.clock.now + data.draw(st.integers(-1, 5))}
        return {}

    def both(self, call: Any) -> Any:
        """Call on both; an exception is a result."""
        results = []
        for queue in self.queues:
            try:
                results.append(call(queue))
            except (queues.Full, ValueError) as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]

    @rule(data=st.data(), count=st.integers(1, 4))
    def put(self, data: st.DataObject, count: int) -> None:
        options = self.message(data)
        for _ in range(count):
            self.numbers += 1
            self.both(lambda queue: queue.put(self.numbers, **options))

    @precondition(lambda self: len(self.consumers) < 6)
    @rule(
        data=st.data(),
        priority=st.integers(-1, 1),
        browses=seldom,
        interested=st.integers(0, 5),
        credit=st.sampled_from([None, None, None, 0, 1, 2, 5]),
    )
    def subscribe(self, data: st.DataObject, priority: int, browses: bool, interested: int, credit: int | None) -> None:
        self.names += 1
        options = {
            "priority": priority,
            "acquires": not (browses and self.browsers),
            "interested": interested > 0,
            "credit": credit,
            "filter": FILTERS[data.draw(st.sampled_from(self.filters))],
        }
        name = f"c{self.names}"
        reference, compiled = (queue.subscribe(name, **options) for queue in self.queues)
        self.consumers.append((reference, compiled))

    def pick(self, data: st.DataObject, among: list[Any]) -> Any:
        return among[data.draw(st.integers(0, len(among) - 1))]

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.integers(1, 3))
    def pull(self, data: st.DataObject, count: int) -> None:
        pair = self.pick(data, self.consumers)
        for _ in range(count):
            reference, compiled = (consumer.pull() for consumer in pair)
            self.received(reference, compiled)

    def received(self, reference: Any, compiled: Any) -> None:
        assert (reference is None) is (compiled is None), (reference and reference.item, compiled and compiled.item)
        if reference is not None:
            assert (reference.item, reference.delivery_count, reference.redelivered) == (
                compiled.item,
                compiled.delivery_count,
                compiled.redelivered,
            )
            self.entries.append((reference, compiled))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.integers(0, 4))
    def pull_many(self, data: st.DataObject, count: int) -> None:
        reference, compiled = (consumer.pull_many(count) for consumer in self.pick(data, self.consumers))
        assert [entry.item for entry in reference] == [entry.item for entry in compiled]
        for pair in zip(reference, compiled, strict=True):
            self.received(*pair)

    @rule()
    def run(self) -> None:
        """Run to quiescence: notified consumers pull, in the order of the list. None sleeps beside a message then."""
        while notified := self.queues[0].lists()["notified"]:
            pair = next(pair for pair in self.consumers if pair[0].name == notified[0])
            self.received(*(consumer.pull() for consumer in pair))
            self.same()
        for pair in self.consumers:
            if pair[0].acquires:
                assert [consumer.pull() for consumer in pair] == [None, None]

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(self.verdicts))
        at = data.draw(st.integers(0, len(self.entries) - 1))
        reference, compiled = self.entries[at]
        assert getattr(reference, how)() is getattr(compiled, how)()
        if data.draw(st.integers(0, 3)):
            del self.entries[at]  # or it is settled again, in vain

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), interested=st.booleans())
    def flip(self, data: st.DataObject, interested: bool) -> None:
        for consumer in self.pick(data, self.consumers):
            consumer.interested = interested

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.sampled_from([None, 0, 1, 3]))
    def credit(self, data: st.DataObject, credit: int | None) -> None:
        for consumer in self.pick(data, self.consumers):
            consumer.credit = credit

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        pair = self.pick(data, self.consumers)
        self.consumers.remove(pair)
        for consumer in pair:
            consumer.cancel()

    @rule(broken=st.booleans())
    def break_alternate(self, broken: bool) -> None:
        self.broken = broken

    @rule(seconds=st.integers(0, 3))
    def time_passes(self, seconds: int) -> None:
        """And the housekeeping runs: what a pull would notice by itself is for the tests case by case."""
        self.clock.now += seconds
        for queue in self.queues:
            queue.expire()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "queues"):
            return
        reference, compiled = self.queues
        assert reference.lists() == compiled.lists()
        assert (reference.depth, reference.available) == (compiled.depth, compiled.available)
        assert self.dead[0] == self.dead[1]
        assert reference.undelivered == compiled.undelivered
        for one, other in self.consumers:
            state = f"{one.name}: notified_count, credit, interested"
            assert (one.notified_count, one.credit, one.interested) == (
                other.notified_count,
                other.credit,
                other.interested,
            ), state
