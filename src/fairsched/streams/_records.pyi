from collections.abc import Callable

from typing_extensions import disjoint_base

from fairsched.delivery._collected import CollectedDeliveries

@disjoint_base
class StreamRecords(CollectedDeliveries):
    def __init__(self, stream: str, old: bool = False) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    def add_chunk(
        self, frame: bytes | memoryview, at: int, start: int, unpack: dict[int, Callable[[bytes, int], bytes]]
    ) -> int: ...

def unpack_gzip(packed: bytes, size: int) -> bytes: ...
