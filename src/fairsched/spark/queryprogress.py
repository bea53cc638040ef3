"""The progress of a streaming query by queue: depth, plan, lag and age, without parsing JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairsched.config.frozenmapping import FrozenMapping

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SourceProgress", "offset_of", "progress"]


@dataclass(frozen=True, kw_only=True)
class SourceProgress:
    """The last progress of a query's RabbitMQ sources; each mapping is by the name of a queue or stream.

    Attributes
    ----------
    batch : int
        Number of the batch.
    source : str
        The queues or streams with their weights, and host and port of the broker; never a user or a password. Empty
        for a batch planned by an earlier run of the query: it is run again without a query of the queues, and only
        `plan` is known.
    depths : mapping of str to int
        Messages that were ready when the batch was planned.
    plan : mapping of str to int
        How many of them are in the batch; all 0 if Spark reports a progress without a batch.
    lag : mapping of str to int
        How many of them are not in the batch.
    ages : mapping of str to float
        Seconds that the last message read of each queue had waited; only for queues whose messages have a timestamp.

    Notes
    -----
    Immutable and picklable.
    """

    batch: int
    source: str
    depths: FrozenMapping[str, int]
    plan: FrozenMapping[str, int]
    lag: FrozenMapping[str, int]
    ages: FrozenMapping[str, float]


def progress(query: StreamingQuery | StreamingQueryProgress) -> SourceProgress | None:
    """Return what a query has read from its queues or streams, and how many messages wait there.

    Parameters
    ----------
    query : StreamingQuery or StreamingQueryProgress
        A query, whose last progress is used, or a progress: ``event.progress`` in a listener, or an item of
        ``query.recentProgress``.

    Returns
    -------
    SourceProgress or None
        None before the first batch, and for a query that does not read from RabbitMQ. If two sources of the query read
        the same queue, `plan` has the sum of both, and the other mappings the larger value.

    Raises
    ------
    TypeError
        If `query` is neither.

    Notes
    -----
    Sends no request to the broker. O(number of queues). Works over Spark Connect, too.
    """
    last: Any = query.lastProgress if hasattr(query, "lastProgress") else query
    if last is None:
        return None
    text = getattr(last, "json", None)
    if not isinstance(text, str):
        raise TypeError(f"progress() takes a streaming query or one progress of it, got {type(query).__name__}")
    found = json.loads(text)
    mine = [one for one in map(_figures, found["sources"]) if one is not None]
    if not mine:
        return None
    depths, plan, lag, ages = (_merged(figures) for figures in zip(*(one[1:] for one in mine), strict=True))
    total: dict[str, int] = dict.fromkeys(plan, 0)
    for one in mine:
        for name, count in one[2].items():
            total[name] += count
    return SourceProgress(
        batch=found["batchId"],
        source="; ".join(one[0] for one in mine if one[0]),
        depths=FrozenMapping(depths),
        plan=FrozenMapping(total),
        lag=FrozenMapping(lag),
        ages=FrozenMapping({name: age / 1000 for name, age in ages.items()}),
    )


def offset_of(found: Any) -> Mapping[str, Any]:
    """Return an offset of a progress as a mapping; Spark Connect (4.3) returns its text."""
    offset = json.loads(found) if isinstance(found, str) else found
    return offset if isinstance(offset, dict) else {}


_Figures = tuple[str, Mapping[str, int], Mapping[str, int], Mapping[str, int], Mapping[str, int]]


def _figures(source: Mapping[str, Any]) -> _Figures | None:
    """Return description, depths, plan, lag and ages (ms) of a source's progress; None for a source of another format.

    A progress without a batch has the offset of the previous batch as both start and end.
    """
    begin, end, seen = (offset_of(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    described = seen.get("source")
    if not seen and "v" in end and ("plan" in end or "from" in end):
        if "streams" in end:
            return "", {}, _of_streams(begin, end, {"streams": {}})[1], {}, {}
        return "", {}, dict.fromkeys(end["plan"], 0) if begin == end else end["plan"], {}, {}
    if not isinstance(described, str) or "v" not in end:
        return None
    if "streams" in end:
        return described, *_of_streams(begin, end, seen), {}
    depths = seen["depths"]
    if begin == end or "plan" not in end:
        return described, depths, dict.fromkeys(depths, 0), depths, seen["ages"]
    return described, depths, {**dict.fromkeys(depths, 0), **end["plan"]}, seen["behind"], seen["ages"]


def _of_streams(
    begin: Mapping[str, Any], end: Mapping[str, Any], seen: Mapping[str, Any]
) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]:
    """Return depths, plan and lag of streams: distances between offsets."""
    if end["streams"] == "initial":
        return {}, {}, {}
    starts = end["streams"] if begin == end else end["from"]
    plan = {name: last - starts.get(name, last) for name, last in end["streams"].items()}
    lag = {name: max(0, last - end["streams"].get(name, last)) for name, last in seen["streams"].items()}
    return {name: behind + plan.get(name, 0) for name, behind in lag.items()}, plan, lag


def _merged(figures: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in figures:
        for name, value in one.items():
            found[name] = max(value, found.get(name, value))
    return found
