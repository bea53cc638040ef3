"""Two levels of deficit round robin, in plain Python: a scheduler for each slot, whose next message is the slot's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from oracles.dwrr import ReferenceDwrr, ReferenceSlot
from oracles.limits import Bucket, ReferenceLimits

from fairsched import Limit


class Division(ReferenceDwrr):
    """The subkeys of one slot: equal quanta, on first use."""

    def __init__(self, quantum: int) -> None:
        super().__init__({})
        self.quantum = quantum
        self.looking = False

    def know(self, subkey: Hashable) -> None:
        self.slots.setdefault(subkey, ReferenceSlot(self.quantum))

    def serve(self, name: Hashable, slot: ReferenceSlot, now: int) -> tuple[Hashable, int]:
        """Serve, or only say what would be: the one whose turn it is stays the first."""
        return slot.fifo[0] if self.looking else super().serve(name, slot, now)

    def next(self) -> tuple[int, int]:
        """The token and the cost of the message that is served next."""
        self.looking = True
        found = self.pop()
        self.looking = False
        assert isinstance(found, tuple)
        return found


class ReferenceSubkeys(ReferenceLimits):
    """Slots with limits; the first message of each is what its subkeys would serve next.

    Those of `passing` are as new when nothing of them is queued, owed or in hand, their subkeys too.
    """

    def __init__(
        self, quanta: Mapping[Hashable, int], below: int, limit: Limit | None = None, passing: Iterable[Hashable] = ()
    ) -> None:
        super().__init__(quanta, limit)
        self.below = below
        self.divisions = {name: Division(below) for name in quanta}
        self.passing = set(passing)
        self.limit = limit

    def choose(self, name: Hashable) -> None:
        fifo, division = self.slots[name].fifo, self.divisions[name]
        if fifo:
            first = division.slots[division.active[0]].fifo
            fifo[0] = first[0] if len(first) == len(fifo) else division.next()

    def put(self, name: Hashable, subkey: Hashable, token: int, cost: int) -> None:
        division = self.divisions[name]
        division.know(subkey)
        division.push(subkey, token, cost)
        self.push(name, token, cost)
        if len(self.slots[name].fifo) > 1 and len(division.slots[subkey].fifo) == 1:
            self.choose(name)

    def get(self, now: int) -> tuple[Hashable, int] | None:
        found = super().get(now)
        if found is not None:
            name, token = found
            served = self.divisions[name].pop()
            assert isinstance(served, tuple)
            assert served[1] == token, "a subkey is served whose message was not chosen"
            self.choose(name)
        self.forget()
        return found

    def correct(self, name: Hashable, subkey: Hashable, difference: int) -> None:
        self.divisions[name].know(subkey)
        self.settle(name, difference)
        self.divisions[name].settle(subkey, difference)
        self.choose(name)
        self.forget()

    def release(self, name: Hashable) -> None:
        super().release(name)
        self.forget()

    def forget(self) -> None:
        for name in self.passing:
            slot = self.slots[name]
            if name not in self.active and not slot.fifo and not self.in_hand[name] and slot.deficit >= 0:
                self.divisions[name] = Division(self.below)
                self.slots[name] = ReferenceSlot(slot.quantum)
                self.withheld.discard(name)
                self.buckets[name] = Bucket()

    def queued(self, name: Hashable) -> dict[Hashable, int]:
        """Messages by subkey of a slot."""
        return {subkey: len(one.fifo) for subkey, one in self.divisions[name].slots.items() if one.fifo}
