"""The distribution of a duration in a result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Distribution"]

#: Percentiles of the reports.
REPORTED = (50.0, 90.0, 99.0, 99.9)


class Distribution:
    """Durations and their counts.

    Parameters
    ----------
    values, counts : array of int64
        Nanoseconds, ascending, and how often each occurred; for many values, buckets within 0.4 % of each value.
    exact : bool
        Whether the values are the durations themselves.
    total : int
        The sum, in nanoseconds.
    least, largest : int
        The minimum and maximum, in nanoseconds.

    Attributes
    ----------
    count : int
        Number of durations.
    exact : bool
        Whether percentiles are exact: they are for up to 4096 durations of one queue at one consumer. Count, mean,
        minimum and maximum always are.
    error : float
        Largest relative error of a percentile: 0.0 or 1/256.

    Notes
    -----
    All times are in seconds. Immutable and picklable.
    """

    __slots__ = ("_counts", "_largest", "_least", "_total", "_values", "count", "exact")

    def __init__(
        self,
        values: NDArray[np.int64],
        counts: NDArray[np.int64],
        exact: bool,
        total: int,
        least: int,
        largest: int,
    ) -> None:
        self._values = values
        self._counts = counts
        self._total = total
        self._least = least
        self._largest = largest
        self.count = int(counts.sum())
        self.exact = exact

    def __repr__(self) -> str:
        return f"Distribution(count={self.count}, mean={self.mean:.6g}, p99={self.percentile(99):.6g})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Distribution):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._values.tobytes(), self._counts.tobytes(), self.exact, self._total, self._least, self._largest

    @property
    def error(self) -> float:
        """Largest relative error of a percentile."""
        return 0.0 if self.exact else 1 / 256

    @property
    def mean(self) -> float:
        """Exact mean in seconds; 0.0 when empty."""
        return self._total / self.count / 1e9 if self.count else 0.0

    @property
    def least(self) -> float:
        """Exact minimum in seconds; 0.0 when empty."""
        return self._least / 1e9

    @property
    def largest(self) -> float:
        """Exact maximum in seconds; 0.0 when empty."""
        return self._largest / 1e9

    def percentile(self, percent: float) -> float:
        """Return a percentile.

        Parameters
        ----------
        percent : float
            From 0 (the minimum) to 100 (the maximum).

        Returns
        -------
        float
            Seconds, by nearest rank; 0.0 when empty.

        Raises
        ------
        ValueError
            `percent` is not from 0 to 100.

        Notes
        -----
        O(values).
        """
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"percent must be from 0 to 100, got {percent!r}")
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(percent / 100.0 * self.count))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(int(self._values[place]), self._least), self._largest) / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return count, mean, minimum, maximum and percentiles 50, 90, 99 and 99.9; times in seconds."""
        table: dict[str, Any] = {"count": self.count, "mean": self.mean, "min": self.least, "max": self.largest}
        table |= {f"p{percent:g}".replace(".", ""): self.percentile(percent) for percent in REPORTED}
        return table | {"exact": self.exact}

    @classmethod
    def merged(cls, parts: Iterable[Distribution]) -> Distribution:
        """Merge several distributions.

        Notes
        -----
        O(values log values).
        """
        full = [part for part in parts if part.count]
        if not full:
            nothing = np.empty(0, dtype=np.int64)
            return cls(nothing, nothing, True, 0, 0, 0)
        if len(full) == 1:
            return full[0]
        values, places = np.unique(np.concatenate([part._values for part in full]), return_inverse=True)
        counts = np.zeros(len(values), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([part._counts for part in full]))
        return cls(
            values,
            counts,
            all(part.exact for part in full),
            sum(part._total for part in full),
            min(part._least for part in full),
            max(part._largest for part in full),
        )
