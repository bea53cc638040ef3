"""Statistics of one slot of a scheduler."""

from __future__ import annotations

from typing import NamedTuple


class SlotStats(NamedTuple):
    """Statistics of one slot at one time.

    Attributes
    ----------
    quantum : int
        Cost granted to the slot in each round.
    deficit : int
        Cost it may still serve; negative if it is in debt after a settlement.
    queued : int
        Messages waiting.
    served : int
        Messages served since the slot was added.
    work : int
        Cost served since the slot was added, including settlements.
    held : bool
        Whether the slot counts as backlogged elsewhere while it is empty here.
    at_limit : bool
        Whether the slot is at its limit, so that it takes no turns.
    """

    quantum: int
    deficit: int
    queued: int
    served: int
    work: int
    held: bool
    at_limit: bool = False
