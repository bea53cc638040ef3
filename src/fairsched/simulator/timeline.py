"""How a simulation went, in rows at regular moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Timeline"]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Figures at regular moments, warm-up included.

    Attributes
    ----------
    times : array of float, shape (rows,)
        Moments, in seconds. Rates and means are of the time since the moment before.
    depth : array of int64, shape (rows, queues)
        Messages waiting at the broker.
    buffered : array of int64, shape (rows, queues)
        Messages waiting at consumers.
    rate : array of float, shape (rows, queues)
        Messages handled a second.
    returned : array of int64, shape (rows, queues)
        Messages sent back.
    wait : array of float, shape (rows, queues)
        Mean seconds that messages handled had waited at a consumer; nan where none was.
    utilisation : array of float, shape (rows, consumers)
        Busy workers over all workers, present or not.

    Notes
    -----
    Columns are in the order of the scenario.
    """

    times: NDArray[np.float64]
    depth: NDArray[np.int64]
    buffered: NDArray[np.int64]
    rate: NDArray[np.float64]
    returned: NDArray[np.int64]
    wait: NDArray[np.float64]
    utilisation: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """List the arrays; nan becomes None."""
        table = {name: getattr(self, name).tolist() for name in self.__slots__ if name != "wait"}
        return table | {"wait": [[None if value != value else value for value in row] for row in self.wait.tolist()]}
