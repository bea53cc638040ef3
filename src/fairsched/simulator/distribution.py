"""What came out: how a duration was distributed."""

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
    """Durations and how often they came.

    Parameters
    ----------
    values, counts : array of int64
        Nanoseconds, ascending, and how often each came; for many, buckets of less than 0.4 % to each side.
    exact : bool
        Whether values are the durations themselves.
    total : int
        The sum of all, in nanoseconds.
    least, largest : int
        The extremes, in nanoseconds.

    Attributes
    ----------
    count : int
        How many there were.
    exact : bool
        Whether percentiles are exact: they are up to 4096 durations of one queue at one consumer. Count, mean and
        extremes always are.
    error : float
        The most that a percentile may be off, relatively: 0.0 or 1/256.

    Notes
    -----
    Seconds throughout. Immutable and picklable.
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
        """The most that a percentile may be off, relatively."""
        return 0.0 if self.exact else 1 / 256

    @property
    def mean(self) -> float:
        """Exact mean, in seconds; 0.0 of nothing."""
        return self._total / self.count / 1e9 if self.count else 0.0

    @property
    def least(self) -> float:
        """Exactly the least, in seconds; 0.0 of nothing."""
        return self._least / 1e9

    @property
    def largest(self) -> float:
        """Exactly the largest, in seconds; 0.0 of nothing."""
        return self._largest / 1e9

    def percentile(self, percent: float) -> float:
        """Find the least duration that at least so many per cent do not exceed.

        Parameters
        ----------
        percent : float
            From 0 (the least) to 100 (the largest).

        Returns
        -------
        float
            Seconds, by nearest rank; 0.0 of nothing.

        Raises
        ------
        ValueError
            Not a percentage.

        Notes
        -----
        O(values).
        """
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"a percentage is from 0 to 100, got {percent!r}")
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(percent / 100.0 * self.count))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(int(self._values[place]), self._least), self._largest) / 1e9

    def to_dict(self) -> dict[str, Any]:
        """List count, mean, extremes and percentiles 50, 90, 99 and 99.9, in seconds."""
        table: dict[str, Any] = {"count": self.count, "mean": self.mean, "min": self.least, "max": self.largest}
        table |= {f"p{percent:g}".replace(".", ""): self.percentile(percent) for percent in REPORTED}
        return table | {"exact": self.exact}

    @classmethod
    def merged(cls, parts: Iterable[Distribution]) -> Distribution:
        """Put several together.

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
