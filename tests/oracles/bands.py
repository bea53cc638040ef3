"""Strict bands in plain Python: a scheduler for each, and the first that has anything is asked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from oracles.dwrr import ReferenceDwrr

from fairsched.scheduling.bands import DEFAULT_BAND, LAST_BAND


class ReferenceBands:
    """Eight times deficit weighted round robin, one behind the other."""

    def __init__(self, quanta: Mapping[Hashable, int], patience: int = 0) -> None:
        self.bands = [ReferenceDwrr({}, patience) for _ in range(LAST_BAND + 1)]
        self.bands[DEFAULT_BAND] = ReferenceDwrr(quanta, patience)
        self.band_of = dict.fromkeys(quanta, DEFAULT_BAND)

    def of(self, name: Hashable) -> ReferenceDwrr:
        return self.bands[self.band_of[name]]

    def push(self, name: Hashable, token: int, cost: int = 1) -> None:
        for band in self.bands:  # the largest cost is that of all
            band.max_cost = max(band.max_cost, cost)
        self.of(name).push(name, token, cost)

    def pop(self, now: int = 0) -> tuple[Hashable, int] | int | None:
        return next((band.pop(now) for band in self.bands if len(band)), None)

    def set_band(self, name: Hashable, number: int) -> None:
        """Move a slot to the tail of another band, without credit."""
        old, new = self.of(name), self.bands[number]
        if old is new:
            return
        slot = old.slots.pop(name)
        slot.granted, slot.deficit = False, min(slot.deficit, 0)
        new.slots[name] = slot
        self.band_of[name] = number
        if name in old.active:
            old.active.remove(name)
            new.active.append(name)

    def before(self, name: Hashable) -> tuple[int, int]:
        """Messages of the bands before a slot's, and the slots that have them."""
        sizes = [len(slot.fifo) for band in self.bands[: self.band_of[name]] for slot in band.slots.values()]
        return sum(sizes), sum(size > 0 for size in sizes)
