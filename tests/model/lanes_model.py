"""A lane with its publisher, two workers and the broker, step by step, with the state machine of lanes/own_lanes.py.

A step is one method at the broker, a delivery, or a settlement. Time passes for a worker when it likes. A worker does
one thing after the other, as its thread does; its handler and the broker go on meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from fairsched.lanes.announcement import NEW
from fairsched.lanes.own_lanes import IDLE, PATIENCE, Action, Activity, Do, OwnLanes

Steps = Iterator[Callable[[], bool] | None]
LANE = "orders.tenant.x"


class Worker:
    """A worker: its own lanes, what they have it do, and what its consumer has of the lane."""

    def __init__(self) -> None:
        self.own = OwnLanes(jitter=lambda: 0.0)
        self.now = 0.0
        self.alive = True
        self.busy = False
        self.inbox: deque[str] = deque()
        self.todo: deque[Action] = deque()
        #: Whether it has a consumer at the broker; messages that it has in hand, and how many it ever had.
        self.consumes = False
        self.unsettled = self.delivered = 0

    def activities(self) -> dict[str, Activity]:
        if not (self.consumes or self.unsettled):
            return {}
        return {LANE: Activity(self.consumes, self.delivered, self.unsettled)}

    def state(self) -> Hashable:
        lanes = tuple((name, astuple(lane)) for name, lane in self.own._lanes.items())
        return (
            lanes, self.now, self.alive, self.busy, tuple(self.inbox), tuple(self.todo), self.consumes, self.unsettled,
            self.delivered,
        )  # fmt: skip


@dataclass
class LanesModel:
    """The lane of one tenant, which two workers consume, and its registry.

    `known`: the lane exists, is idle, and both workers consume it; else nothing exists. `crashes`: a worker may die.
    `publishes`: messages that are published. `handles`: how many a worker handles at most.
    `reads`: a worker that starts reads the registry meanwhile.

    Guards: `if_empty`, `if_unused`: the broker deletes only a lane that is so. `closes`: who leaves closes its channel,
    and does not only cancel its consumer. `mandatory`: a message without a lane is returned, and its publisher declares
    the lane and publishes again. `remembers`: new lanes are entered into the registry. `after`: they are announced
    after they were declared. `patient`: a worker that left and hears nothing looks again.
    """

    known: bool = True
    crashes: bool = False
    publishes: int = 1
    handles: int = 2
    proposals: int = 1
    reads: bool = False
    if_empty: bool = True
    if_unused: bool = True
    closes: bool = True
    mandatory: bool = True
    remembers: bool = True
    after: bool = True
    patient: bool = True

    def threads(self) -> list[Any]:
        self.exists = self.known
        self.ready = self.confirmed = self.handled = self.lost = 0
        self.entries = self.held = 0
        self.workers = [Worker(), Worker()]
        self.left = dict.fromkeys(("hear0", "hear1", "handle0", "handle1", "time0", "time1"), 2)
        self.left |= {"handle0": self.handles, "handle1": self.handles, "propose": self.proposals}
        if self.known:
            self.entries = 1
            for worker in self.workers:
                self.finish(worker, worker.own.heard(NEW, LANE, "x", 0.0))
                self.finish(worker, worker.own.observed(worker.activities(), 0.0))
        threads: list[Any] = [self.publisher()]
        for number, worker in enumerate(self.workers):
            threads += [self.hear(number, worker), self.handle(number, worker)]
            if self.known:
                threads.append(self.pass_time(number, worker))
        if self.known:
            threads.append(self.propose(self.workers[0]))
        if self.crashes:
            threads.append(self.crash(self.workers[0]))
        if self.reads:
            threads.append(self.read(self.workers[1]))
        return threads

    # The publisher -----------------------------------------------------------------------------------------------

    def publisher(self) -> Steps:
        while self.confirmed < self.publishes:
            yield None
            if self.known and self.confirmed == 0 and self.exists:
                self.publish()  # it has declared the lane before
                continue
            if self.after:
                self.exists = True
                yield None
                self.announce()
            else:
                self.announce()
                yield None
                self.exists = True
            yield None
            self.publish()

    def publish(self) -> None:
        if self.exists:
            self.ready += 1
            self.confirmed += 1
        elif not self.mandatory:
            self.confirmed += 1

    def announce(self) -> None:
        self.entries += self.remembers
        self.say(NEW)

    def say(self, key: str) -> None:
        for worker in self.workers:
            if worker.alive:
                worker.inbox.append(key)

    # Workers -----------------------------------------------------------------------------------------------------

    def hear(self, number: int, worker: Worker) -> Steps:
        while self.left[f"hear{number}"]:
            yield lambda: bool(worker.alive and worker.inbox and not worker.busy)
            self.left[f"hear{number}"] -= 1
            worker.busy = True
            worker.todo.extend(worker.own.observed(worker.activities(), worker.now))
            worker.todo.extend(worker.own.heard(worker.inbox.popleft(), LANE, "x", worker.now))
            while worker.todo:
                yield None
                self.act(worker)
            worker.busy = False

    def propose(self, worker: Worker) -> Steps:
        """All workers have been idle for long, and one comes to look first."""
        while self.left["propose"]:
            yield lambda: worker.alive and not worker.busy
            self.left["propose"] -= 1
            for one in self.workers:
                one.now = max(one.now, IDLE)
            yield from self.look(worker)

    def pass_time(self, number: int, worker: Worker) -> Steps:
        """The time of a lane that was left is over."""
        while self.left[f"time{number}"]:
            yield lambda: worker.alive and not worker.busy and worker.own.wait(worker.now) < IDLE
            self.left[f"time{number}"] -= 1
            worker.now += max(0.0, worker.own.wait(worker.now))
            yield from self.look(worker)

    def look(self, worker: Worker) -> Steps:
        worker.busy = True
        worker.todo.extend(worker.own.observed(worker.activities(), worker.now))
        while worker.todo:
            yield None
            self.act(worker)
        worker.busy = False

    def handle(self, number: int, worker: Worker) -> Steps:
        """The broker delivers a message, and a handler settles it."""
        while self.left[f"handle{number}"]:
            yield lambda: bool(worker.alive and worker.consumes and self.ready)
            self.left[f"handle{number}"] -= 1
            self.deliver(worker)
            yield None
            self.settle(worker)

    def deliver(self, worker: Worker) -> None:
        self.ready -= 1
        worker.unsettled += 1
        worker.delivered += 1

    def settle(self, worker: Worker) -> None:
        if worker.alive and worker.unsettled:  # else it came on a channel that is closed
            worker.unsettled -= 1
            self.handled += 1

    def read(self, worker: Worker) -> Steps:
        """Read the registry under its lock, drop what is gone or repeated, consume the rest, put it back."""
        yield lambda: worker.alive and not worker.busy
        worker.busy = True
        self.held, self.entries = self.entries, 0
        yield None
        if not self.exists:
            self.held = 0
        yield None
        kept, self.held = min(1, self.held), 0
        self.entries += kept
        if kept:
            worker.todo.extend(worker.own.heard(NEW, LANE, "x", worker.now))
        while worker.todo:
            yield None
            self.act(worker)
        worker.busy = False

    def crash(self, worker: Worker) -> Steps:
        yield None
        worker.alive = False
        self.leave(worker, True)
        worker.inbox.clear()

    # What a worker does ------------------------------------------------------------------------------------------

    def act(self, worker: Worker) -> None:
        if not worker.alive:
            worker.todo.clear()
            return
        action = worker.todo.popleft()
        yes = True
        if action.do is Do.SAY:
            self.say(action.key)
        elif action.do is Do.LOOK:
            yes = self.exists
        elif action.do is Do.CONSUME:
            worker.consumes = self.exists  # else its channel is refused
        elif action.do is Do.LEAVE:
            self.leave(worker, self.closes)
        elif action.do is Do.DELETE:
            yes = self.delete()
        if action.do not in (Do.SAY, Do.LEAVE):
            worker.todo.extendleft(reversed(worker.own.answered(action, yes, worker.now)))

    def leave(self, worker: Worker, closes: bool) -> None:
        worker.consumes = False
        if closes:
            self.ready += worker.unsettled
            worker.unsettled = 0

    def delete(self) -> bool:
        """Delete the lane; what was unsettled without a consumer would be gone if its holder died or returned it."""
        if (self.if_unused and any(one.consumes for one in self.workers)) or (self.if_empty and self.ready):
            return False
        if self.exists:
            self.lost += self.ready + sum(one.unsettled for one in self.workers)
        self.exists, self.ready = False, 0
        for worker in self.workers:
            worker.consumes = False
            worker.unsettled = 0
        return True

    # The end -----------------------------------------------------------------------------------------------------

    def finish(self, worker: Worker, actions: list[Action]) -> None:
        worker.todo.extend(actions)
        while worker.todo:
            self.act(worker)

    def settle_down(self) -> None:
        """Let what is left happen, and time pass for as long as a worker may be patient."""
        for _ in range(6):
            for worker in self.workers:
                if not worker.alive:
                    continue
                self.finish(worker, [])
                while worker.inbox:
                    self.finish(worker, worker.own.observed(worker.activities(), worker.now))
                    self.finish(worker, worker.own.heard(worker.inbox.popleft(), LANE, "x", worker.now))
                if self.patient:
                    worker.now += PATIENCE
                    self.finish(worker, worker.own.observed(worker.activities(), worker.now))
                while worker.unsettled:
                    self.settle(worker)

    def check(self, finished: list[bool]) -> None:
        self.settle_down()
        unsettled = sum(worker.unsettled for worker in self.workers)
        assert not self.lost, "a message was lost with its lane"
        assert self.confirmed == self.handled + self.ready + unsettled, "a message is lost"
        waits = self.exists and self.ready
        assert not waits or any(worker.consumes for worker in self.workers), "a lane with messages is not consumed"
        assert not waits or self.entries + self.held, "a lane with messages would not be found after a restart"

    def whole_state(self) -> Hashable:
        return (
            self.exists, self.ready, self.confirmed, self.handled, self.lost, self.entries, self.held,
            tuple(self.left.values()), tuple(worker.state() for worker in self.workers),
        )  # fmt: skip
