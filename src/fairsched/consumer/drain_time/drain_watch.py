"""Collects the factors of the time to drain: the broker's counts, messages here, and measured handler times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fairsched.consumer.drain_time.drain import (
    Drain,
    HandlerTimes,
    QueueDrain,
    Standing,
    TenantDrain,
    drain_seconds,
    listed_tenants,
    queue_drain,
    tenant_backlogs,
    total_seconds,
)
from fairsched.consumer.drain_time.queue_counts import Count, QueueCounts

if TYPE_CHECKING:
    from fairsched.consumer.channels import Unsettled
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.worker_queues import WorkerQueues
    from fairsched.delivery._counters import Counters

#: Seconds to wait for the broker's answer; KEDA waits 3 s for ours.
_PATIENCE = 2.0


class DrainingConsumer(Protocol):
    """The consumer, as far as its time to drain depends on it; everything is safe from any thread."""

    settings: ConsumerSettings
    worker_queues: WorkerQueues
    counters: Counters

    @property
    def deferring(self) -> bool:
        """Whether a handler has deferred its message, so that handler times say nothing."""

    def occupied(self) -> Mapping[str, Unsettled]:
        """Return the filling of every consumed queue's window."""

    def handler_seconds(self) -> float | None:
        """Return the mean seconds that handlers took lately; None if that is unknown."""


class DrainWatch:
    """Calculates how long the queues of a consumer take to drain.

    Parameters
    ----------
    urls : sequence of str
        The brokers.
    over : callable
        Says whether the consumer has ended.

    Notes
    -----
    `look` is safe from any thread; the handler times are under a lock. It keeps no reference to the consumer.
    """

    def __init__(self, urls: Sequence[str], over: Callable[[], bool]) -> None:
        self._counts = QueueCounts(urls)
        self._times = HandlerTimes()
        self._guard = threading.RLock()  # the collector may run code that asks once more
        self._counts.start(over)

    def end(self, timeout: float) -> None:
        """End the connection, waiting for at most so many seconds."""
        self._counts.end(timeout)

    def look(self, client: DrainingConsumer) -> Drain:
        """Return the time to drain.

        Raises
        ------
        ConnectionFailed
            If the broker has not counted within the last minute, and does not within two seconds.

        Notes
        -----
        O(queues and tenants), and as for `QueueCounts.get`.
        """
        settings = client.settings
        counts, age = self._counts.get(settings.queues, _PATIENCE) if settings.queues else ({}, 0.0)
        standings = _standings(settings, counts, client)
        seconds = self._handler_times(client, settings)
        workers = settings.workers
        found = [queue_drain(name, one, seconds[name], workers) for name, one in standings.items()]
        return Drain(
            total_seconds(found),
            sum(one.backlog for one in found),
            age,
            tuple(one for one in found if settings.is_lasting(one.name)),
            () if settings.key is None else _tenants(client, settings, found, standings),
        )

    def _handler_times(self, client: DrainingConsumer, settings: ConsumerSettings) -> dict[str, float | None]:
        """Return the handler time of each queue; that of all queues for those of which no message was timed."""
        common = client.handler_seconds()
        found = {}
        with self._guard:
            for queue in settings.queues:
                counts, seconds = client.counters.durations(queue).snapshot()["service"]
                own = self._times.note(queue, sum(counts), seconds)
                found[queue] = common if own is None or client.deferring else own
            self._times.keep(settings.queues)
        return found


def _standings(
    settings: ConsumerSettings, counts: Mapping[str, Count], client: DrainingConsumer
) -> dict[str, Standing]:
    """Return every queue as this process sees it."""
    here = client.occupied()
    found = {}
    for name, queue in settings.queues.items():
        count = counts.get(name, Count(0, 1))
        # Of a queue with a single active consumer, the others only wait. A queue that is paused has no consumer, and
        # counts as if this process consumed it.
        consumers = 1 if queue.has_single_active_consumer else max(1, count.consumers)
        # A stream keeps what was consumed: its count says nothing about what is left.
        ready = 0 if queue.is_stream else count.ready
        found[name] = Standing(ready, consumers, here[name].messages if name in here else 0)
    return found


def _tenants(
    client: DrainingConsumer,
    settings: ConsumerSettings,
    queues: Sequence[QueueDrain],
    standings: Mapping[str, Standing],
) -> tuple[TenantDrain, ...]:
    """Return the time to drain each tenant that is listed."""
    buffered: dict[Hashable, int] = dict.fromkeys(settings.tenants, 0)
    buffered |= {tenant: slot.queued for tenant, slot in client.worker_queues.stats().items()}
    by_name = {one.name: one for one in queues}
    own = _own_lanes(settings, buffered)
    own_ready = {tenant: sum(by_name[lane].ready for lane in lanes) for tenant, lanes in own.items()}
    shared_ready = sum(one.ready for one in queues if settings.is_lasting(one.name))
    consumers = max((one.consumers for one in standings.values()), default=1)
    backlogs = tenant_backlogs(buffered, own_ready, shared_ready, consumers)
    common = client.handler_seconds()
    found = []
    for tenant in listed_tenants(backlogs, settings.tenants):
        measured = settings.cost.handler_seconds(tenant)
        if measured is None:
            measured = by_name[own[tenant][0]].handler_seconds if tenant in own else common
        seconds = drain_seconds(backlogs[tenant], measured, consumers * settings.workers)
        found.append(TenantDrain(tenant, seconds, backlogs[tenant], measured))
    return tuple(found)


def _own_lanes(settings: ConsumerSettings, tenants: Mapping[Hashable, int]) -> dict[Hashable, list[str]]:
    """Return the lanes of their own that tenants have and that are consumed. O(tenants and lanes)."""
    several = [lanes for lanes in settings.lanes if not lanes.ordered]
    found: dict[Hashable, list[str]] = {}
    for tenant in tenants if several else ():
        names = [name for lanes in several if (name := lanes.own_lane_of(tenant)) in settings.queues]
        if names:
            found[tenant] = names
    return found
