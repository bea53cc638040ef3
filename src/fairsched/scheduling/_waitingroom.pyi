from collections.abc import Callable
from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class WaitingRoom:
    def __new__(cls, clock: Callable[[], float] | None, whole: bool = False) -> Self: ...
