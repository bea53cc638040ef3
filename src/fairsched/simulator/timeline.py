"""Figures of a simulation over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Timeline"]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Figures at regular intervals, including the warm-up.

    Attributes
    ----------
    times : array of float, shape (rows,)
        End of each interval, in seconds. Rates and means are of the interval.
    depth : array of int64, shape (rows, queues)
        Messages in the queue at the broker.
    buffered : array of int64, shape (rows, queues)
        Messages buffered in consumers.
    rate : array of float, shape (rows, queues)
        Messages handled per second.
    returned : array of int64, shape (rows, queues)
        Messages returned by CoDel.
    wait : array of float, shape (rows, queues)
        Mean wait in a consumer of the messages handled, in seconds; nan if none was.
    utilisation : array of float, shape (rows, consumers)
        Fraction of workers busy, whether the consumer is present or not.

    Notes
    -----
    Columns are in the order of the scenario's queues and consumers.
    """

    times: NDArray[np.float64]
    depth: NDArray[np.int64]
    buffered: NDArray[np.int64]
    rate: NDArray[np.float64]
    returned: NDArray[np.int64]
    wait: NDArray[np.float64]
    utilisation: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Return the arrays as lists; nan becomes None."""
        table = {name: getattr(self, name).tolist() for name in self.__slots__ if name != "wait"}
        return table | {"wait": [[None if value != value else value for value in row] for row in self.wait.tolist()]}
