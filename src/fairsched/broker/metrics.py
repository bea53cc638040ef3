"""Metrics of the embedded broker for Prometheus; needs prometheus_client, the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["BrokerCollector"]

#: Queues that have samples of their own, at most.
MOST_QUEUES = 1000

_PREFIX = "fairsched_broker_"

#: Of the broker: key in its status, and what it is.
_GAUGES = {
    "connections": "Open connections.",
    "channels": "Open channels.",
    "messages": "Messages, in all queues.",
    "message_bytes": "Bytes that messages take.",
    "memory_alarm": "Whether publishers are stopped because messages take too much memory.",
}

#: Of a queue: key in the status, name, class and what it is.
_OF_QUEUES: tuple[tuple[str, str, type[CounterMetricFamily | GaugeMetricFamily], str], ...] = (
    ("ready", "queue_messages_ready", GaugeMetricFamily, "Messages that are ready."),
    ("depth", "queue_messages", GaugeMetricFamily, "Messages, unacknowledged ones too."),
    ("bytes", "queue_message_bytes", GaugeMetricFamily, "Bytes of the messages."),
    ("consumers", "queue_consumers", GaugeMetricFamily, "Consumers."),
    ("published", "queue_messages_published", CounterMetricFamily, "Messages that were published to the queue."),
    ("delivered", "queue_messages_delivered", CounterMetricFamily, "Deliveries."),
    ("acknowledged", "queue_messages_acknowledged", CounterMetricFamily, "Messages that were acknowledged."),
)


class BrokerCollector(Collector):
    """What Prometheus is told of an embedded broker, read at each scrape.

    Parameters
    ----------
    status : callable
        `fairsched.Broker.status`.

    Notes
    -----
    Exclusive queues, whose names are new each time, count in the figures of the broker only; so do queues beyond the
    first thousand by name. O(queues + consumers), any thread.

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
        """Return the metrics of this moment."""
        status = self._status()
        lasting = (queue for queue in status["queues"] if not queue["exclusive"])
        queues = sorted(lasting, key=lambda queue: (queue["vhost"], queue["name"]))[:MOST_QUEUES]
        figures = {name: int(status[name]) for name in _GAUGES}
        counts = {"queues": len(status["queues"]), "consumers": len(status["consumers"])}
        return iter(_families({**figures, **counts, "data_failed": int(bool(status["data_error"]))}, queues))


def _families(figures: Mapping[str, int], queues: Iterable[Mapping[str, Any]]) -> list[Metric]:
    helps = {
        **_GAUGES,
        "queues": "Queues, exclusive ones too.",
        "consumers": "Consumers, of all queues.",
        "data_failed": "Whether nothing durable is taken any more, because the disk failed.",
    }
    found: list[Metric] = [GaugeMetricFamily(_PREFIX + name, help, figures.get(name)) for name, help in helps.items()]
    for key, name, make, help in _OF_QUEUES:
        family = make(_PREFIX + name, help, labels=("vhost", "queue"))
        for queue in queues:
            family.add_metric((queue["vhost"], queue["name"]), queue[key])
        found.append(family)
    return found
