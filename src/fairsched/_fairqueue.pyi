from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairsched._core import NamedSlots
from fairsched.batch import Batch
from fairsched.slotstats import SlotStats

@final
class FairQueue(NamedSlots):
    def __init__(
        self,
        quanta: Mapping[Any, SupportsIndex] | None = None,
        *,
        maxsize: int = 0,
        default_quantum: SupportsIndex | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None: ...
    def put(
        self, slot: Hashable, item: Any, cost: SupportsIndex = 1, block: bool = True, timeout: float | None = None
    ) -> None: ...
    def put_many(
        self,
        slots: list[Any] | NDArray[np.generic] | Hashable,
        items: Iterable[Any],
        costs: ArrayLike | None = None,
        block: bool = True,
        timeout: float | None = None,
    ) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None, *, priority: SupportsIndex = 0) -> tuple[Any, Any]: ...
    def get_many(self, n: SupportsIndex, timeout: float | None = None, *, priority: SupportsIndex = 0) -> Batch: ...
    def qsize(self) -> int: ...
    def shutdown(self, immediate: bool = False) -> None: ...
    def close(self) -> None: ...
    def set_quantum(self, slot: Hashable, quantum: SupportsIndex) -> None: ...
    def settle(self, slot: Hashable, cost_difference: SupportsIndex) -> None: ...
    def hold(self, slot: Hashable, held: bool) -> None: ...
    def stats(self) -> dict[Any, SlotStats]: ...
