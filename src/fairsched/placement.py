"""Which queue a hash belongs to: RabbitMQ's buckets, and the ring of its first versions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Protocol

from fairsched._routing import rabbitmq_bucket, xxh64
from fairsched.errors import ConfigurationError

#: Points of the ring lie from 0 to 2**27 - 1, the range of `phash2`.
RING_SIZE = 2**27

#: Bucket numbers have 31 bits.
MOST_BUCKETS = 2**31 - 1


class Placement(Protocol):
    """The bindings of an exchange, and where hashes go."""

    def bind(self, queue: str, key: str, weight: int) -> None:
        """Add a new binding."""

    def unbind(self, queue: str, key: str) -> None:
        """Remove an existing binding."""

    def find(self, hashed: int) -> str | None:
        """Return the queue of a hash; None if nothing is bound."""

    def __len__(self) -> int: ...


class Buckets:
    """RabbitMQ's placement since 3.7.8: numbered buckets, a block of them for each queue, chosen by jump hash.

    Notes
    -----
    The first binding of a queue adds its block; further ones are ignored. Removing any of its bindings, even an ignored
    one, removes the block and renumbers all later blocks, so their keys may move to other queues.

    Complexity: bind, unbind O(queues); find O(log buckets). Thread safety: none; the owner excludes.
    """

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}  # in block order
        self._queues: list[str] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def bind(self, queue: str, key: str, weight: int) -> None:
        """Append a block, unless the queue has one."""
        if queue in self._weights:
            return
        if len(self) + weight > MOST_BUCKETS:
            raise ConfigurationError(f"there would be more than {MOST_BUCKETS} buckets")
        self._weights[queue] = weight
        self._renumber()

    def unbind(self, queue: str, key: str) -> None:
        """Remove the queue's block and close the gap."""
        if self._weights.pop(queue, None) is not None:
            self._renumber()

    def _renumber(self) -> None:
        self._queues = list(self._weights)
        self._ends = list(accumulate(self._weights.values()))

    def find(self, hashed: int) -> str | None:
        """Return the queue whose block has the hash's bucket."""
        if not self._ends:
            return None
        return self._queues[bisect_right(self._ends, rabbitmq_bucket(hashed, self._ends[-1]))]


class PointRing:
    """RabbitMQ's placement up to 3.7.7: points on a ring, as many as the weight, the nearest at or above the hash.

    Parameters
    ----------
    seed : int
        The broker's points are random; these are derived from the seed, the queue and the binding key, so that all
        processes agree. A point that is taken is drawn again.

    Notes
    -----
    Each binding has its own points: another key for the same queue adds more.

    Complexity: bind, unbind O(points); find O(log points). Thread safety: none; the owner excludes.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._owners: dict[int, tuple[str, str]] = {}
        self._points: list[int] = []

    def __len__(self) -> int:
        return len(self._points)

    def bind(self, queue: str, key: str, weight: int) -> None:
        """Draw the binding's points."""
        if len(self._points) + weight > RING_SIZE:
            raise ConfigurationError(f"there would be more than {RING_SIZE} points")
        missing, draw = weight, 0
        while missing:
            point = xxh64(f"{queue}\0{key}\0{draw}", self._seed) % RING_SIZE
            draw += 1
            if point not in self._owners:
                self._owners[point] = (queue, key)
                missing -= 1
        self._points = sorted(self._owners)

    def unbind(self, queue: str, key: str) -> None:
        """Remove only this binding's points."""
        self._owners = {point: owner for point, owner in self._owners.items() if owner != (queue, key)}
        self._points = sorted(self._owners)

    def find(self, hashed: int) -> str | None:
        """Return the queue of the smallest point at or above the hash, else of the smallest point."""
        if not self._points:
            return None
        at = bisect_left(self._points, hashed)
        return self._owners[self._points[at % len(self._points)]][0]
