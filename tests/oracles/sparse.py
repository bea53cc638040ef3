"""Deficit weighted round robin with new and old slots, in plain Python: two lists, as in RFC 8290."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from oracles.dwrr import ReferenceDwrr, ReferenceSlot

#: How many more slots may become new than turns of old ones end.
MOST_BOOSTS = 16


class ReferenceSparse(ReferenceDwrr):
    """The new ones go before the old ones; after its turn, a slot is old, and at the tail."""

    def __init__(self, quanta: dict[Hashable, int]) -> None:
        super().__init__(quanta)
        self.new: deque[Hashable] = deque()
        self.old: deque[Hashable] = deque()
        self.boosts = 0

    def push(self, name: Hashable, token: int, cost: int = 1) -> None:
        self.slots[name].fifo.append((token, cost))
        self.max_cost = max(self.max_cost, cost)
        if name in self.new or name in self.old:
            return
        if (self.new or self.old) and self.boosts < MOST_BOOSTS:
            self.boosts += 1
            self.new.append(name)
        else:
            self.old.append(name)

    def pop(self, now: int = 0) -> tuple[Hashable, int] | None:
        while len(self):
            name = (self.new or self.old)[0]
            slot = self.slots[name]
            if not slot.granted:
                slot.granted = True
                slot.deficit += slot.quantum
            if slot.fifo and slot.fifo[0][1] <= slot.deficit:
                return self.serve(name, slot, now)
            if slot.fifo or slot.deficit < 0:
                self.end_turn(name, slot)
            else:
                self.leave(name, slot)
        return None

    def serve(self, name: Hashable, slot: ReferenceSlot, now: int) -> tuple[Hashable, int]:
        token, cost = slot.fifo.popleft()
        slot.deficit -= cost
        slot.served += 1
        slot.work += cost
        if not slot.fifo and len(self):  # it stays for a round
            self.trim(slot)
            self.end_turn(name, slot)
        elif not slot.fifo:
            self.leave(name, slot)
        return name, token

    def end_turn(self, name: Hashable, slot: ReferenceSlot) -> None:
        slot.granted = False
        if name in self.new:
            self.new.popleft()
        else:
            self.old.popleft()
            self.boosts = max(0, self.boosts - 1)
        self.old.append(name)

    def leave(self, name: Hashable, slot: ReferenceSlot) -> None:
        slot.granted = False
        (self.new if name in self.new else self.old).remove(name)
        self.trim(slot)

    def settle(self, name: Hashable, difference: int) -> None:
        slot = self.slots[name]
        slot.deficit -= difference
        self.trim(slot)
        if slot.deficit < 0 and name not in self.new and name not in self.old:
            self.old.append(name)
            slot.granted = False
