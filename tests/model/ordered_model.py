"""One ordered lane, two workers and the broker, step by step: the steps of consumer/whole.py and of a handler.

The messages are of one key, so at most one is handled at a time. What a worker wants changes as events say: it takes
the lane, leaves it, or dies. Events of different sequences come in any order, as when the workers' views of one
another differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
#: Unsettled messages that the broker gives to a consumer.
WINDOW = 2
#: What a worker does that leaves a lane, each of which the model can leave out; and what the broker does.
GUARDS = ("forgets its buffer", "waits for its handler", "closes its channel", "returns to its place")


@dataclass
class Worker:
    """A worker: what it wants, and what it has."""

    wants: bool = False
    alive: bool = True
    consumes: bool = False
    leaving: bool = False
    buffer: list[int] = field(default_factory=list)
    hand: int | None = None
    ended: bool = False  # whether the handler of that message has returned
    unsettled: list[int] = field(default_factory=list)

    def state(self) -> Hashable:
        return (
            self.wants, self.alive, self.consumes, self.leaving, tuple(self.buffer), self.hand, self.ended,
            tuple(self.unsettled),
        )  # fmt: skip


@dataclass
class OrderedModel:
    """`events`: sequences of (worker, what). `missing` is a guard that is left out."""

    events: tuple[tuple[tuple[int, str], ...], ...]
    messages: int = 3
    missing: str = ""
    workers: list[Worker] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    consumers: list[int] = field(default_factory=list)  # the first one is active
    handled: set[int] = field(default_factory=set)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        self.workers = [Worker(wants=True), Worker()]
        self.ready = [*range(self.messages)]
        each = [step(number) for number in (0, 1) for step in (self.consume, self.handle)]
        return [*each, self.deliver(), *map(self.happen, self.events)]

    def whole_state(self) -> Hashable:
        workers = tuple(worker.state() for worker in self.workers)
        return workers, tuple(self.ready), tuple(self.consumers), tuple(sorted(self.handled))

    def check(self, _finished: list[bool]) -> None:
        if any(worker.alive and worker.wants for worker in self.workers):
            assert self.handled == {*range(self.messages)}, "a message is not handled although a worker wants the lane"
            assert not self.ready, "a message stays in the lane"

    # The broker ---------------------------------------------------------------------------------------------------

    def deliver(self) -> Steps:
        def active() -> Worker | None:
            return self.workers[self.consumers[0]] if self.consumers else None

        while True:
            yield lambda: bool(self.ready and (one := active()) and len(one.unsettled) < WINDOW)
            worker = self.workers[self.consumers[0]]
            worker.unsettled.append(self.ready.pop(0))
            if not worker.leaving:
                worker.buffer.append(worker.unsettled[-1])

    def take_back(self, number: int) -> None:
        """Return what a closed channel had, and let the next consumer begin."""
        worker = self.workers[number]
        if number in self.consumers:
            self.consumers.remove(number)
        self.ready += worker.unsettled
        if self.kept("returns to its place"):
            self.ready.sort()
        worker.unsettled = []
        if self.kept("forgets its buffer"):
            worker.buffer = []
        worker.consumes = worker.leaving = False

    # A worker -----------------------------------------------------------------------------------------------------

    def consume(self, number: int) -> Steps:
        worker = self.workers[number]

        def due() -> bool:
            if not worker.alive:
                return False
            if worker.leaving:
                return worker.hand is None or not self.kept("waits for its handler")
            return worker.wants != worker.consumes

        while True:
            yield due
            if worker.leaving:
                self.take_back(number)
            elif worker.wants:
                self.consumers.append(number)
                worker.consumes = True
            else:
                worker.leaving = True
                if self.kept("forgets its buffer"):
                    worker.buffer = []
                if not self.kept("closes its channel"):
                    self.consumers.remove(number)

    def handle(self, number: int) -> Steps:
        worker, other = self.workers[number], self.workers[1 - number]
        while True:
            yield lambda: worker.alive and (bool(worker.buffer) if worker.hand is None else True)
            if worker.hand is None:
                worker.hand = worker.buffer.pop(0)
                older = {*range(worker.hand)}
                assert older <= self.handled, f"{worker.hand} begins before {older - self.handled}"
                assert other.hand is None, f"{worker.hand} begins while {other.hand} is handled"
            elif not worker.ended:
                self.handled.add(worker.hand)
                worker.ended = True
            else:
                if worker.hand in worker.unsettled:
                    worker.unsettled.remove(worker.hand)
                worker.hand, worker.ended = None, False

    # What happens -------------------------------------------------------------------------------------------------

    def happen(self, events: tuple[tuple[int, str], ...]) -> Steps:
        for number, what in events:
            yield None
            worker = self.workers[number]
            if what == "dies":
                worker.alive = False
                worker.hand, worker.ended = None, False
                self.take_back(number)
            else:
                worker.wants = what == "takes"
