"""Metrics of streaming queries for Prometheus; needs prometheus_client, the extra ``metrics``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from fairsched.spark.queryprogress import progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from fairsched.spark.queryprogress import SourceProgress

__all__ = ["OTHER", "QueryCollector"]

#: Maximum number of queries with samples, and of queues of a query with their own samples.
MOST_QUERIES, MOST_QUEUES = 100, 200

#: The common label of all further queues.
OTHER = "other"

_PREFIX = "fairsched_spark_"
_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

#: Metrics of a query: name, class and help text.
_OF_QUERIES: dict[str, tuple[Any, str]] = {
    "query_running": (_GAUGE, "Whether the query is running."),
    "query_failures": (_COUNTER, "Runs of the query that ended with an exception."),
    "batches": (_COUNTER, "Batches with rows."),
    "input_rows": (_COUNTER, "Rows read by the batches; a row read by several actions counts each time."),
    "batch_seconds": (_GAUGE, "Duration of the last batch."),
}

#: Metrics of a queue or stream of a query.
_OF_QUEUES: dict[str, tuple[Any, str]] = {
    "planned_messages": (_COUNTER, "Messages in the batches."),
    "depth_messages": (_GAUGE, "Messages ready when the last batch was planned."),
    "batch_messages": (_GAUGE, "How many of them the last batch contains."),
    "lag_messages": (_GAUGE, "How many of them are not in the last batch."),
    "message_age_seconds": (_GAUGE, "How long the last message read had waited, if messages have a timestamp."),
}


@dataclass
class _Query:
    """The samples of a query: values by metric, those of queues also by queue."""

    figures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_OF_QUERIES, 0))
    taken: dict[str, int] = field(default_factory=dict)
    last: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class QueryCollector(StreamingQueryListener, Collector):
    """Prometheus collector of the streaming queries of a session that read from RabbitMQ.

    As a Spark listener it adds up what batches report; as a prometheus_client collector it exports the sums.

    Notes
    -----
    It sends no requests to Spark or the broker. A query appears with its first batch; while it is idle, the values are
    those of its last batch. The label ``query`` is the query's name, or its id if it has none. The first hundred
    queries have samples, and the first 200 queues of each; further queues count together as "other", and a further
    query replaces the one that ended first, if any has ended. O(queues) per batch and per scrape. Safe from any thread;
    works over Spark Connect, too.

    Examples
    --------
    >>> queries = QueryCollector()
    >>> spark.streams.addListener(queries)  # doctest: +SKIP
    >>> REGISTRY.register(queries)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queries: dict[str, _Query] = {}
        #: The labels of queries by their ids.
        self._labels: dict[str, str] = {}

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples, by which a registry rejects a second collector of them."""
        return _families().values()

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        families = _families()
        with self._guard:
            for label, query in self._queries.items():
                for name, value in query.figures.items():
                    families[name].add_metric((label,), value)
                for name, by_queue in {**query.last, "planned_messages": query.taken}.items():
                    for queue, figure in by_queue.items():
                        families[name].add_metric((label, queue), figure)
        return iter(families.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # Spark's name
        """Do nothing: only the progress of a query says whether it reads from RabbitMQ."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add the progress of a batch."""
        batch = event.progress
        found = progress(batch)
        if found is None:
            return
        with self._guard:
            query = self._shown(str(batch.id), batch.name or str(batch.id))
            if query is not None:
                _add(query, found, batch.numInputRows, batch.batchDuration / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the values are those of the last batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Record that a query ended, and whether it failed."""
        with self._guard:
            label = self._labels.pop(str(event.id), None)
            if label is None:
                return
            query = self._queries.pop(label)
            query.figures["query_running"] = 0
            query.figures["query_failures"] += event.exception is not None
            self._queries[label] = query  # behind those that ended before it

    def _shown(self, identity: str, label: str) -> _Query | None:
        """Return the samples of a label, created if needed; None if there are too many queries."""
        if label not in self._queries:
            if len(self._queries) >= MOST_QUERIES:
                ended = (one for one, query in self._queries.items() if not query.figures["query_running"])
                oldest = next(ended, None)
                if oldest is None:
                    return None
                del self._queries[oldest]
            self._queries[label] = _Query()
        self._labels[identity] = label
        self._queries[label].figures["query_running"] = 1
        return self._queries[label]


def _add(query: _Query, found: SourceProgress, rows: int, seconds: float) -> None:
    """Add a progress, with or without a batch."""
    own = set(query.taken) - {OTHER}
    for queue in {**found.plan, **found.depths}:
        if len(own) < MOST_QUEUES and queue != OTHER:
            own.add(queue)
    if rows:
        query.figures["batches"] += 1
        query.figures["input_rows"] += rows
        query.figures["batch_seconds"] = seconds
    for queue, count in _labelled(found.plan, own, sum).items():
        query.taken[queue] = query.taken.get(queue, 0) + int(count)
    if not found.source:  # planned by an earlier run: the depths of the queues are unknown
        return
    query.last = {
        "depth_messages": _labelled(found.depths, own, sum),
        "batch_messages": _labelled(found.plan, own, sum),
        "lag_messages": _labelled(found.lag, own, sum),
        "message_age_seconds": _labelled(found.ages, own, max),
    }


def _labelled(figures: Mapping[str, float], own: set[str], together: Any) -> dict[str, float]:
    """Return values by label; those of queues without their own label are combined."""
    shown = {queue: value for queue, value in figures.items() if queue in own}
    rest = [value for queue, value in figures.items() if queue not in own]
    return {**shown, OTHER: together(rest)} if rest else shown


def _families() -> dict[str, Any]:
    found = {name: make(_PREFIX + name, help, labels=("query",)) for name, (make, help) in _OF_QUERIES.items()}
    return found | {
        name: make(_PREFIX + name, help, labels=("query", "queue")) for name, (make, help) in _OF_QUEUES.items()
    }
