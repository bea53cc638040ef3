"""Metrics of the embedded broker for Prometheus; needs prometheus_client, the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["BrokerCollector"]

#: Maximum number of queues with their own samples.
MOST_QUEUES = 1000

_PREFIX = "fairsched_broker_"

#: Metrics of the broker: key in its status, and help text.
_GAUGES = {
    "connections": "Number of open connections.",
    "channels": "Number of open channels.",
    "messages": "Messages in all queues.",
    "message_bytes": "Memory used by messages, in bytes.",
    "memory_alarm": "Whether publishers are blocked because messages use too much memory.",
}

#: Metrics of a queue: key in the status, name, class and help text.
_OF_QUEUES: tuple[tuple[str, str, type[CounterMetricFamily | GaugeMetricFamily], str], ...] = (
    ("ready", "queue_messages_ready", GaugeMetricFamily, "Messages ready for delivery."),
    ("depth", "queue_messages", GaugeMetricFamily, "Messages, ready and unacknowledged."),
    ("bytes", "queue_message_bytes", GaugeMetricFamily, "Size of these messages, in bytes."),
    ("consumers", "queue_consumers", GaugeMetricFamily, "Number of consumers of the queue."),
    ("published", "queue_messages_published", CounterMetricFamily, "Messages published to the queue."),
    ("delivered", "queue_messages_delivered", CounterMetricFamily, "Messages delivered, redeliveries included."),
    ("acknowledged", "queue_messages_acknowledged", CounterMetricFamily, "Messages acknowledged."),
)


class BrokerCollector(Collector):
    """Prometheus collector of an embedded broker, which is read at each scrape.

    Parameters
    ----------
    status : callable
        `fairsched.Broker.status`.

    Notes
    -----
    Exclusive queues, whose names change each time, and queues beyond the first thousand by name count only in the
    broker's totals. O(queues + consumers). Safe from any thread.

    Examples
    --------
    >>> registry.register(BrokerCollector(broker.status))  # doctest: +SKIP
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families({}, [])

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        status = self._status()
        lasting = (queue for queue in status["queues"] if not queue["exclusive"])
        queues = sorted(lasting, key=lambda queue: (queue["vhost"], queue["name"]))[:MOST_QUEUES]
        figures = {name: int(status[name]) for name in _GAUGES}
        counts = {"queues": len(status["queues"]), "consumers": len(status["consumers"])}
        return iter(_families({**figures, **counts, "data_failed": int(bool(status["data_error"]))}, queues))


def _families(figures: Mapping[str, int], queues: Iterable[Mapping[str, Any]]) -> list[Metric]:
    helps = {
        **_GAUGES,
        "queues": "Number of queues, including exclusive ones.",
        "consumers": "Number of consumers of all queues.",
        "data_failed": "Whether durable declarations and messages are rejected because the disk failed.",
    }
    found: list[Metric] = [GaugeMetricFamily(_PREFIX + name, help, figures.get(name)) for name, help in helps.items()]
    for key, name, make, help in _OF_QUEUES:
        family = make(_PREFIX + name, help, labels=("vhost", "queue"))
        for queue in queues:
            family.add_metric((queue["vhost"], queue["name"]), queue[key])
        found.append(family)
    return found
