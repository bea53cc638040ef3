from collections import deque
from typing import Any, Self, final

@final
class Alternate:
    def __new__(cls, sink: Any) -> Self: ...
    @property
    def undelivered(self) -> deque[tuple[Any, str]]: ...
