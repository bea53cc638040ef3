"""What a CoDel law reports about itself."""

from __future__ import annotations

from typing import NamedTuple


class CoDelStats(NamedTuple):
    """Figures of one `CoDel` since it was made.

    Attributes
    ----------
    asked : int
        Messages it was asked about.
    returned : int
        Messages that it sent back.
    episodes : int
        Times that it began to send messages back.
    capped : int
        Pulls that ended because they had sent back `max_returns` messages.
    spared : int
        Messages it would have sent back, but that were delivered; see `CoDel.spare`.
    clock_steps : int
        Times that the clock ran backwards.
    sojourn : float
        Seconds that the last message had waited.
    """

    asked: int
    returned: int
    episodes: int
    capped: int
    spared: int
    clock_steps: int
    sojourn: float
