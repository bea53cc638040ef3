"""What a scheduler reports about one slot."""

from __future__ import annotations

from typing import NamedTuple


class SlotStats(NamedTuple):
    """One slot's figures at one moment.

    Attributes
    ----------
    quantum : int
        Cost granted to the slot each round.
    deficit : int
        Cost it may still serve; negative when a settlement left a debt.
    queued : int
        Messages waiting.
    served : int
        Messages served since the slot was added.
    work : int
        Cost served since the slot was added, settlements included.
    held : bool
        Whether the slot counts as backlogged upstream while it is empty here.
    """

    quantum: int
    deficit: int
    queued: int
    served: int
    work: int
    held: bool
