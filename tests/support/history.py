"""The judge: what was put and got, and whether a queue of FIFOs could have done so.

Calls overlap here: one is made inside another, by the same thread or by others. So nothing is said of the order of two
calls of which one began before the other had ended; all else must be as if each had happened at one moment.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.intruders import Refusal, intruder


@dataclass
class Life:
    """One item: where it was put, and between which moments it was put and got."""

    slot: int
    put_begun: int
    put_ended: int | None = None
    got_begun: int | None = None
    got_ended: int | None = None
    subkey: int = 0
    doubtful: bool = False  # whether it is in the queue cannot be told: the caller changed the list meanwhile
    put: bool = False
    withdrawn: bool = False  # taken out of the middle, in no order


class History:
    """Everything that was put and got, and everything that went wrong."""

    def __init__(self) -> None:
        self.moments = itertools.count(1)
        self.lives: dict[int, Life] = {}
        self.wrong: list[str] = []

    def moment(self) -> int:
        return next(self.moments)

    def fault(self, text: str) -> None:
        self.wrong.append(text)

    def attempt(self, call: Callable[[], Any], *allowed: type[Exception]) -> tuple[bool, Any]:
        """Make a call with points in it: whether it returned, and what it returned or raised."""
        try:
            return True, intruder.observe(call)
        except (Refusal, *allowed) as error:
            return False, error.with_traceback(None)
        except Exception as error:
            self.fault(f"{type(error).__name__}: {error}")
            return False, error.with_traceback(None)

    def putting(self, slots: list[int], numbers: list[int], subkeys: list[int] | None = None) -> None:
        now = self.moment()
        for slot, number, subkey in zip(slots, numbers, subkeys or [0] * len(slots), strict=True):
            self.lives[number] = Life(slot, now, subkey=subkey)

    def was_put(self, numbers: list[int]) -> None:
        now = self.moment()
        for number in numbers:
            self.lives[number].put = True
            self.lives[number].put_ended = now

    def got(self, begun: int, slot: int, number: int) -> None:
        life = self.lives.get(number)
        if life is None:
            self.fault(f"item {number} was got, and never put")
            return
        if life.got_begun is not None:
            self.fault(f"item {number} was got twice")
        if life.slot != slot:
            self.fault(f"item {number} was put to slot {life.slot}, and got from slot {slot}")
        life.got_begun, life.got_ended = begun, self.moment()

    def withdrew(self, begun: int, number: int) -> None:
        """Note that an item was taken out of the queue, wherever it stood."""
        life = self.lives[number]
        self.got(begun, life.slot, number)
        life.withdrawn = True

    def surely_queued(self, begun: int) -> list[int]:
        """Items that were in the queue from before `begun` until now, whatever the order of overlapping calls."""
        return [
            number
            for number, life in self.lives.items()
            if life.put_ended is not None and life.put_ended < begun and life.got_begun is None
        ]

    def queued(self, slot: int | None = None) -> list[int]:
        """Items in the queue while no call is under way."""
        return [
            number
            for number, life in self.lives.items()
            if life.put and life.got_begun is None and slot in (None, life.slot)
        ]

    def check_end(self) -> None:
        """Nothing is queued any more: everything that was put was got, once and in order."""
        for number, life in self.lives.items():
            if life.doubtful:
                continue
            if life.put and life.got_begun is None:
                self.fault(f"item {number} of slot {life.slot} was put, and never got")
            if not life.put and life.got_begun is not None:
                self.fault(f"item {number} of slot {life.slot} was got, though putting it failed")
        self.check_order()
        assert not self.wrong, "; ".join(self.wrong[:5])

    def check_order(self) -> None:
        """Within a slot, or a subkey of it: what was put before another was put is got no later."""
        by_slot: dict[tuple[int, int], list[tuple[int, Life]]] = defaultdict(list)
        for number, life in self.lives.items():
            if life.put and life.got_ended is not None and not life.withdrawn:
                by_slot[life.slot, life.subkey].append((number, life))
        for (slot, _), lives in by_slot.items():
            for (a, first), (b, second) in itertools.permutations(lives, 2):
                if first.put_ended < second.put_begun and second.got_ended < first.got_begun:
                    self.fault(f"item {b} of slot {slot} was got before item {a}, which was put before it")
