"""The algorithms in plain Python, written for reading: the oracle that the compiled engine is held against."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass
class ReferenceSlot:
    """One slot: its FIFO of (token, cost) and its account."""

    quantum: int
    deficit: int = 0
    fifo: deque[tuple[int, int]] = field(default_factory=deque)
    granted: bool = False
    held: bool = False
    awaited: bool = False
    served: int = 0
    work: int = 0


class ReferenceDwrr:
    """Deficit weighted round robin, round by round: no round is ever skipped.

    With patience, an empty slot that is held is waited for when its turn comes, `patience` units of time a turn.
    """

    def __init__(self, quanta: Mapping[Hashable, int], patience: int = 0) -> None:
        self.slots = {name: ReferenceSlot(quantum) for name, quantum in quanta.items()}
        self.active: deque[Hashable] = deque()
        self.max_cost = 1
        self.patience = patience
        self.waited = 0  # in this turn
        self.since: int | None = None  # when the wait under way began

    def __len__(self) -> int:
        return sum(len(slot.fifo) for slot in self.slots.values())

    def trim(self, slot: ReferenceSlot) -> None:
        """Credit: none for an idle slot, one quantum plus the largest cost for any other."""
        limit = slot.quantum + self.max_cost if slot.fifo or slot.held else 0
        slot.deficit = min(slot.deficit, limit)

    def push(self, name: Hashable, token: int, cost: int = 1) -> None:
        self.slots[name].fifo.append((token, cost))
        self.max_cost = max(self.max_cost, cost)
        if name not in self.active:
            self.active.append(name)

    def retire_first(self) -> None:
        slot = self.slots[self.active.popleft()]
        slot.granted = False
        self.trim(slot)

    def stays(self, slot: ReferenceSlot) -> bool:
        """Whether an empty slot is anticipated, so that it stays in the list."""
        return slot.awaited and self.patience > 0

    def pop(self, now: int = 0) -> tuple[Hashable, int] | int | None:
        """Serve one message; None when there is none, a number when a slot is waited for so long."""
        while len(self):
            name = self.active[0]
            slot = self.slots[name]
            if not slot.granted:
                slot.granted = True
                slot.deficit += slot.quantum
                self.waited, self.since = 0, None
            if slot.fifo and slot.fifo[0][1] <= slot.deficit:
                return self.serve(name, slot, now)
            expected = max(1, slot.work // slot.served) if slot.served else 1
            if slot.fifo or slot.deficit < 0 or (self.stays(slot) and slot.deficit < expected):
                slot.granted = False
                self.active.rotate(-1)
            elif self.stays(slot) and self.still_waits(now):
                return self.patience - self.waited - (now - self.since)
            else:
                # Awaited still, if its messages came and only used the patience up.
                slot.awaited = slot.awaited and not (self.stays(slot) and self.waited < self.patience)
                self.retire_first()
        return None

    def still_waits(self, now: int) -> bool:
        if self.since is None:
            self.since = now
        return self.waited + now - self.since < self.patience

    def serve(self, name: Hashable, slot: ReferenceSlot, now: int) -> tuple[Hashable, int]:
        if self.since is not None:
            self.waited += now - self.since
            self.since = None
        token, cost = slot.fifo.popleft()
        slot.deficit -= cost
        slot.served += 1
        slot.work += cost
        if not slot.fifo and not self.stays(slot):
            self.retire_first()
        return name, token

    def settle(self, name: Hashable, difference: int) -> None:
        slot = self.slots[name]
        slot.deficit -= difference
        slot.work = max(slot.work + difference, 0)
        self.trim(slot)
        if slot.deficit < 0 and name not in self.active:
            self.active.append(name)
            slot.granted = False

    def set_quantum(self, name: Hashable, quantum: int) -> None:
        self.slots[name].quantum = quantum
        self.trim(self.slots[name])

    def hold(self, name: Hashable, held: bool, awaited: bool = True) -> bool:
        slot = self.slots[name]
        before = slot.awaited
        slot.held, slot.awaited = held, held and awaited
        self.trim(slot)
        return before

    def remove_slot(self, name: Hashable) -> list[int]:
        slot = self.slots.pop(name)
        if name in self.active:
            self.active.remove(name)
        return [token for token, _ in slot.fifo]


def article_loop(fifos: list[deque[int]], quanta: list[int], weight: int = 1) -> list[int]:
    """Drain per-slot deques by the loop of "Fair Consuming With RabbitMQ"; the order of service, as slot indices."""
    deficits = [0] * len(fifos)
    order: list[int] = []
    while any(fifos):
        for i, fifo in enumerate(fifos):
            deficits[i] += quanta[i]
            while fifo and deficits[i] >= weight:
                fifo.popleft()
                deficits[i] -= weight
                order.append(i)
            if not fifo:
                deficits[i] = 0
    return order


class ReferenceLedger:
    """A channel as the broker sees it: what is outstanding, and what each settlement frame settles."""

    def __init__(self) -> None:
        self.outstanding: set[int] = set()
        self.outcome: dict[int, int] = {}
        self.newest = 0

    def deliver(self) -> int:
        self.newest += 1
        self.outstanding.add(self.newest)
        return self.newest

    def receive(self, verdict: int, tag: int, multiple: bool) -> None:
        """Apply one frame; an unknown tag is the channel error it would be on a broker."""
        settled = {t for t in self.outstanding if t <= tag} if multiple else {tag} & self.outstanding
        if not settled:
            raise AssertionError(f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        for t in settled:
            self.outcome[t] = verdict
        self.outstanding -= settled


class ReferenceEstimator:
    """Every sample with its time; what counts is picked out when it is asked for. Times and values in nanoseconds."""

    BUCKETS = 8

    def __init__(self, window: int) -> None:
        self.window = window
        self.samples: list[tuple[int, int]] = []  # (time, value)
        self.half_end = 0
        self.present: list[int] = []
        self.older: list[int] = []

    def move_on(self, now: int) -> None:
        if now >= self.half_end:
            gone = now >= self.half_end + self.window // 2
            self.present, self.older = [], [] if gone else self.present
            self.half_end = now + self.window // 2

    def add(self, value: int, now: int) -> None:
        self.move_on(now)
        self.samples.append((now, value))
        self.present.append(value)

    def minimum(self, now: int) -> int | None:
        """The least of those in the last eight stretches of an eighth of a window."""
        stretch = self.window // self.BUCKETS
        return min((v for t, v in self.samples if t // stretch > now // stretch - self.BUCKETS), default=None)

    def recent(self, now: int) -> list[int]:
        self.move_on(now)
        return sorted(self.present + self.older)
