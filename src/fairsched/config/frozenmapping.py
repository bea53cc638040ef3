"""A mapping that cannot change: hashable, picklable, in insertion order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["FrozenMapping"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FrozenMapping(Mapping[K, V], Generic[K, V]):
    """An immutable mapping.

    `types.MappingProxyType` is neither picklable nor hashable, which frozen settings must be.

    Parameters
    ----------
    items : mapping or iterable of pairs
        The content; copied.

    Notes
    -----
    Look-up O(1), hash O(n). Equal to any mapping with the same items, whatever their order. Safe from any thread.

    Examples
    --------
    >>> FrozenMapping({"gold": 40})
    {'gold': 40}
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._items: dict[K, V] = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type[FrozenMapping[K, V]], tuple[dict[K, V]]]:
        return type(self), (dict(self._items),)
