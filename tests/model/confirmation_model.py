"""The callbacks of amqp/_publishing.pyx's confirmations, step by step: threads add and remove some, one settles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Steps = Iterator[Callable[[], bool] | None]


@dataclass
class ConfirmationModel:
    """Threads that add a callback each, one of which removes its own again, while a thread settles.

    `adds_at_once`: checking the state and adding are one step. `takes_at_once`: so are setting it and taking the list.
    """

    adders: int = 2
    removes: bool = False
    adds_at_once: bool = True
    takes_at_once: bool = True
    calls: list[int] = field(default_factory=list)

    def threads(self) -> list[Any]:
        self.done = False
        self.callbacks: list[int] = []
        self.calls = []
        self.removed: list[int] = []
        return [self.settle(), *(self.add(number) for number in range(self.adders))]

    def settle(self) -> Steps:
        yield None
        if self.takes_at_once:
            self.done = True
            taken, self.callbacks = self.callbacks, []
        else:
            taken, self.callbacks = self.callbacks, []
            yield None
            self.done = True
        for number in taken:
            yield None
            self.calls.append(number)

    def add(self, number: int) -> Steps:
        yield None
        done = self.done
        if not self.adds_at_once:
            yield None
        if not done:
            self.callbacks.append(number)
        yield None
        if done:
            self.calls.append(number)
        elif self.removes and number == 0 and number in self.callbacks:
            self.callbacks.remove(number)
            self.removed.append(number)

    def check(self, finished: list[bool]) -> None:
        assert all(finished)
        found = sorted([*self.calls, *self.removed])
        assert found == list(range(self.adders)), f"of {self.adders} callbacks, {found} were called or removed"
