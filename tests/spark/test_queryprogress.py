"""The reading by `fairsched.spark.progress` of a query's progress, and that the progress names what is read."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.queries import Rows, drain, load
from support.spark.recipes import blocks_of
from support.spark.running import fill, options_of
from support.waiting import eventually

from fairsched.spark import progress
from fairsched.spark.source.options import source_options

SOURCE = "queues gold (3), free (1) at broker:5672"


def reported(*sources: dict[str, Any], batch: int = 4) -> Any:
    return SimpleNamespace(json=json.dumps({"batchId": batch, "sources": sources}))


def queues_of(plan: dict[str, int], depths: dict[str, int], behind: dict[str, int], **more: Any) -> dict[str, Any]:
    seen = {"source": SOURCE, "depths": depths, "behind": behind, "ages": {"gold": 1500}}
    return {"startOffset": None, "endOffset": {"v": 1, "seq": 2, "plan": plan}, "latestOffset": seen, **more}


def test_the_figures_of_queues_by_name() -> None:
    found = progress(reported(queues_of({"gold": 30}, {"gold": 50, "free": 0}, {"gold": 20, "free": 0})))
    assert (found.batch, found.source) == (4, SOURCE)
    assert (found.depths, found.plan) == ({"gold": 50, "free": 0}, {"gold": 30, "free": 0})
    assert (found.lag, found.ages) == ({"gold": 20, "free": 0}, {"gold": 1.5})
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.batch = 5


def test_without_a_batch_everything_ready_is_left() -> None:
    offset = {"v": 1, "seq": 2, "plan": {"gold": 30}}
    found = progress(reported(queues_of({"gold": 30}, {"gold": 7}, {"gold": 0}, startOffset=offset)))
    assert (found.depths, found.plan, found.lag) == ({"gold": 7}, {"gold": 0}, {"gold": 7})


def test_a_query_that_waits_for_more_has_all_of_it_to_do() -> None:
    first = queues_of({}, {"gold": 7}, {}) | {"endOffset": {"v": 1, "seq": 0}}
    found = progress(reported(first))
    assert (found.depths, found.plan, found.lag) == ({"gold": 7}, {"gold": 0}, {"gold": 7})


def test_of_a_batch_that_an_earlier_run_planned_only_the_plan_is_known() -> None:
    found = progress(reported(queues_of({"gold": 30}, {}, {}) | {"latestOffset": None}, batch=7))
    assert (found.batch, found.source, found.plan) == (7, "", {"gold": 30})
    assert found.depths == found.lag == found.ages == {}
    end = {"v": 1, "streams": {"a": 15}, "from": {"a": 5}, "carried": {}}
    found = progress(reported({"startOffset": None, "endOffset": end, "latestOffset": None}))
    assert (found.source, found.plan, found.lag) == ("", {"a": 10}, {})


def test_the_figures_of_streams_are_distances_between_offsets() -> None:
    begin = {"v": 1, "streams": {"a": 5, "b": 0}, "from": {"a": 0, "b": 0}, "carried": {}}
    end = {"v": 1, "streams": {"a": 15, "b": 3}, "from": {"a": 5, "b": 0}, "carried": {}}
    seen = {"source": "streams a (1), b (1) at h:1", "streams": {"a": 40, "b": 3}, "behind": {"a": 25, "b": 0}}
    found = progress(reported({"startOffset": begin, "endOffset": end, "latestOffset": seen}))
    assert (found.depths, found.plan, found.lag) == ({"a": 35, "b": 3}, {"a": 10, "b": 3}, {"a": 25, "b": 0})
    idle = progress(reported({"startOffset": end, "endOffset": end, "latestOffset": seen}))
    assert (idle.depths, idle.plan, idle.lag) == ({"a": 25, "b": 0}, {"a": 0, "b": 0}, {"a": 25, "b": 0})
    first = {"startOffset": None, "endOffset": {"v": 1, "streams": "initial"}, "latestOffset": seen}
    assert progress(reported(first)).plan == {}


def test_offsets_may_be_text_as_spark_connect_gives_them() -> None:
    plain = queues_of({"gold": 30}, {"gold": 50}, {"gold": 20})
    text = {name: json.dumps(value) for name, value in plain.items()}
    assert progress(reported(text)) == progress(reported(plain))


def test_several_sources_are_added_up_and_others_left_out() -> None:
    kafka = {"startOffset": None, "endOffset": {"t": {"0": 5}}, "latestOffset": {"source": {"0": 9}}}
    one = queues_of({"gold": 30}, {"gold": 50}, {"gold": 20})
    two = queues_of({"gold": 1, "free": 2}, {"gold": 21, "free": 2}, {"gold": 20, "free": 0})
    found = progress(reported(kafka, one, two))
    assert (found.source, found.plan) == (f"{SOURCE}; {SOURCE}", {"gold": 31, "free": 2})
    assert (found.depths, found.lag) == ({"gold": 50, "free": 2}, {"gold": 20, "free": 0})
    assert progress(reported(kafka)) is None


def test_nothing_yet_and_what_is_no_query() -> None:
    assert progress(SimpleNamespace(lastProgress=None)) is None
    with pytest.raises(TypeError, match="takes a streaming query or one progress of it, got dict"):
        progress({})


def test_what_is_read_is_described_without_user_and_password() -> None:
    urls = "amqp://app:hush@one/v,amqps://app:hush@two:1234/%2F"
    assert source_options({"url": urls, "queues": "a,b"}).description == "queues a (1), b (1) at one:5672, two:1234"
    found = source_options({"url": "amqp://app:hush@h", "streams": '{"s": 2}'}).description
    assert found == "streams s (2) at h:5672"


@pytest.mark.timeout(280)
def test_a_query_and_the_listener_of_the_documentation(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path, capfd: Any
) -> None:
    from fairsched.spark import register

    register(spark)
    gold, free = queues(2)
    fill(broker, [gold, free], 40)
    [listener] = [block.code for block in blocks_of("spark.md") if block.file == "listener.py"]
    added: list[Any] = []

    def add(one: Any) -> None:
        added.append(one)
        spark.streams.addListener(one)

    exec(listener, {"spark": SimpleNamespace(streams=SimpleNamespace(addListener=add))})
    seen: list[str] = []
    try:
        frame = load(spark, options_of(broker, {gold: 3, free: 1}, tmp_path / "spool", maxMessagesPerTrigger=40))
        done = drain(frame, tmp_path / "checkpoint", Rows())
        eventually(lambda: seen.append(capfd.readouterr().out) or f"query {done.id} ended" in "".join(seen), 60)
    finally:
        spark.streams.removeListener(*added)
    said = "".join(seen)
    assert f"batch=0 queue={gold} ready=40 planned=30 lag=10\n" in said
    assert f"batch=0 queue={free} ready=40 planned=10 lag=30\n" in said
    first = progress(done.recentProgress[0])
    assert first.plan == {gold: 30, free: 10}
    assert first.source == f"queues {gold} (3), {free} (1) at 127.0.0.1:{broker.port}"
    last = progress(done)
    assert last == progress(done.lastProgress)
    assert sum(last.lag.values()) == 0
    assert re.search(r'"source" *: *"queues ', done.recentProgress[0].json)
