"""The time to drain queues and tenants: backlog times handler time, divided by the workers."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Tenants without options of their own that are listed at most: those with the largest backlogs.
MOST_TENANTS = 100
#: Messages over which a handler time is averaged, about.
AVERAGED = 100


@dataclass(frozen=True, slots=True)
class QueueDrain:
    """Time to drain one queue, and its factors.

    Attributes
    ----------
    name : str
        The queue.
    seconds : float or None
        Time that its workers take for its backlog if they handle nothing else; None while its handler time is unknown.
    backlog : int
        Messages that are ready at the broker, buffered or in hand, over all processes.
    ready : int
        How many of them are ready at the broker; 0 for a stream.
    handler_seconds : float or None
        Mean time that a handler takes for one of its messages. None before the first.
    workers : int
        Messages of it that can be handled at a time, over all processes.
    """

    name: str
    seconds: float | None
    backlog: int
    ready: int
    handler_seconds: float | None
    workers: int


@dataclass(frozen=True, slots=True)
class TenantDrain:
    """Time to drain one tenant, and its factors.

    Attributes
    ----------
    name : hashable
        The tenant.
    seconds : float or None
        Time that the workers take for its backlog if they handle nothing else; None while the handler time is unknown.
    backlog : int
        Messages that are ready at the broker, as far as they can be told to be of this tenant, or buffered, over all
        processes.
    handler_seconds : float or None
        Mean time that a handler takes for one of its messages.
    """

    name: Hashable
    seconds: float | None
    backlog: int
    handler_seconds: float | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Time to drain all queues of a consumer, over all processes that consume them.

    Attributes
    ----------
    seconds : float or None
        Time that the workers take for the backlogs of all queues; None while a handler time is unknown.
    backlog : int
        Sum of the backlogs.
    age : float
        Seconds since the broker counted.
    queues : tuple of QueueDrain
        Each queue, except the lanes of single tenants, which are in the sums.
    tenants : tuple of TenantDrain
        With a ``key``: tenants with options of their own, and up to `MOST_TENANTS` others, by falling backlog.
    """

    seconds: float | None
    backlog: int
    age: float
    queues: tuple[QueueDrain, ...]
    tenants: tuple[TenantDrain, ...] = ()


class Standing(NamedTuple):
    """A queue as one process sees it.

    `ready` messages and `consumers` are the broker's counts, `unsettled` messages were delivered to this process.
    """

    ready: int
    consumers: int
    unsettled: int

    @property
    def backlog(self) -> int:
        """The ready messages, and what all processes have, if each has as many as this one."""
        return self.ready + self.consumers * self.unsettled


def drain_seconds(backlog: int, handler_seconds: float | None, workers: int) -> float | None:
    """Return the seconds that workers take for a backlog; None if it is not empty and the handler time is unknown.

    Parameters
    ----------
    backlog : int
        Messages.
    handler_seconds : float or None
        Mean time for one of them.
    workers : int
        Messages that are handled at a time, at least 1.
    """
    if not backlog:
        return 0.0
    return None if handler_seconds is None else backlog * handler_seconds / workers


def queue_drain(name: str, standing: Standing, handler_seconds: float | None, workers: int) -> QueueDrain:
    """Return the time to drain a queue, where each of its consumers has `workers`."""
    found = standing.consumers * workers
    seconds = drain_seconds(standing.backlog, handler_seconds, found)
    return QueueDrain(name, seconds, standing.backlog, standing.ready, handler_seconds, found)


def total_seconds(parts: Iterable[QueueDrain]) -> float | None:
    """Return the seconds for all of several queues, since workers that handle one do not handle another meanwhile."""
    total = 0.0
    for one in parts:
        if one.seconds is None:
            return None
        total += one.seconds
    return total


def tenant_backlogs(
    buffered: Mapping[Hashable, int], own_ready: Mapping[Hashable, int], shared_ready: int, consumers: int
) -> dict[Hashable, int]:
    """Divide what is ready at the broker among tenants.

    Parameters
    ----------
    buffered : mapping
        Messages of each tenant that are buffered in this process.
    own_ready : mapping
        Ready messages of each tenant that has lanes of its own.
    shared_ready : int
        Ready messages of all other queues: of the other tenants, in proportion to their buffered messages.
    consumers : int
        Processes that are taken to have as many messages buffered as this one.
    """
    shared = sum(count for tenant, count in buffered.items() if tenant not in own_ready)
    found = {}
    for tenant, count in buffered.items():
        ready = own_ready.get(tenant)
        if ready is None:
            ready = round(shared_ready * count / shared) if shared else 0
        found[tenant] = consumers * count + ready
    return found


def listed_tenants(backlogs: Mapping[Hashable, int], named: Collection[Hashable]) -> list[Hashable]:
    """Return the tenants to list, by falling backlog: all that are named, and `MOST_TENANTS` of the others."""
    ordered = sorted(backlogs, key=lambda tenant: -backlogs[tenant])
    others = [tenant for tenant in ordered if tenant not in named]
    left_out = set(others[MOST_TENANTS:])
    return [tenant for tenant in ordered if tenant not in left_out]


class HandlerTimes:
    """Mean handler time of each queue over about its last hundred messages, from sums that only grow.

    Notes
    -----
    For one thread at a time. O(1) a call; memory O(queues).
    """

    def __init__(self) -> None:
        #: By queue: number of messages, their seconds, and the mean.
        self._known: dict[str, tuple[int, float, float | None]] = {}

    def note(self, queue: str, count: int, seconds: float) -> float | None:
        """Return the mean of a queue, of which so many messages were handled in so many seconds since the start."""
        before, spent, mean = self._known.get(queue, (0, 0.0, None))
        if count < before:  # the queue was removed and added again, so it counts from nothing
            before, spent = 0, 0.0
        if count > before:
            new = (seconds - spent) / (count - before)
            mean = new if mean is None else mean + (new - mean) * min(1.0, (count - before) / min(AVERAGED, count))
        self._known[queue] = count, seconds, mean
        return mean

    def keep(self, queues: Collection[str]) -> None:
        """Forget all other queues."""
        if len(self._known) > len(queues):
            self._known = {queue: known for queue, known in self._known.items() if queue in queues}
