"""What the engine is measured against: the article's loop and an O(1) deficit round robin, both in plain Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any


class ArticleLoop:
    """The main loop of "Fair Consuming With RabbitMQ": one deque per slot, every slot looked at in every round."""

    def __init__(self, quanta: dict[Hashable, int], weight: int = 1) -> None:
        self.slots = list(quanta)
        self.fifos: dict[Hashable, deque[Any]] = {slot: deque() for slot in quanta}
        self.quanta = quanta
        self.deficits = dict.fromkeys(quanta, 0)
        self.weight = weight

    def push(self, slot: Hashable, item: Any) -> None:
        self.fifos[slot].append(item)

    def drain(self) -> list[tuple[Hashable, Any]]:
        """Serve until a round found nothing."""
        served = []
        while True:
            before = len(served)
            for slot in self.slots:
                fifo = self.fifos[slot]
                deficit = self.deficits[slot] + self.quanta[slot]
                while fifo and deficit >= self.weight:
                    served.append((slot, fifo.popleft()))
                    deficit -= self.weight
                self.deficits[slot] = deficit if fifo else 0
            if len(served) == before:
                return served


class PlainDrr:
    """Deficit round robin with an active list, in plain Python: O(1) a message."""

    def __init__(self, quanta: dict[Hashable, int]) -> None:
        self.quanta = quanta
        self.fifos: dict[Hashable, deque[tuple[Any, int]]] = {slot: deque() for slot in quanta}
        self.deficits = dict.fromkeys(quanta, 0)
        self.active: deque[Hashable] = deque()
        self.granted = False

    def put(self, slot: Hashable, item: Any, cost: int = 1) -> None:
        fifo = self.fifos[slot]
        if not fifo:
            self.active.append(slot)
        fifo.append((item, cost))

    def get(self) -> tuple[Hashable, Any]:
        while True:
            slot = self.active[0]
            if not self.granted:
                self.deficits[slot] += self.quanta[slot]
                self.granted = True
            fifo = self.fifos[slot]
            if fifo[0][1] <= self.deficits[slot]:
                item, cost = fifo.popleft()
                self.deficits[slot] -= cost
                if not fifo:
                    self.deficits[slot] = 0
                    self.active.popleft()
                    self.granted = False
                return slot, item
            self.active.rotate(-1)
            self.granted = False
