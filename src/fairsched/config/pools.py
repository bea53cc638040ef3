"""Pools of workers, and the values of the `workers` option."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairsched.errors import ConfigurationError

__all__ = ["Pool", "Workers", "as_pools"]

#: Priorities of consumers, in errors.
PRIORITIES = "a whole number from -2**31 to 2**31 - 1"
#: Of a pool: each is a thread or a coroutine, and a mistyped number shall not fill the memory.
_MOST_WORKERS = 10_000


@dataclass(frozen=True, slots=True)
class Pool:
    """A number of workers with the same priority.

    Parameters
    ----------
    size : int
        Number of workers, from 1 to 10 000.
    priority : int
        From -2**31 to 2**31 - 1. A message goes to an idle worker of the highest priority; workers of lower priority
        get messages only while all those of higher priority are busy.

    Raises
    ------
    ConfigurationError
        If the size is not a whole number from 1 to 10 000, or the priority is not a 32-bit integer.

    Notes
    -----
    Immutable, hashable and picklable. Safe from any thread.

    Examples
    --------
    >>> [Pool(4, priority=10), Pool(2)]
    [Pool(size=4, priority=10), Pool(size=2, priority=0)]
    """

    size: int
    priority: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 1 <= self.size <= _MOST_WORKERS:
            raise ConfigurationError(
                f"size of a pool must be a whole number from 1 to {_MOST_WORKERS}, got {self.size!r}"
            )
        if not is_priority(self.priority):
            raise ConfigurationError(f"priority of a pool must be {PRIORITIES}, got {self.priority!r}")


def is_priority(value: object) -> bool:
    """Return whether a value is one of `PRIORITIES`."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31


#: Accepted for `workers`: their number, a pool, or several pools.
Workers = int | Pool | Iterable[Pool]


def as_pools(workers: object) -> tuple[Pool, ...]:
    """Convert the `workers` option to pools, by descending priority.

    Parameters
    ----------
    workers : int, Pool or iterable of Pool
        A number is a pool of priority 0.

    Returns
    -------
    tuple of Pool
        At least one. Equal priorities keep their order.

    Raises
    ------
    ConfigurationError
        If it is something else, or has no pool.

    Notes
    -----
    O(pools log pools). Safe from any thread.
    """
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1:
        return (Pool(workers),)
    if isinstance(workers, Pool):
        return (workers,)
    if isinstance(workers, Iterable) and not isinstance(workers, str | bytes):
        workers = list(workers)  # an iterator's items are needed below, and in the message
        if workers and all(isinstance(pool, Pool) for pool in workers):
            return tuple(sorted(workers, key=lambda pool: -pool.priority))
    raise ConfigurationError(
        f"workers must be a whole number of at least 1, a Pool, or a list of one Pool or more, got {workers!r}"
    )
