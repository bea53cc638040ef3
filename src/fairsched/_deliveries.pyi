from collections.abc import Callable

def take_deliveries(
    buffer: bytes,
    start: int,
    channel: int,
    longest: int,
    room: int,
    space: int,
    found: list[tuple[bytes, bytes, bytes, int]],
    now: int,
) -> tuple[int, bool, int, int]: ...
def give_deliveries(
    buffer: bytes, start: int, longest: int, sinks: dict[int, Callable[[int, int, bytes, bytes, bytes], None]]
) -> tuple[int, bool, int]: ...
