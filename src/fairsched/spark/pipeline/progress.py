"""The rows that a pipeline has read so far, from the progress that Spark reports for each batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from fairsched.fairness import report
from fairsched.spark.queryprogress import offset_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["BatchAges", "PipelineProgress", "PipelineReport", "QueueRows"]


class QueueRows(TypedDict):
    """One queue of a `PipelineReport`; `share` and `error` are None while no batch could be judged."""

    name: str
    quantum: int
    #: Rows of all batches, and those of them by which the shares are judged.
    served: int
    judged: int
    share: float | None
    ideal: float
    error: float | None


class PipelineReport(TypedDict):
    """The report that `fairsched pipeline --json` prints; `jain` is None while no batch could be judged."""

    queues: list[QueueRows]
    jain: float | None
    total: int
    seconds: float
    batches: int
    judged_batches: int


def _by_name(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an observation as a mapping of names to values; Spark Connect (4.3) returns values and a schema."""
    schema = row.get("schema")
    if not isinstance(schema, dict):  # that would be a queue's count
        return row
    return dict(zip((field["name"] for field in schema["fields"]), row["values"], strict=True))


@dataclass(frozen=True)
class BatchAges:
    """Ages of a batch's messages at delivery, in seconds; None if no message had a timestamp."""

    batch: int
    rows: int
    p50: float | None
    p99: float | None
    max: float | None


class PipelineProgress:
    """Sums of the counts by queue, and the ages of each batch.

    A queue without a backlog gets less than its share, and leaves the rest to others. So only batches that left a
    backlog in every queue count towards the shares.

    Parameters
    ----------
    quanta : mapping of str to int
        The queues and their weights.

    Notes
    -----
    For one thread. A batch is counted once, even if its progress is added several times. Spark keeps the progress of
    the last batches only (``spark.sql.streaming.numRecentProgressUpdates``); `missed` counts batches whose progress was
    dropped between two calls of `add`.
    """

    def __init__(self, quanta: Mapping[str, int]) -> None:
        self._quanta = dict(quanta)
        self._served = dict.fromkeys(quanta, 0)
        self._judged = dict.fromkeys(quanta, 0)
        self._judged_batches = 0
        self._seen = -1
        self._latest: int | None = None
        #: Batches whose progress was gone before it was seen.
        self.missed = 0
        self.ages: list[BatchAges] = []

    def add(self, progresses: Iterable[StreamingQueryProgress], shares: str, ages: str) -> bool:
        """Count the batches not seen before; True if there were any.

        Parameters
        ----------
        progresses : iterable of StreamingQueryProgress
            Oldest first, such as ``query.recentProgress``.
        shares, ages : str
            Names of the observations.
        """
        news = False
        for progress in progresses:
            batch = progress.batchId
            if self._latest is not None:
                self.missed += max(0, batch - self._latest - 1)
            self._latest = max(batch, self._latest or 0)
            if batch <= self._seen or not progress.numInputRows:
                continue
            found = json.loads(progress.json)
            metrics = {name: _by_name(row) for name, row in found.get("observedMetrics", {}).items()}
            if shares not in metrics:
                continue
            self._seen, news = batch, True
            self._count(metrics[shares], self._backlogged(found["sources"]))
            age = metrics.get(ages, {})  # which may be without what is null
            self.ages.append(BatchAges(batch, progress.numInputRows, *map(age.get, ("p50", "p99", "max"))))
        return news

    def _backlogged(self, sources: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether a batch left messages in every queue; False for a batch planned by an earlier run."""
        behind = [offset_of(source.get("latestOffset")).get("behind", {}) for source in sources]
        return any(all(one.get(queue, 0) > 0 for queue in self._quanta) for one in behind)

    def _count(self, rows: Mapping[str, int], judged: bool) -> None:
        self._judged_batches += judged
        for queue in self._quanta:
            self._served[queue] += rows[queue]
            if judged:
                self._judged[queue] += rows[queue]

    def report(self, seconds: float) -> PipelineReport:
        """Return the report of all batches so far, read in `seconds`."""
        found = report(self._judged, self._quanta, seconds)
        verdict = self._judged_batches > 0
        return {
            "queues": [
                {
                    "name": row["name"],
                    "quantum": row["quantum"],
                    "served": self._served[row["name"]],
                    "judged": row["served"],
                    "share": row["share"] if verdict else None,
                    "ideal": row["ideal"],
                    "error": row["error"] if verdict else None,
                }
                for row in found["queues"]
            ],
            "jain": found["jain"] if verdict else None,
            "total": sum(self._served.values()),
            "seconds": seconds,
            "batches": len(self.ages),
            "judged_batches": self._judged_batches,
        }
