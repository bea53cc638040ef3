"""What stands before one slot of a fair queue."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairsched.slotstats import SlotStats


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
