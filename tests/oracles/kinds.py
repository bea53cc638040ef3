"""The kinds of queue in plain Python: in which order messages are served, and which one a ring gives up first.

`key`: what sorts a message (as text, missing first, ties by arrival), what a newer one replaces it by (last-value), and
the group it belongs to. A fair queue charges a slot what a message costs, its size or 1, each time it is handed out.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from oracles.dwrr import ReferenceDwrr

AVAILABLE, HELD, ACQUIRED, GONE = "available", "held", "acquired", "gone"


@dataclass(eq=False)
class Stored:
    """A message in the queue. `failed`: deliveries that did not end well."""

    number: int
    item: Any
    key: Any = None
    level: int = 0
    slot: Hashable = None
    size: int = 0
    expiry: float | None = None
    not_before: float | None = None
    state: str = AVAILABLE
    failed: int = 0
    redelivered: bool = False
    superseded: bool = False
    rejected_by: set[Any] = field(default_factory=set)
    assignment: Any = None

    @property
    def counts_as_available(self) -> bool:
        return self.state in (AVAILABLE, HELD)


Wanted = Callable[[Stored], bool]


class Order:
    """First in, first out; the oldest is given up first."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.waiting: list[Stored] = []  # those of them that no consumer has

    def place(self, message: Stored) -> Any:
        return message.number

    def worth(self, message: Stored) -> Any:
        return message.number

    def add(self, message: Stored) -> list[Stored]:
        """Enqueue; returns the messages that are to be discarded for it."""
        bisect.insort(self.stored, message, key=self.place)
        self.give_back(message)
        return []

    def remove(self, message: Stored) -> None:
        """It has left the queue."""
        self.stored.remove(message)
        if message in self.waiting:
            self.waiting.remove(message)

    def first(self, wanted: Wanted) -> Stored | None:
        """Return what a pull would get, of those that are wanted."""
        return next(filter(wanted, self.waiting), None)

    def check_slot(self, slot: Hashable) -> None:
        if slot is not None:
            raise ValueError(f"a slot is for a fair queue, got {slot!r}")

    def browse(self, wanted: Wanted) -> Stored | None:
        """Return what a browser sees next."""
        return next(filter(wanted, self.stored), None)

    def take(self, message: Stored, wanted: Wanted) -> None:
        """It is handed out."""
        self.waiting.remove(message)

    def give_back(self, message: Stored) -> None:
        """It is there to be handed out again, where it stood."""
        bisect.insort(self.waiting, message, key=self.place)

    def due(self, message: Stored) -> None:
        """It was held, and its time has come."""

    def victims(self) -> list[Stored]:
        return sorted(self.stored, key=self.worth)


class Levels(Order):
    """Higher levels first, first in first out inside; given up first: the oldest of the lowest level."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def level_of(self, priority: int) -> int:
        return max(0, min(priority - (5 - (self.levels + 1) // 2), self.levels - 1))

    def place(self, message: Stored) -> Any:
        return (-message.level, message.number)

    def worth(self, message: Stored) -> Any:
        return (message.level, message.number)


class Sorted(Order):
    """By the text of the key, the missing key first, ties by arrival."""

    def place(self, message: Stored) -> Any:
        return (message.key is not None, "" if message.key is None else str(message.key), message.number)


class LastValue(Order):
    """A newer message replaces the one with its key; one that is acquired is discarded when it comes back."""

    def add(self, message: Stored) -> list[Stored]:
        older = [m for m in self.stored if message.key is not None and m.key == message.key and not m.superseded]
        for m in older:
            m.superseded = True
        super().add(message)
        return [m for m in older if m.counts_as_available]


class Fair(Order):
    """Deficit weighted round robin over slots; a slot that has nothing for this consumer is passed over,
    and keeps no more than one quantum and the largest cost.

    Browsers see it in the order of arrival. A message that comes back stands where it stood in its slot, and is charged
    again. One that is held is in its slot only when its time has come.
    """

    def __init__(self, quanta: Mapping[Hashable, int]) -> None:
        super().__init__()
        self.dwrr = ReferenceDwrr(quanta)

    def check_slot(self, slot: Hashable) -> None:
        if slot not in self.dwrr.slots:
            raise KeyError(f"no slot {slot!r}; there are {', '.join(map(repr, self.dwrr.slots))}")

    def give_back(self, message: Stored) -> None:
        super().give_back(message)
        if message.state != HELD:
            self.due(message)

    def due(self, message: Stored) -> None:
        slot = self.dwrr.slots[message.slot]
        waiting: list[Any] = [*slot.fifo, (message, max(message.size, 1))]
        waiting.sort(key=lambda pair: pair[0].number)
        slot.fifo.clear()
        slot.fifo.extend(waiting)
        self.dwrr.max_cost = max(self.dwrr.max_cost, message.size, 1)
        if message.slot not in self.dwrr.active:
            self.dwrr.active.append(message.slot)

    def remove(self, message: Stored) -> None:
        super().remove(message)
        fifo: Any = self.dwrr.slots[message.slot].fifo
        for pair in [pair for pair in fifo if pair[0] is message]:
            fifo.remove(pair)

    def first(self, wanted: Wanted) -> Stored | None:
        trial = copy.copy(self.dwrr)
        trial.slots = {name: copy.copy(slot) for name, slot in self.dwrr.slots.items()}
        trial.active = self.dwrr.active.copy()
        for slot in trial.slots.values():
            slot.fifo = slot.fifo.copy()
        return self.serve(trial, wanted)

    def take(self, message: Stored, wanted: Wanted) -> None:
        super().take(message, wanted)
        served = self.serve(self.dwrr, wanted)
        assert served is message

    @staticmethod
    def serve(dwrr: ReferenceDwrr, wanted: Wanted) -> Stored | None:
        """Round by round, with each slot's first wanted message in front."""
        fits: Any = {name: [x for x in slot.fifo if wanted(cast(Any, x[0]))] for name, slot in dwrr.slots.items()}
        if not any(fits.values()):
            return None
        while True:
            name = dwrr.active[0]
            slot = dwrr.slots[name]
            if slot.fifo and not fits[name]:
                dwrr.trim(slot)
                slot.granted = False
                dwrr.active.rotate(-1)
                continue
            if not slot.granted:
                slot.granted = True
                slot.deficit += slot.quantum
            if not slot.fifo and slot.deficit >= 0:
                dwrr.retire_first()
            elif fits[name] and fits[name][0][1] <= slot.deficit:
                slot.fifo.remove(fits[name][0])
                slot.fifo.appendleft(fits[name][0])
                return cast(Stored, dwrr.serve(name, slot, 0)[1])
            else:
                slot.granted = False
                dwrr.active.rotate(-1)


KINDS = ("standard", "priority", "sorted", "last-value", "fair")


def order_of(kind: str, levels: int, quanta: Mapping[Hashable, int] | None) -> Order:
    """The order of a kind of queue."""
    if kind == "priority":
        return Levels(levels)
    if kind == "fair":
        return Fair(quanta or {})
    return {"standard": Order, "sorted": Sorted, "last-value": LastValue}[kind]()
