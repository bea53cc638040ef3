"""Statistics of the limit of one slot."""

from __future__ import annotations

from typing import NamedTuple


class LimitStats(NamedTuple):
    """What the limit of a slot of a `FairQueue` does at one time.

    Attributes
    ----------
    in_hand : int or None
        Items that were served and not released; None if the limit has no concurrency.
    concurrency : int or None
        How many may be, at most.
    per_second : float or None
        Items a second, in the long run; None if the limit has no rate.
    withheld : int
        Items queued that only the limit keeps from being served: 0 unless the slot is at its limit.
    """

    in_hand: int | None
    concurrency: int | None
    per_second: float | None
    withheld: int
