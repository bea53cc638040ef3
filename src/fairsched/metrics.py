"""Metrics of a consumer for Prometheus; needs prometheus_client, the extra ``metrics``.

Nothing is counted here: a scrape reads the counters of the consumer. Only the histograms of durations begin with the
first scrape.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fairsched.aio import Consumer as AsyncConsumer
from fairsched.consumer.app import App
from fairsched.consumer.consumer import Consumer
from fairsched.delivery._counters import BUCKET_ENDS
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.consumer.client import Client
    from fairsched.stats import LimitStats, SlotStats

__all__ = ["OTHER", "ConsumerCollector", "collector"]

#: Label of all tenants, or queues, without a label of their own.
OTHER = "other"

#: Longest name of a tenant, in characters, that becomes a label.
LONGEST_NAME = 128

#: Queues with a label of their own in histograms, the first ones of the consumer; the others count together.
MOST_QUEUES = 20

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

#: Counters of the consumer: metric, help, labels, and per sample its label values and the key in `Consumer.stats`.
_COUNTERS: dict[str, tuple[str, tuple[str, ...], dict[tuple[str, ...], str]]] = {
    "fairsched_messages_received": ("Messages that the broker delivered.", (), {(): "received"}),
    "fairsched_messages_processed": (
        "Settled messages: acked, nacked (requeued, or returned by CoDel) or rejected.",
        ("status",),
        {("acked",): "acked", ("nacked",): "nacked", ("rejected",): "rejected"},
    ),
    "fairsched_handler_errors": ("Handler calls that raised; their messages are settled, too.", (), {(): "errors"}),
    "fairsched_handler_timeouts": ("Handler calls that exceeded their time limit.", (), {(): "timed_out"}),
    "fairsched_stale_settlements": (
        "Messages settled after their channel was closed; the broker redelivers them.",
        (),
        {(): "stale_settlements"},
    ),
    "fairsched_reconnects": ("Connections opened after a connection was lost.", (), {(): "reconnects"}),
    "fairsched_codel_nacks": ("Messages that CoDel returned.", (), {(): "shed"}),
    "fairsched_codel_kept": (
        "Messages that CoDel did not return because their queue has no other consumer, or their budget is spent.",
        ("reason",),
        {("alone",): "kept_alone", ("budget",): "kept_budget"},
    ),
    "fairsched_messages_retried": ("Failed messages that were published again for a retry.", (), {(): "retried"}),
    "fairsched_messages_dead_lettered": (
        "Messages whose last attempt failed.",
        (),
        {(): "dead_lettered"},
    ),
    "fairsched_retry_failures": (
        "Messages requeued because their copy for a retry, or as a dead letter, could not be published.",
        (),
        {(): "retry_failures"},
    ),
}

#: Gauges of the consumer.
_GAUGES = {
    "fairsched_connected": "Whether there is an open connection to a broker.",
    "fairsched_inflight_messages": "Messages handed out and not settled yet, including deferred ones.",
    "fairsched_tenants": "Tenants that have messages in this process, or a label of their own.",
    "fairsched_retrying_messages": "Failed messages whose copy the broker has not confirmed yet.",
    "fairsched_requeues_delayed": "Repeatedly failed messages that this process holds back before it requeues them.",
    "fairsched_limits_reached": "Queues or tenants whose messages wait only because of their limit.",
    "fairsched_share_group_connected": "Whether this consumer takes part in its share group.",
    "fairsched_share_group_peers": "Other share group consumers seen in the last 3.5 s; longer with very many tenants.",
    "fairsched_group_limits_connected": "Whether this consumer can get permits of limits with scope='group'.",
    "fairsched_group_limits_keeper": "Whether this consumer grants the permits of its group.",
    "fairsched_group_limits_permits": "Permits that this consumer has, of all limits with scope='group'.",
    "fairsched_lane_registry_connected": "Whether this consumer hears of new lanes of single tenants.",
    "fairsched_own_lanes": "Lanes of single tenants that this consumer consumes.",
}

#: Metrics of each queue of the broker.
_OF_QUEUES = {
    "fairsched_queue_consumed": "Whether the broker has confirmed the consumer of the queue.",
    "fairsched_prefetch_limit": "Prefetch window of each consumed queue: the maximum number of its unsettled messages.",
}

#: Metrics of each slot (queue or tenant): those whose sum is shown for slots without a label, and the rest.
_OF_SLOTS: dict[str, tuple[Callable[..., Metric], str, Callable[[SlotStats], int]]] = {
    "fairsched_served_messages": (_COUNTER, "Messages taken from the buffer in fair order.", lambda slot: slot.served),
    "fairsched_buffered_messages": (_GAUGE, "Messages buffered in this process.", lambda slot: slot.queued),
    "fairsched_served_cost": (_COUNTER, "Cost charged for the messages taken from the buffer.", lambda slot: slot.work),
    "fairsched_deficit": (_GAUGE, "Cost that may be served in this turn; below 0: a debt.", lambda slot: slot.deficit),
    "fairsched_quantum": (_GAUGE, "Cost granted in each turn.", lambda slot: slot.quantum),
}  # fmt: skip

#: Metrics of each slot with a limit; None if the limit does not bound the figure.
_OF_LIMITS: dict[str, tuple[str, Callable[[LimitStats], float | None]]] = {
    "fairsched_limit_concurrency": ("Messages in hand that the limit allows.", lambda limit: limit.concurrency),
    "fairsched_limit_in_use": ("Messages in hand that count towards the limit.", lambda limit: limit.in_hand),
    "fairsched_limit_rate": ("Messages per second that the limit allows.", lambda limit: limit.per_second),
    "fairsched_limit_withheld_messages": (
        "Buffered messages that wait only because of the limit.",
        lambda limit: limit.withheld,
    ),
}

#: Metrics of limits that are numbers of messages, and can be summed.
_OF_MESSAGES = ("_in_use", "_messages")

#: Metrics of each slot of a consumer with a share group.
_CHARGE = "fairsched_share_group_charge"

#: Histograms of each queue: help, the key in `Durations.snapshot`, and the number of first buckets in a second.
_DURATIONS: dict[str, tuple[str, str, float]] = {
    "fairsched_buffer_sojourn_seconds": ("How long messages were buffered in this process.", "sojourn", 1e4),
    "fairsched_process_duration_seconds": ("How long handlers ran.", "service", 1e4),
    "fairsched_message_age_seconds": (
        "Age of messages with a timestamp when they were handed out; timestamps are whole seconds.", "age", 1.0,
    ),
}  # fmt: skip


def collector(consumer: Consumer | AsyncConsumer | App, *, tenants: int = 20) -> ConsumerCollector:
    """Return the collector of a consumer, to be registered in a registry of prometheus_client.

    Parameters
    ----------
    consumer : Consumer, aio.Consumer or App
        Of an app, the consumer that runs at the time.
    tenants : int
        With a `key`: most tenants that get a label of their own, from 0 to 1000.

    Returns
    -------
    ConsumerCollector
        A collector.

    Raises
    ------
    ConfigurationError
        If `tenants` is not allowed.
    TypeError
        If `consumer` is none.

    Examples
    --------
    >>> from prometheus_client import REGISTRY
    >>> REGISTRY.register(collector(consumer))  # doctest: +SKIP
    """
    return ConsumerCollector(consumer, tenants=tenants)


class ConsumerCollector(Collector):
    """Prometheus collector of one consumer.

    Parameters
    ----------
    consumer, tenants
        As for `collector`, which makes it.

    Notes
    -----
    A scrape reads counters: O(number of slots). Safe from any thread, at any time: before the start, while it
    reconnects and after the close, too. It does not keep the consumer alive; of one that is gone there are no samples.
    The first scrape has the consumer count how long messages take from then on.

    Tenants get a label when a scrape finds them: those with a weight of their own first, then those with the most
    messages served or waiting. They keep it. Nothing of a tenant is forgotten any more once it has one, so its counters
    go on while it is idle. All that the others were served is counted under "other".
    """

    def __init__(self, consumer: Consumer | AsyncConsumer | App, *, tenants: int = 20) -> None:
        if isinstance(tenants, bool) or not isinstance(tenants, int) or not 0 <= tenants <= 1000:
            raise ConfigurationError(f"tenants must be a whole number from 0 to 1000, got {tenants!r}")
        if not isinstance(consumer, Consumer | AsyncConsumer | App):
            raise TypeError(f"consumer must be a Consumer, an aio.Consumer or an App, got {consumer!r}")
        self._consumer = weakref.ref(consumer)
        self._most = tenants
        self._memory: _Memory | None = None
        # One scrape at a time. Names of tenants may run Python code, which might even scrape.
        self._guard = threading.RLock()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples: a registry refuses a second collector of the same."""
        return _families("queue").values()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics with their current samples."""
        client = self._client()
        families = _families("queue" if client is None or client.settings.key is None else "tenant")
        if client is not None:
            with self._guard:
                self._add(client, families)
        return iter(families.values())

    def _client(self) -> Client | None:
        consumer = self._consumer()
        if isinstance(consumer, App):
            consumer = consumer._consumer
        return None if consumer is None else consumer._client

    def _add(self, client: Client, families: Mapping[str, Any]) -> None:
        if self._memory is None or self._memory.client() is not client:  # an app has another at each run
            self._memory = _Memory(client, self._most)
        memory = self._memory
        if client.settings.key is not None:
            memory.give_labels()
        stats = client.stats()
        slots = stats.pop("slots")
        _add_counters(stats, families)
        state = client.state()
        families["fairsched_connected"].add_metric((), state.connected)
        families["fairsched_inflight_messages"].add_metric((), state.in_hand)
        is_lasting = client.settings.is_lasting
        for queue, consumed in state.consuming.items():
            if is_lasting(queue):  # a label for each tenant that was ever hot would be too many
                families["fairsched_queue_consumed"].add_metric((text(queue),), consumed)
        for queue, window in client.windows().items():
            if is_lasting(queue):
                families["fairsched_prefetch_limit"].add_metric((text(queue),), window)
        families["fairsched_requeues_delayed"].add_metric((), client.held_back())
        if "retrying" in stats:
            families["fairsched_retrying_messages"].add_metric((), stats["retrying"])
        client.time_messages()
        _add_durations(client, families)
        if client.settings.key is None:
            memory.add_slots({text(queue): slot for queue, slot in slots.items()}, families)
        else:
            families["fairsched_tenants"].add_metric((), len(slots))
            memory.add_tenants(slots, stats, families)
        memory.add_limits(client, families)
        memory.add_share_group(client, families)
        _add_group_limits(client, families)
        if (registry := client.lane_registry) is not None:
            families["fairsched_lane_registry_connected"].add_metric((), registry.connected)
            families["fairsched_own_lanes"].add_metric((), sum(registry.counts().values()))


def _add_group_limits(client: Client, families: Mapping[str, Any]) -> None:
    """Add what this consumer has of limits of its group."""
    group = client.group_limits
    if group is not None:
        figures = group.figures()
        families["fairsched_group_limits_connected"].add_metric((), group.connected)
        families["fairsched_group_limits_keeper"].add_metric((), figures["keeper"])
        families["fairsched_group_limits_permits"].add_metric((), figures["permits"])


class _Memory:
    """Memory from one scrape of a consumer to the next: the tenants that have labels, and their counters."""

    def __init__(self, client: Client, most: int) -> None:
        self.client = weakref.ref(client)
        self._most = most
        self._tenants: dict[str, Hashable] = {}
        #: By metric and label: what counts must not go back, though figures are not of one moment, and a cost that was
        #: estimated too high is corrected.
        self._counted: dict[tuple[str, str], int] = {}

    def give_labels(self) -> None:
        """Give labels to active tenants while labels are left; read their figures afterwards."""
        client = self.client()
        if client is None or len(self._tenants) >= self._most:
            return
        slots = client.worker_queues.stats()
        named = client.settings.quanta
        known = set(self._tenants.values())
        fresh = [(tenant not in named, -slot.served - slot.queued, tenant) for tenant, slot in slots.items()]
        for _, _, tenant in sorted(fresh, key=lambda one: one[:2]):
            if len(self._tenants) >= self._most:
                break
            label = "" if tenant in known else text(tenant)
            if tenant not in known and label != OTHER and len(label) <= LONGEST_NAME and label not in self._tenants:
                client.keep(tenant)
                self._tenants[label] = tenant

    def add_tenants(
        self, slots: Mapping[Hashable, SlotStats], stats: Mapping[str, int], families: Mapping[str, Any]
    ) -> None:
        """Add the figures of tenants; tenants without a label count together."""
        labelled = {label: slots[tenant] for label, tenant in self._tenants.items() if tenant in slots}
        self.add_slots(labelled, families)
        buffered = stats["buffered"] - sum(slot.queued for slot in labelled.values())
        served = stats["received"] - stats["buffered"] - sum(slot.served for slot in labelled.values())
        families["fairsched_buffered_messages"].add_metric((OTHER,), max(0, buffered))
        name = "fairsched_served_messages"
        families[name].add_metric((OTHER,), self._forwards(name, OTHER, served))

    def add_slots(self, slots: Mapping[str, SlotStats], families: Mapping[str, Any]) -> None:
        """Add the figures of slots by label."""
        for name, (make, _, figure) in _OF_SLOTS.items():
            for label, slot in slots.items():
                value = figure(slot)
                families[name].add_metric((label,), self._forwards(name, label, value) if make is _COUNTER else value)

    def _label_of(self, client: Client, names: Iterable[Hashable]) -> dict[Hashable, str]:
        """Return the labels of slots, by name, that have one."""
        if client.settings.key is None:
            return {name: text(name) for name in names}
        return {tenant: label for label, tenant in self._tenants.items()}

    def add_limits(self, client: Client, families: Mapping[str, Any]) -> None:
        """Add the figures of limits; messages of tenants without a label count together."""
        limits = client.worker_queues.limits()
        if not limits:
            return
        families["fairsched_limits_reached"].add_metric((), sum(one.withheld > 0 for one in limits.values()))
        labels = self._label_of(client, limits)
        for name, (_, figure) in _OF_LIMITS.items():
            rest = 0.0
            for slot, limit in limits.items():
                value, label = figure(limit), labels.get(slot)
                if label is None:
                    rest += value or 0
                elif value is not None:
                    families[name].add_metric((label,), value)
            if client.settings.key is not None and name.endswith(_OF_MESSAGES):
                families[name].add_metric((OTHER,), rest)

    def add_share_group(self, client: Client, families: Mapping[str, Any]) -> None:
        """Add the state of the share group, and its charges."""
        group = client.share_group
        if group is None:
            return
        families["fairsched_share_group_connected"].add_metric((), group.connected)
        families["fairsched_share_group_peers"].add_metric((), group.peers)
        charges = group.charges()
        labels = self._label_of(client, charges)
        for slot, charge in charges.items():
            if slot in labels:
                families[_CHARGE].add_metric((labels[slot],), charge)

    def _forwards(self, name: str, label: str, value: int) -> int:
        value = self._counted[name, label] = max(value, self._counted.get((name, label), 0))
        return value


def text(name: object) -> str:
    """Return a name as a label that can be encoded; `OTHER` if there is none."""
    try:
        found = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
        return found.encode("utf-8", "backslashreplace").decode()
    except Exception:
        return OTHER


def _families(kind: str) -> dict[str, Any]:
    """Return all metrics without samples; `kind` is the kind of slots, queue or tenant."""
    found: dict[str, Any] = {name: _COUNTER(name, help, labels=labels) for name, (help, labels, _) in _COUNTERS.items()}
    found |= {name: _GAUGE(name, help, labels=()) for name, help in _GAUGES.items()}
    found |= {name: _GAUGE(name, help, labels=("queue",)) for name, help in _OF_QUEUES.items()}
    found |= {name: HistogramMetricFamily(name, help, labels=("queue",)) for name, (help, _, _) in _DURATIONS.items()}
    found |= {name: make(name, help, labels=(kind,)) for name, (make, help, _) in _OF_SLOTS.items()}
    found |= {name: _GAUGE(name, help, labels=(kind,)) for name, (help, _) in _OF_LIMITS.items()}
    return found | {_CHARGE: _GAUGE(_CHARGE, "Cost per second charged for service by other consumers.", labels=(kind,))}


def _add_counters(stats: Mapping[str, Any], families: Mapping[str, Any]) -> None:
    for name, (_, _, samples) in _COUNTERS.items():
        for values, key in samples.items():
            if key in stats:
                families[name].add_metric(values, stats[key])


def _add_durations(client: Client, families: Mapping[str, Any]) -> None:
    """Add the durations of messages, by queue; for the last queues together."""
    found: dict[str, list[dict[str, tuple[list[int], float]]]] = {}
    for queue in client.settings.windows:
        label = text(queue)
        alone = len(found.keys() - {OTHER}) < MOST_QUEUES and label not in found
        found.setdefault(label if alone else OTHER, []).append(client.counters.durations(queue).snapshot())
    for name, (_, key, first) in _DURATIONS.items():
        ends = [*(str(end / first) for end in BUCKET_ENDS), "+Inf"]
        for label, several in found.items():
            counts = [sum(numbers) for numbers in zip(*(one[key][0] for one in several), strict=True)]
            buckets = list(zip(ends, itertools.accumulate(counts), strict=True))
            families[name].add_metric((label,), buckets, sum(one[key][1] for one in several))
