"""Run every schedule of a few small threads, up to a bound on preemptions.

A thread is a generator. It yields before each atomic step: None when the step can always be taken, or a predicate that
must hold before it can (a blocked thread). What runs between two yields is one atomic step. Schedules are enumerated
depth first by replay, as loom and CHESS do: a switch away from a thread that could have gone on counts as a preemption.

A model may say in what state it is. Then no schedule goes on from where another one has been: in the same state, each
thread at the same step, by the same thread, after as many preemptions, the same can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

Step = Generator[Callable[[], bool] | None, None, None]


class Model(Protocol):
    """A small world: fresh state and threads for each schedule, and a verdict at its end.

    With a method `whole_state` it says, hashable, all that its threads and its verdict depend on, but for the step that
    each thread is at; a thread may then keep nothing in variables of its own from one step to the next.
    """

    def threads(self) -> list[Step]: ...

    def check(self, finished: list[bool]) -> None: ...


@dataclass
class Fault(Exception):
    """A schedule that broke the model."""

    schedule: list[int]
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (schedule {self.schedule})"


def over() -> bool:
    """Hold a thread that has finished."""
    return False


class Run:
    """One schedule after another, each a replay of the one before it up to where another thread goes on.

    Of each step it knows which thread took it, which others could have, and how many preemptions there were with it if
    one of those does.
    """

    def __init__(self, make: Callable[[], Model], bound: int) -> None:
        self.make, self.bound = make, bound
        self.choices: list[int] = []
        self.alternatives: list[list[int]] = []
        self.costs: list[int] = []
        self.preemptions = 0
        self.seen: set[Any] = set()

    def go(self) -> None:
        """Replay the choices that are made, then let each thread go on for as long as it can."""
        model = self.make()
        try:
            finished = self.extend(model.threads(), getattr(model, "whole_state", None))
            if finished is not None:
                model.check(finished)
        except AssertionError as error:
            raise Fault(self.choices, str(error)) from error

    def extend(self, threads: list[Step], state: Callable[[], Hashable] | None) -> list[bool] | None:
        """Return which threads have finished; None if another schedule has been where this one came."""
        steps = [thread.__next__ for thread in threads]
        guards: list[Any] = [next(thread, over) for thread in threads]
        # Nothing but the replay stands between here and a choice that was possible before: no need to ask the guards.
        for choice in self.choices:
            try:
                guards[choice] = steps[choice]()
            except StopIteration:
                guards[choice] = over
        current = self.choices[-1] if self.choices else -1
        while ready := [i for i, guard in enumerate(guards) if guard is None or guard()]:
            if state is not None and self.has_been(threads, current, state()):
                return None
            # Going on costs nothing, switching away is a preemption.
            can_go_on = current in ready
            if can_go_on:
                ready.remove(current)
                others = ready if self.preemptions < self.bound else []
            else:
                current, *others = ready
            self.choices.append(current)
            self.alternatives.append(others)
            self.costs.append(self.preemptions + can_go_on)
            try:
                guards[current] = steps[current]()
            except StopIteration:
                guards[current] = over
        return [guard is over for guard in guards]

    def has_been(self, threads: list[Step], current: int, state: Hashable) -> bool:
        steps = tuple(thread.gi_frame and thread.gi_frame.f_lasti for thread in threads)
        here = (steps, current, self.preemptions, state)
        known = here in self.seen
        self.seen.add(here)
        return known

    def turn(self) -> bool:
        """Choose another thread at the last step where there is one; False if all schedules have been."""
        while self.alternatives and not self.alternatives[-1]:
            for steps in (self.choices, self.alternatives, self.costs):
                steps.pop()
        if not self.alternatives:
            return False
        self.choices[-1] = self.alternatives[-1].pop(0)
        self.preemptions = self.costs[-1]
        return True


def schedules(make: Callable[[], Model], preemptions: int) -> Iterator[list[int]]:
    """Yield every schedule of the model within the bound; raise `Fault` at the first that breaks it.

    Of a model that says its state, a schedule ends where another one has been.
    """
    run = Run(make, preemptions)
    going_on = True
    while going_on:
        run.go()
        yield [*run.choices]
        going_on = run.turn()
