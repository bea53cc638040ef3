"""CoDel in a task: which of the messages just taken have waited too long, and where the law stands after them.

The law is asked when a message is taken, before its segment is published: a replay does not ask again. It works on the
times of messages, so that it sees the wait in the broker, which is where the messages of a batch wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairsched._codel import CoDel
from fairsched.consumer.shedding import MAX_RETURNS
from fairsched.spark.shedding import BACKLOG
from fairsched.spark.source.options import Shedding


class Judged(NamedTuple):
    """What was made of some rows: those that are shown, those that go back, and what is noted of them."""

    shown: Sequence[int]
    returned: Sequence[int]
    #: Rows that had waited too long, by queue.
    shed: Mapping[str, int]
    #: Where the law of each queue stands after them.
    laws: Mapping[str, Sequence[int]]


def judge(
    rules: Shedding | None, states: Mapping[str, Sequence[int]], columns: dict[str, list[Any]], emptied: Sequence[str]
) -> Judged:
    """judge(rules, states, columns, emptied)
    --

    Ask the law about rows in the order in which they were taken.

    Parameters
    ----------
    rules : Shedding or None
        None for no law: everything is shown.
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
    if rules is None:
        return Judged(rows, (), {}, {})
    law = Stale(rules, states)
    stale = law.among(columns)
    for queue in emptied:
        law.emptied(queue)
    returned: list[int] = np.flatnonzero(stale).tolist()
    shed = Counter(columns["queue"][row] for row in returned)
    if rules.action == "flag":
        columns["shed"] = stale.tolist()
        return Judged(rows, (), shed, law.states())
    return Judged(np.flatnonzero(~stale).tolist(), returned, shed, law.states())


class Stale:
    """Stale(rules, states)
    --

    One law for each queue, for a run of messages.

    Parameters
    ----------
    rules : Shedding
        Target, interval, and what becomes of messages that waited too long.
    states : mapping of str to sequence of int
        Where the laws stood after the batch before, by queue (`CoDel.state`).

    Notes
    -----
    For one thread. The law runs without the GIL, over a queue's messages at once.
    """

    def __init__(self, rules: Shedding, states: Mapping[str, Sequence[int]]) -> None:
        self._rules = rules
        self._laws: dict[str, CoDel] = {}
        for queue, state in states.items():
            self._law(queue).resume(state)

    def _law(self, queue: str) -> CoDel:
        if queue not in self._laws:
            self._laws[queue] = CoDel(self._rules.target, self._rules.interval, max_returns=MAX_RETURNS)
        return self._laws[queue]

    def among(self, columns: Mapping[str, list[Any]]) -> NDArray[np.bool_]:
        """Return which rows have waited too long, in the order in which they were taken.

        Needs the columns "queue", "received_at" and "sent_by" (microseconds; null where nobody knows, which counts as
        no wait). A message that came before is not sent back a second time, so it is not asked about.
        """
        found = np.zeros(len(columns["queue"]), np.bool_)
        rows: dict[str, list[int]] = {}
        for row, queue in enumerate(columns["queue"]):
            if self._rules.action != "requeue" or not columns["redelivered"][row]:
                rows.setdefault(queue, []).append(row)
        for queue, mine in rows.items():
            taken = [columns["received_at"][row] for row in mine]
            sent = [columns["sent_by"][row] for row in mine]
            since = [min(at, then) if at is not None else then for at, then in zip(sent, taken, strict=True)]
            moments = np.array([since, taken], np.int64) * 1000
            found[mine] = self._law(queue).should_return_many(moments[0], moments[1], BACKLOG)
        return found

    def emptied(self, queue: str) -> None:
        """Note that a queue had nothing more to give: whatever was observed is over."""
        self._law(queue).found_nothing()

    def states(self) -> dict[str, list[int]]:
        """Where the laws stand, as JSON takes it."""
        return {queue: list(law.state()) for queue, law in self._laws.items()}
