from collections.abc import Callable
from typing import ClassVar, Self, final

from fairsched.delivery._delivery import Message

@final
class ExportedBatch:
    @property
    def address(self) -> int: ...

@final
class MessageColumns:
    MOST: ClassVar[int]
    def __new__(
        cls,
        queues: list[str],
        numbers: tuple[int, ...],
        names: list[bytes],
        read: Callable[[Message, int], str | int | None],
        headers: Callable[[Message], list[str | None]],
        latest: int,
    ) -> Self: ...
    def make(self, messages: list[Message], most: int = ...) -> ExportedBatch: ...
