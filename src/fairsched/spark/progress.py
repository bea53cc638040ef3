"""What a pipeline has read so far, out of the progress that Spark reports batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairsched.fairness import Report, report

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["BatchAges", "PipelineProgress"]


@dataclass(frozen=True)
class BatchAges:
    """How old the messages of a batch were when they were delivered, in seconds; None where none had a timestamp."""

    batch: int
    rows: int
    p50: float | None
    p99: float | None
    max: float | None


class PipelineProgress:
    """PipelineProgress(quanta)
    --

    Counts by queue and ages by batch, added up.

    Parameters
    ----------
    quanta : mapping of str to int
        The queues and their weights.

    Notes
    -----
    For one thread. A batch is counted once, however often its progress is seen. Spark keeps the progress of the last
    batches only (``spark.sql.streaming.numRecentProgressUpdates``): those that came and went between two calls of `add`
    are in `missed`.
    """

    def __init__(self, quanta: Mapping[str, int]) -> None:
        self._quanta = dict(quanta)
        self._served = dict.fromkeys(quanta, 0)
        self._seen = -1
        self._latest: int | None = None
        #: Batches whose progress was gone before it was seen.
        self.missed = 0
        self._first: datetime | None = None
        self._last: datetime | None = None
        self.ages: list[BatchAges] = []

    def add(self, progresses: Iterable[StreamingQueryProgress], shares: str, ages: str) -> bool:
        """Count the batches not seen before; True if there were any.

        Parameters
        ----------
        progresses : iterable of StreamingQueryProgress
            Oldest first, such as ``query.recentProgress``.
        shares, ages : str
            Where the observations stand.
        """
        news = False
        for progress in progresses:
            metrics = progress.observedMetrics
            if self._latest is not None:
                self.missed += max(0, progress.batchId - self._latest - 1)
            self._latest = max(progress.batchId, self._latest or 0)
            if progress.batchId <= self._seen or not progress.numInputRows or shares not in metrics:
                continue
            self._seen, news = progress.batchId, True
            for queue in self._quanta:
                self._served[queue] += metrics[shares][queue]
            age: Any = metrics.get(ages, {"p50": None, "p99": None, "max": None})
            self.ages.append(BatchAges(progress.batchId, progress.numInputRows, age["p50"], age["p99"], age["max"]))
            moment = datetime.fromisoformat(progress.timestamp)
            self._first = self._first or moment
            self._last = moment
        return news

    @property
    def seconds(self) -> float:
        """Seconds from the beginning of the first batch to that of the last."""
        return 0.0 if self._first is None or self._last is None else (self._last - self._first).total_seconds()

    def report(self, seconds: float) -> Report:
        """Sum up the shares, as `fairsched demo` does."""
        return report(self._served, self._quanta, seconds)
