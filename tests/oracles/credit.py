"""Credit in plain Python: the oracle for core/credit."""

from __future__ import annotations

from dataclasses import dataclass, field

REFUSED, DONE, SPENT, REGAINED = range(4)
HIGH_PREFETCH, CREDIT_BATCH, CREDIT_MAX = 100, 10, 2**61


@dataclass
class ReferenceCredit:
    """Credit in messages and bytes; what each operation returns is an edge."""

    message_limit: int = 0
    byte_limit: int = 0
    messages: int = field(init=False)
    bytes: int = field(init=False)
    owed: bool = False

    def __post_init__(self) -> None:
        self.messages, self.bytes = self.message_limit, self.byte_limit

    @property
    def left(self) -> tuple[int, int]:
        return self.messages, self.bytes

    def has(self) -> bool:
        return (not self.byte_limit or self.bytes > 0) and (not self.message_limit or self.messages > 0)

    def use(self, size: int) -> int:
        fits = self.bytes >= size or self.bytes == self.byte_limit
        in_range = size >= 0 and self.bytes - size >= -CREDIT_MAX
        if not in_range or (self.message_limit and self.messages <= 0) or (self.byte_limit and not fits):
            self.owed = True
            return REFUSED
        self.messages -= 1
        self.bytes -= size
        if self.has():
            return DONE
        self.owed = True
        return SPENT

    def restore(self, messages: int, size: int) -> int:
        if messages < 0 or size < 0:
            return REFUSED
        if self.messages + messages > self.message_limit or self.bytes + size > self.byte_limit:
            return REFUSED
        self.messages += messages
        self.bytes += size
        batched = not self.byte_limit and self.message_limit > HIGH_PREFETCH
        return self.announce() if not batched or self.messages > CREDIT_BATCH else DONE

    def set_limits(self, messages: int, size: int) -> int:
        had = self.has()
        self.messages += messages - self.message_limit
        self.bytes += size - self.byte_limit
        self.message_limit, self.byte_limit = messages, size
        if self.has():
            return self.announce()
        self.owed = True
        return SPENT if had else DONE

    def announce(self) -> int:
        if not self.owed or not self.has():
            return DONE
        self.owed = False
        return REGAINED
