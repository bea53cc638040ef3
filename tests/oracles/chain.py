"""The chain in plain Python, one thread: the oracle for target, session and connection in core/connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

TASK_STEPS = 8
TASK = -1
START, FLOW = 1, 8


@dataclass
class ReferenceTarget:
    """Consumers by number, whose messages are counted in `waiting`."""

    consumers: list[int]
    waiting: list[int]
    cursor: int = 0
    hindrances: int = START
    told: list[int] = field(default_factory=list)

    def change(self, hindrances: int) -> bool:
        """Whether the target is desired from now on, and was not."""
        changed = bool(hindrances) != bool(self.hindrances)
        self.hindrances = hindrances
        if changed:
            self.told.append(int(not hindrances))
        return changed and not hindrances

    def send_next(self) -> int | None:
        for _ in range(len(self.consumers)):
            if self.hindrances:
                return None
            consumer = self.consumers[self.cursor % len(self.consumers)]
            self.cursor = self.cursor % len(self.consumers) + 1
            if self.waiting[consumer]:
                self.waiting[consumer] -= 1
                return consumer
        return None


class ReferenceChain:
    """One connection with so many sessions, of so many targets, of so many consumers."""

    def __init__(self, sessions: int, targets: int, consumers: int) -> None:
        self.waiting = [0] * (sessions * targets * consumers)
        self.each, self.targets_each = consumers, targets
        self.targets = [
            ReferenceTarget(list(range(at * consumers, (at + 1) * consumers)), self.waiting)
            for at in range(sessions * targets)
        ]
        self.pending: list[deque[int]] = [deque() for _ in range(sessions)]
        self.sessions: deque[int] = deque()
        self.task = False
        self.streak = 0
        self.log: list[int] = []

    def put(self, consumer: int, count: int, notify: bool) -> None:
        self.waiting[consumer] += count
        if notify:
            self.schedule(consumer // self.each)

    def schedule(self, target: int) -> None:
        session = target // self.targets_each
        if target not in self.pending[session]:
            self.pending[session].append(target)
            if session not in self.sessions:
                self.sessions.append(session)

    def change(self, target: int, hindrances: int) -> None:
        if self.targets[target].change(hindrances):
            for consumer in self.targets[target].consumers:
                if self.waiting[consumer]:
                    self.schedule(target)

    def hinder(self, target: int, reasons: int) -> None:
        self.change(target, self.targets[target].hindrances | reasons)

    def resume(self, target: int, reasons: int) -> None:
        self.change(target, self.targets[target].hindrances & ~reasons)

    def submit(self) -> None:
        self.task = True

    def run(self) -> None:
        """Make passes until nothing is left."""
        while self.step():
            pass

    def run_task(self) -> bool:
        self.streak = 0
        ran, self.task = self.task, False
        if ran:
            self.log.append(TASK)
        return ran

    def step(self) -> bool:
        if self.streak >= TASK_STEPS and self.run_task():
            return True
        if not self.sessions:
            return self.run_task()
        self.streak += 1
        session = self.sessions.popleft()
        pending = self.pending[session]
        target = pending.popleft()
        served = self.targets[target].send_next()
        if served is not None:
            self.log.append(served)
            pending.append(target)
        if pending:
            self.sessions.append(session)
        return True
