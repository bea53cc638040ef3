"""The number of messages to ask a queue for, when their sizes are not known before they are here.

All that was asked for is taken, since a quorum queue counts what comes back. So a mistake costs room in the spool, not
messages: a window is small until sizes are known, and grows with what was seen.

Pure functions: safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Messages of a queue to ask for at once: of which nothing is known, and of which another batch has told the sizes.
FIRST, KNOWN = 4, 2048
#: A window may be so many times what was seen of the queue.
_GROWTH = 4
#: A message is expected to be as large as the largest; but a queue of small messages with some large ones would then be
#: asked for a few at a time, so no larger than this many times the mean, or than this part of the largest.
_TIMES_MEAN, _PART_OF_LARGEST = 2, 8


@dataclass
class Seen:
    """The sizes of a queue's recent messages, in bytes, headers included.

    Parameters
    ----------
    mean, largest : dict of str to int
        By queue.
    came : dict of str to int
        Messages of this partition, by queue.
    """

    mean: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Mapping[str, int], sizes: Mapping[str, int], largest: Mapping[str, int]) -> Seen:
        """Return what is known when these messages, bytes and largest sizes have come, too."""
        mean = {name: sizes[name] // max(1, count) for name, count in counts.items()}
        most = {name: max(size, self.largest.get(name, 0)) for name, size in largest.items()}
        came = {name: count + self.came.get(name, 0) for name, count in counts.items()}
        return Seen(self.mean | mean, self.largest | most, self.came | came)

    def windows(self, wanted: Mapping[str, int], space: int) -> dict[str, int]:
        """Return how many messages to ask each queue for.

        Parameters
        ----------
        wanted : mapping of str to int
            Messages that are still to come, by queue.
        space : int
            Bytes there is room for.

        Returns
        -------
        dict of str to int
            Positive numbers; none if not even one message is expected to fit.
        """
        found, expected = {}, {}
        for name, left in wanted.items():
            most = max(KNOWN if name in self.largest else FIRST, _GROWTH * self.came.get(name, 0))
            found[name] = min(left, most)
            largest = self.largest.get(name, 0)
            expected[name] = max(
                1, min(largest, max(_TIMES_MEAN * self.mean.get(name, 0), largest // _PART_OF_LARGEST))
            )
        total = sum(window * expected[name] for name, window in found.items())
        if total > space:
            found = {name: window * max(0, space) // total for name, window in found.items()}
            if not any(found.values()):
                found = {name: 1 for name in found if expected[name] <= space}
                found = dict([*found.items()][:1])
        return {name: window for name, window in found.items() if window}
