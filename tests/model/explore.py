"""Run every schedule of a few small threads, up to a bound on preemptions.

A thread is a generator. It yields before each atomic step: None when the step can always be taken, or a predicate that
must hold before it can (a blocked thread). What runs between two yields is one atomic step. Schedules are enumerated
depth first by replay, as loom and CHESS do: a switch away from a thread that could have gone on counts as a preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Step = Generator[Callable[[], bool] | None, None, None]


class Model(Protocol):
    """A small world: fresh state and threads for each schedule, and a verdict at its end."""

    def threads(self) -> list[Step]: ...

    def check(self, finished: list[bool]) -> None: ...


@dataclass
class Fault(Exception):
    """A schedule that broke the model."""

    schedule: list[int]
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (schedule {self.schedule})"


@dataclass
class Run:
    """One schedule being replayed and then extended."""

    model: Any
    choices: list[int] = field(default_factory=list)
    alternatives: list[list[int]] = field(default_factory=list)

    def go(self, prefix: list[int], bound: int) -> None:
        threads = self.model.threads()
        guards: list[Any] = [next(thread, StopIteration) for thread in threads]
        current, preemptions = -1, 0
        while True:
            ready = [i for i, guard in enumerate(guards) if guard is None or (callable(guard) and self.holds(guard))]
            if not ready:
                break
            if current in ready:  # going on costs nothing, switching away is a preemption
                options = [current] + ([i for i in ready if i != current] if preemptions < bound else [])
            else:
                options = ready
            choice = prefix[len(self.choices)] if len(self.choices) < len(prefix) else options[0]
            preemptions += current in ready and choice != current
            self.alternatives.append(options[options.index(choice) + 1 :])
            self.choices.append(choice)
            current = choice
            try:
                guards[choice] = threads[choice].send(None)
            except StopIteration:
                guards[choice] = StopIteration
            except AssertionError as error:
                raise Fault(self.choices, str(error)) from error
        try:
            self.model.check([guard is StopIteration for guard in guards])
        except AssertionError as error:
            raise Fault(self.choices, str(error)) from error

    @staticmethod
    def holds(guard: Any) -> bool:
        return guard is not StopIteration and guard()


def schedules(make: Callable[[], Model], preemptions: int) -> Iterator[list[int]]:
    """Yield every schedule of the model within the bound; raise `Fault` at the first that breaks it."""
    prefix: list[int] | None = []
    while prefix is not None:
        run = Run(make())
        run.go(prefix, preemptions)
        yield run.choices
        prefix = None
        for depth in range(len(run.choices) - 1, -1, -1):
            if run.alternatives[depth]:
                prefix = [*run.choices[:depth], run.alternatives[depth][0]]
                break
