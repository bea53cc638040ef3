"""The result of `FairQueue.get_many`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, overload


class Batch(Sequence[tuple[Hashable, Any]]):
    """Items in order of service: a sequence of ``(slot, item)`` pairs, stored as two lists.

    Pairs are created on access; `slots` and `items` are the lists themselves.

    Parameters
    ----------
    slots, items : list
        The slot name and the item of each pair; of equal length.
    """

    __slots__ = ("items", "slots")

    def __init__(self, slots: list[Any], items: list[Any]) -> None:
        self.slots = slots
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[Hashable, Any]]:
        return zip(self.slots, self.items, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Hashable, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> tuple[Hashable, Any] | Batch:
        if isinstance(index, slice):
            return Batch(self.slots[index], self.items[index])
        return self.slots[index], self.items[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Batch):
            return self.slots == other.slots and self.items == other.items
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({list(self)!r})"
