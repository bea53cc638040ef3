"""Statistics of the engine: of a slot, its place in the fair order, its limit, and CoDel."""

from __future__ import annotations

from typing import Any, NamedTuple


class SlotStats(NamedTuple):
    """Statistics of one slot at one time.

    Attributes
    ----------
    quantum : int
        Cost granted to the slot in each round.
    deficit : int
        Cost the slot may still serve in this turn; negative if it is in debt after a settlement. If items have
        priorities: the sum of what it may serve in the turns of each.
    queued : int
        Number of queued messages.
    served : int
        Messages served since the slot was added.
    work : int
        Cost served since the slot was added, including settlements.
    held : bool
        Whether the slot counts as backlogged although it has no queued messages.
    at_limit : bool
        Whether the slot is at its limit, and so takes no turns.
    """

    quantum: int
    deficit: int
    queued: int
    served: int
    work: int
    held: bool
    at_limit: bool = False


class SlotOutlook(NamedTuple):
    """Place of a slot's first item in the fair order at one time, if no items arrive and none are settled.

    Attributes
    ----------
    stats : SlotStats
        The slot's statistics.
    item : object
        Its first item; None if it has none: cost, before, turns and others are then None too.
    cost : int or None
        Cost of that item.
    before : int or None
        Number of other slots that are served before that item; None, as turns and others, while the slot is at its
        limit and takes no turns.
    turns : int or None
        Own turns that pass first, because the deficit does not yet cover the cost.
    others : int or None
        Number of other slots that take turns.
    awaited : hashable or None
        The empty slot whose turn it is, and whose next item is waited for even if other slots have items.
    in_hand : int or None
        Items of the slot that were served and not released; None if its limit has no concurrency.
    concurrency : int or None
        Maximum of `in_hand`.
    retry_after : float or None
        Seconds until its token bucket has a token; None if it has one, or the limit has no rate.
    band : int or None
        Its band; None, as `above`, if no slot has a band of its own.
    above : int or None
        Items in earlier bands, or of higher priorities, all of which are served first; `before` includes their slots.
    priority : int or None
        The priority of the first item, if items have priorities; None while the slot is at its limit. `stats` are those
        of all priorities together, except for the deficit, which is that of this priority.
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
    priority: int | None = None


class LimitStats(NamedTuple):
    """State of the limit of a `FairQueue` slot at one time.

    Attributes
    ----------
    in_hand : int or None
        Items that were served and not released; None if the limit has no concurrency.
    concurrency : int or None
        Maximum of `in_hand`.
    per_second : float or None
        Items per second in the long run; None if the limit has no rate.
    withheld : int
        Queued items that are not served because of the limit; 0 unless the slot is at its limit.
    """

    in_hand: int | None
    concurrency: int | None
    per_second: float | None
    withheld: int


class PermitUse(NamedTuple):
    """State of a `FairQueue` slot whose limit has ``scope="group"``, or of such a limit of several slots, at one time.

    Attributes
    ----------
    in_hand : int
        Items that were served and not released; 0 if the limit has no concurrency.
    permits : int
        Maximum of `in_hand`.
    queued : int
        Items that wait. Of several slots: those that could be served at once if this limit allowed it.
    served : int
        Items served since the slot was added, or the limit.
    has_bucket : bool
        Whether the group's token bucket is here.
    full_in : float
        Seconds until the bucket is full; 0 if it is, or is elsewhere.
    reserved : int
        Items that this limit allows, and that wait for another limit of the group, which their slots have together with
        others.
    """

    in_hand: int
    permits: int
    queued: int
    served: int
    has_bucket: bool
    full_in: float
    reserved: int = 0


class CoDelStats(NamedTuple):
    """Statistics of one `CoDel` since it was created.

    Attributes
    ----------
    asked : int
        Number of messages that CoDel decided about.
    returned : int
        Number of messages that it returned.
    episodes : int
        Number of periods in which it returned messages.
    capped : int
        Number of pulls that ended after `max_returns` returned messages.
    spared : int
        Number of messages that it would have returned, but that were delivered; see `CoDel.spare`.
    clock_steps : int
        Number of times the clock went backwards.
    sojourn : float
        Waiting time of the last message, in seconds.
    """

    asked: int
    returned: int
    episodes: int
    capped: int
    spared: int
    clock_steps: int
    sojourn: float
