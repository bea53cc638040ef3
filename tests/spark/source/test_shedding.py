"""CoDel in the source: what it flags, sends back or dead-letters is what one law per queue says, over all batches."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.queries import Rows, drain, load
from support.spark.running import Driver, bodies, options_of, unique
from support.waiting import eventually

from fairsched import CoDel
from fairsched.consumer.requeueing.codel_returns import MAX_RETURNS
from fairsched.errors import ConfigurationError
from fairsched.spark.source import partition
from fairsched.spark.source.batch import BatchReader, browse
from fairsched.spark.source.options import Shedding, source_options
from fairsched.spark.source.shedding import judge

MS = 1000
RULES = Shedding(0.05, 0.1, "flag")


def by_law(sent: list[int], taken: list[int], rules: Shedding) -> list[bool]:
    """The answers of one law about all messages of a queue, in microseconds."""
    law = CoDel(rules.target, rules.interval, max_returns=MAX_RETURNS)
    moments = np.array([sent, taken], np.int64).reshape(2, -1) * 1000
    return law.should_return_many(moments[0], moments[1], 2**31).tolist()


def columns_of(sojourns: list[int], queue: str = "q", **more: list[Any]) -> dict[str, list[Any]]:
    """Rows that were taken 10 ms after one another and had waited so many milliseconds; None if that is not known."""
    taken = [10**15 + 10 * MS * row for row in range(len(sojourns))]
    sent = [None if waited is None else at - waited * MS for at, waited in zip(taken, sojourns, strict=True)]
    size = len(sojourns)
    return {"queue": [queue] * size, "received_at": taken, "sent_by": sent, "redelivered": [False] * size, **more}


def pieces(columns: dict[str, list[Any]], cuts: list[int]) -> list[dict[str, list[Any]]]:
    bounds = [0, *sorted(cut % (len(columns["queue"]) + 1) for cut in cuts), len(columns["queue"])]
    return [{name: values[a:b] for name, values in columns.items()} for a, b in itertools.pairwise(bounds)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300)), max_size=80),
    st.lists(st.integers(0, 80)),
    st.data(),
)
def test_segments_and_batches_do_not_interrupt_the_law(messages, cuts, data):
    columns = columns_of([waited for _, waited in messages])
    columns["queue"] = [queue for queue, _ in messages]
    laws: dict[str, Any] = {}
    found: list[bool] = []
    for piece in pieces(columns, cuts):
        judged = judge(RULES, json.loads(json.dumps(laws)), piece, ())
        laws = {**laws, **judged.laws}
        found += piece["shed"]
        assert sum(judged.shed.values()) == sum(piece["shed"])
    for queue in "abc":
        rows = [row for row, (name, _) in enumerate(messages) if name == queue]
        expected = by_law(*([columns[name][row] for row in rows] for name in ("sent_by", "received_at")), RULES)
        assert [found[row] for row in rows] == expected


def test_a_constant_wait_below_the_target_or_unknown_flags_nothing_and_one_above_it_does():
    for sojourns in ([49] * 500, [None] * 500):
        columns = columns_of(sojourns)
        assert judge(RULES, {}, columns, ()).shed == {}
        assert columns["shed"] == [False] * 500
    columns = columns_of([150] * 500)
    assert judge(RULES, {}, columns, ()).shed["q"] == sum(columns["shed"]) > 20
    # The first goes when messages have waited too long for an interval, the second after it when the next is due.
    assert columns["shed"].index(True) == 10


def test_a_clock_ahead_of_ours_is_no_wait():
    assert judge(RULES, {}, columns_of([-1000] * 100), ()).shed == {}


def test_what_came_before_is_not_sent_back_again():
    old = columns_of([150] * 500, redelivered=[row % 2 == 0 for row in range(500)])
    judged = judge(Shedding(0.05, 0.1, "requeue"), {}, old, ())
    assert judged.returned
    assert all(row % 2 for row in judged.returned)
    assert sorted([*judged.shown, *judged.returned]) == list(range(500))
    # A dead letter does not come back.
    assert any(row % 2 == 0 for row in judge(Shedding(0.05, 0.1, "dead-letter"), {}, old, ()).returned)


def test_an_empty_queue_ends_the_observation():
    first = judge(RULES, {}, columns_of([150] * 9), ["q"])
    again = columns_of([150] * 9)
    assert judge(RULES, first.laws, again, ()).shed == {}
    standing = judge(RULES, {}, columns_of([150] * 9), ())
    later = columns_of([150] * 9)
    later["received_at"] = [at + 90 * MS for at in later["received_at"]]
    assert judge(RULES, standing.laws, later, ()).shed == {"q": 1}


# On a broker --------------------------------------------------------------------------------------------------------

#: All that has waited for a minute is late, and a law whose interval is this short acts within a batch.
QUICK: dict[str, object] = {"codelTarget": "10ms", "codelInterval": "1ms", "enqueueTimeHeader": "sent"}


@pytest.fixture
def watching(driver: Callable[..., Driver]) -> Callable[..., Driver]:
    """Makes drivers of small batches that watch over the wait."""

    def make(names: list[str], **more: object) -> Driver:
        return driver(names, **{"maxMessagesPerTrigger": 400, "numPartitions": 2, **QUICK, **more})

    return make


def publish(broker: Node, names: list[str], count: int, age: float = 60.0) -> None:
    for name in names:
        broker.publish(name, unique(name, count), delivery_mode=2, headers={"sent": int((time.time() - age) * 1000)})


def micros(instant: Any) -> int:
    return round(instant.timestamp() * 1e6)


def test_one_law_watches_a_queue_over_segments_batches_and_restarts(
    broker: Node, queues: DeclareAll, watching: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SEGMENT_MESSAGES", 150)
    names = queues(2)
    publish(broker, names[:1], 900)
    publish(broker, names[1:], 900, age=-60.0)
    one = watching(names)
    batches = one.batches()
    rows = next(batches) + next(batches)
    again = watching(names)
    again.offset = one.offset
    rows += [row for batch in again.batches() for row in batch]
    assert len(rows) == len(set(bodies(rows))) == 1800
    late, early = ([row for row in rows if row["queue"] == name] for name in names)
    assert not any(row["shed"] for row in early)
    expected = by_law(
        [micros(row["enqueued_at"]) for row in late], [micros(row["received_at"]) for row in late],
        Shedding(0.01, 0.001, "flag"),
    )  # fmt: skip
    assert [row["shed"] for row in late] == expected
    assert sum(expected) >= 3


def test_a_message_goes_back_once_and_is_lost_never(
    broker: Node, queues: DeclareAll, watching: Callable[..., Driver]
) -> None:
    names = queues(2)
    publish(broker, names, 1000)
    one = watching(names, codelAction="requeue")
    rows, shed = [], 0
    for batch in one.batches():
        rows += batch
        assert "shed" not in batch[0]
        one.reader.commit(one.offset)
        shed += sum(one.reader.reportLatestOffset()["shed"].values())
    assert sorted(bodies(rows)) == sorted(body for name in names for body in unique(name, 1000))
    assert sum(row["redelivered"] for row in rows) == shed > 0
    eventually(lambda: all(broker.count(name) == 0 for name in names))


def test_late_messages_become_dead_letters(broker: Node, queues: DeclareAll, watching: Callable[..., Driver]) -> None:
    [dead] = queues(1)
    [name] = queues(1, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    publish(broker, [name], 1000)
    one = watching([name], codelAction="dead-letter")
    end = one.plan()
    first = one.read(end)
    assert one.read(end) == first  # the replay does not ask again
    one.offset = end
    rows = [row for part in first for row in part] + [row for batch in one.batches() for row in batch]
    eventually(lambda: broker.count(dead) + len(rows) == 1000)
    assert len(set(bodies(rows))) == len(rows) < 1000
    assert broker.count(name) == 0


def test_browsing_can_flag_and_settles_nothing(broker: Node, queues: DeclareAll) -> None:
    [name] = queues(1)
    publish(broker, [name], 500)
    options = source_options({**{k: str(v) for k, v in QUICK.items()}, "url": broker.url, "queues": name})
    [batch] = browse(options, ["body", "shed"], {name: 500})
    assert set(batch.column("shed").to_pylist()) <= {True, False}
    eventually(lambda: broker.count(name) == 500)
    for wrong in ({"codelTarget": "5ms", "codelAction": "requeue"}, {"ackMode": "auto"}):
        with pytest.raises(ConfigurationError, match="a batch query browses"):
            BatchReader(source_options({"url": broker.url, "queues": name, **wrong}), None)


def test_spark_gives_the_planner_what_the_laws_need_in_time(
    broker: Node, queues: DeclareAll, spark: Any, tmp_path: Path
) -> None:
    from fairsched.spark import register

    [name] = queues(1)
    publish(broker, [name], 900)
    register(spark)
    options = options_of(broker, {name: 1}, tmp_path / "spool", **QUICK, maxMessagesPerTrigger=200)
    rows = Rows()
    drain(load(spark, options), tmp_path / "checkpoint", rows)
    assert [len(batch) for batch in rows.batches.values()] == [200, 200, 200, 200, 100]
    sent, taken = ([micros(row[column]) for row in rows.all] for column in ("enqueued_at", "received_at"))
    expected = by_law(sent, taken, Shedding(0.01, 0.001, "flag"))
    assert [row.shed for row in rows.all] == expected
    # A law that began anew in each batch would say something else.
    anew = [
        by_law(sent[at : at + 200], taken[at : at + 200], Shedding(0.01, 0.001, "flag")) for at in range(0, 900, 200)
    ]
    assert expected != [verdict for batch in anew for verdict in batch]
