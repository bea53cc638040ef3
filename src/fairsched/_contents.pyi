from collections.abc import Callable
from typing import Any

PROPERTY_NAMES: tuple[str, ...]

def read_methods(deliveries: list[tuple[bytes, bytes, bytes, int]]) -> tuple[list[bytes], list[bool], list[bytes]]: ...
def read_properties(
    header: bytes, wanted: tuple[int, ...], table: Callable[[bytes, int], tuple[Any, int]], lossless: bool = False
) -> dict[str, Any]: ...
