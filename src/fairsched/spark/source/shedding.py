"""CoDel in a task: which of the messages just taken have waited too long, and where the law stands after them.

The law is asked when a message is taken, before its segment is published: a replay does not ask again. It works on the
times of messages, so that it sees the wait in the broker, which is where the messages of a batch wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched.spark.shedding import CodelByKey
from fairsched.spark.source.columns import Known
from fairsched.spark.source.options import Shedding

#: Messages of one queue that the law returns in a row at most, as in a consumer.
MAX_RETURNS = 10


class Judged(NamedTuple):
    """The division of some rows: those that are shown, those that go back, and notes about them."""

    shown: Sequence[int]
    returned: Sequence[int]
    #: Rows that had waited too long, by queue.
    shed: Mapping[str, int]
    #: State of the control law of each queue after them.
    laws: Mapping[str, Sequence[int]]


def judge(
    rules: Shedding, states: Mapping[str, Sequence[int]], columns: dict[str, list[Any]], emptied: Sequence[str]
) -> Judged:
    """Ask the law about rows in the order in which they were taken.

    Parameters
    ----------
    rules : Shedding
        The law, and what becomes of what has waited too long.
    states : mapping of str to sequence of int
        `Judged.laws` of the rows before.
    columns : dict
        The rows; gets a column "shed" if the action is to flag.
    emptied : sequence of str
        Queues that had nothing more to give.

    Returns
    -------
    Judged
    """
    rows = range(len(columns["queue"]))
    laws = CodelByKey(rules.target, rules.interval, MAX_RETURNS)
    laws.resume(states)
    overdue = _overdue(laws, rules, columns)
    for queue in emptied:
        laws.emptied(queue)
    returned: list[int] = np.flatnonzero(overdue).tolist()
    shed = Counter(columns["queue"][row] for row in returned)
    if rules.action == "flag":
        columns["shed"] = overdue.tolist()
        return Judged(rows, (), shed, laws.states())
    return Judged(np.flatnonzero(~overdue).tolist(), returned, shed, laws.states())


def judge_known(
    rules: Shedding | None, states: Mapping[str, Sequence[int]], known: Known, emptied: Sequence[str]
) -> tuple[Judged, Known]:
    """Ask as `judge` does about what a decoder knows of rows; return that with "shed", if the action is to flag."""
    if rules is None:
        return Judged(range(len(known["queue"])), (), {}, {}), known
    columns = {name: known[name].to_pylist() for name in ("queue", "received_at", "sent_by", "redelivered")}
    found = judge(rules, states, columns, emptied)
    return found, {**known, "shed": pa.array(columns["shed"], pa.bool_())} if "shed" in columns else known


def _overdue(laws: CodelByKey, rules: Shedding, columns: Mapping[str, list[Any]]) -> NDArray[np.bool_]:
    """Return which rows have waited too long, in the order in which they were taken.

    Needs the columns "queue", "received_at" and "sent_by" (microseconds; null where it is unknown, which counts as no
    wait). A message that came before is not sent back a second time, so it is not asked about.
    """
    found = np.zeros(len(columns["queue"]), np.bool_)
    again = columns["redelivered"] if rules.action == "requeue" else [False] * len(found)
    rows = [row for row, came_before in enumerate(again) if not came_before]
    taken = [columns["received_at"][row] for row in rows]
    sent = [columns["sent_by"][row] for row in rows]
    since = [min(at, then) if at is not None else then for at, then in zip(sent, taken, strict=True)]
    moments = np.array([since, taken], np.int64) * 1000
    queues = pa.array([columns["queue"][row] for row in rows], pa.string())
    found[rows] = laws.overdue(queues, moments[0], moments[1])
    return found
