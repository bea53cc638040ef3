"""Statistics of the engine, as data: of a slot, of what stands before it, of its limit, of CoDel."""

from __future__ import annotations

from typing import Any, NamedTuple


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


class SlotOutlook(NamedTuple):
    """What stands before a slot's first item, as things are at one time: if nothing comes and nothing is settled.

    Attributes
    ----------
    stats : SlotStats
        The slot's figures.
    item : object
        Its first item; None if it has none, and what follows is None too.
    cost : int or None
        What serving that item is charged.
    before : int or None
        Other slots of which something is served before that item; None, too, while the slot is at its limit and takes
        no turns, as are turns and others.
    turns : int or None
        Turns of its own that pass before, because they do not pay for the item.
    others : int or None
        Other slots that take turns.
    awaited : hashable or None
        The slot whose turn it is, though it is empty: its next item is waited for, whatever is queued.
    in_hand : int or None
        Items of it that were served and not released; None if its limit has no concurrency.
    concurrency : int or None
        How many may be, at most.
    retry_after : float or None
        Seconds until its bucket has a token; None if it has one, or its limit has no rate.
    band : int or None
        Its band; None if no slot has one of its own, as is `above`.
    above : int or None
        Items of the bands before that are served before any of its own. The slots that have them are among `before`.
    """

    stats: SlotStats
    item: Any
    cost: int | None
    before: int | None
    turns: int | None
    others: int | None
    awaited: Any
    in_hand: int | None = None
    concurrency: int | None = None
    retry_after: float | None = None
    band: int | None = None
    above: int | None = None


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


class CoDelStats(NamedTuple):
    """Statistics of one `CoDel` since it was created.

    Attributes
    ----------
    asked : int
        Messages it decided about.
    returned : int
        Messages it returned.
    episodes : int
        Number of episodes of returning messages.
    capped : int
        Pulls that ended at `max_returns` returned messages.
    spared : int
        Messages it would have returned but that were delivered; see `CoDel.spare`.
    clock_steps : int
        Number of times the clock went backwards.
    sojourn : float
        Wait of the last message, in seconds.
    """

    asked: int
    returned: int
    episodes: int
    capped: int
    spared: int
    clock_steps: int
    sojourn: float
