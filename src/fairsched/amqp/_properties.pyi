from collections.abc import Callable
from typing import Any

PROPERTY_NAMES: tuple[str, ...]
MAX_DEPTH: int
SHORT_MAX: int
FIELD_TYPES: dict[int, tuple[str, int | None, bool]]

def read_properties(
    header: bytes, wanted: tuple[int, ...], table: Callable[[bytes, int], tuple[Any, int]], lossless: bool = False
) -> dict[str, Any]: ...
def encode_properties(values: dict[str, Any]) -> bytes: ...
