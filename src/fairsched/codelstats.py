"""Statistics of a `CoDel`."""

from __future__ import annotations

from typing import NamedTuple


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
