from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Protocol, SupportsIndex, final

from fairsched._subscription import Subscription

class _Sink(Protocol):
    def put(self, item: Any, /) -> Any: ...

@final
class PullQueue:
    def __init__(
        self,
        kind: Literal["standard", "priority", "sorted", "last-value", "fair"] = "standard",
        *,
        levels: SupportsIndex = 10,
        key: Callable[[Any], Any] | None = None,
        quanta: Mapping[Any, SupportsIndex] | None = None,
        max_depth: SupportsIndex = 0,
        max_bytes: SupportsIndex = 0,
        overflow: Literal["none", "ring", "reject", "flow"] = "none",
        ttl: float | None = None,
        groups: Literal["standard", "shared"] | None = None,
        live_consumers: SupportsIndex = 0,
        max_deliveries: SupportsIndex = 0,
        alternate: _Sink | Callable[[Any, str], Any] | None = None,
        nondestructive: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None: ...
    def put(
        self,
        item: Any,
        *,
        priority: SupportsIndex = 4,
        key: Any = None,
        slot: Hashable = None,
        size: SupportsIndex = 0,
        ttl: float | None = None,
        not_before: float | None = None,
        block: bool = True,
        timeout: float | None = None,
    ) -> None: ...
    def subscribe(
        self,
        name: str | None = None,
        *,
        priority: SupportsIndex = 0,
        acquires: bool = True,
        sees_requeues: bool = False,
        exclusive: bool = False,
        filter: Callable[[Any], Any] | None = None,
        credit: SupportsIndex | None = None,
        on_work: Callable[[Subscription], Any] | None = None,
        interested: bool = True,
    ) -> Subscription: ...
    @property
    def depth(self) -> int: ...
    @property
    def available(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def lists(self) -> dict[str, list[str]]: ...
    @property
    def undelivered(self) -> deque[tuple[Any, str]]: ...
    def expire(self) -> int: ...
    def close(self) -> list[tuple[Any, str]]: ...
