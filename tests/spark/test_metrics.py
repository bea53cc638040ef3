"""The metrics Prometheus is told of streaming queries: by real ones, over a real scrape."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.queries import Rows, into_files, load, query
from support.spark.recipes import blocks_of
from support.spark.running import fill, options_of
from support.waiting import eventually

from fairsched.spark import metrics, register
from fairsched.spark.metrics import OTHER, QueryCollector

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> Samples:
    """Return values by metric, query and queue."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("fairsched_spark_"):
                key = sample.name.removeprefix("fairsched_spark_"), *sample.labels.values()
                assert key not in found
                found[key] = sample.value
    return found


@pytest.mark.timeout(280)
def test_a_query_as_the_documentation_exports_it(
    spark: Any, broker: Node, queues: DeclareAll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(spark)
    gold, free = queues(2)
    fill(broker, [gold, free], 40)
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        port = free_port.getsockname()[1]
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    [code] = [block.code for block in blocks_of("spark.md") if block.file == "exported.py"]
    assert "start_http_server(9191)" in code
    names: dict[str, Any] = {"spark": spark}
    exec(code.replace("start_http_server(9191)", f"server = start_http_server({port}, registry=REGISTRY)"), names)

    def scrape() -> Samples:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())

    def last(*key: str) -> float | None:
        return scrape().get(key)

    frame = load(spark, options_of(broker, {gold: 3, free: 1}, tmp_path / "spool", maxMessagesPerTrigger=40))
    try:
        assert scrape() == {}
        rows = Rows()
        with query(frame, tmp_path / "checkpoint", rows) as running:
            label = str(running.id)
            rows.then = lambda number: (
                eventually(lambda: last("batches_total", label) == number, 60) if number else None
            )
            running.processAllAvailable()
            eventually(lambda: last("input_rows_total", label) == 80, 60)
            found = scrape()
            assert found["query_running", label] == 1
            assert found["batches_total", label] == len(rows.batches)
            assert found["batch_seconds", label] > 0
            assert found["planned_messages_total", label, gold] == found["planned_messages_total", label, free] == 40
            assert found["lag_messages", label, gold] == found["lag_messages", label, free] == 0
        eventually(lambda: last("query_running", label) == 0, 60)
        assert last("query_failures_total", label) == 0
        fill(broker, [free], 50)

        def fails(_frame: Any, _number: int) -> None:
            raise ValueError("no")

        with query(frame, tmp_path / "checkpoint", fails) as running:
            eventually(lambda: running.exception() is not None, 120)
        with query(frame, tmp_path / "checkpoint", into_files(tmp_path / "sink"), availableNow=True) as running:
            running.awaitTermination(120)
        eventually(lambda: last("planned_messages_total", label, free) == 90, 60)
        assert last("planned_messages_total", label, gold) == 40
    finally:
        spark.streams.removeListener(names["queries"])
        server, thread = names["server"]
        server.shutdown()
        server.server_close()
        thread.join(60)


def batch(depths: dict[str, int], plan: dict[str, int], number: int = 0, **more: Any) -> SimpleNamespace:
    behind = {name: depth - plan.get(name, 0) for name, depth in depths.items()}
    seen = {"source": "queues", "depths": depths, "behind": behind, "ages": {next(iter(depths)): 1500}}
    end = {"v": 1, "seq": number + 1, "plan": plan}
    text = json.dumps({"batchId": number, "sources": [{"startOffset": None, "endOffset": end, "latestOffset": seen}]})
    return SimpleNamespace(
        progress=SimpleNamespace(
            **{"id": "i", "name": None, "json": text, "numInputRows": sum(plan.values()), "batchDuration": 250, **more}
        )
    )


def shown(collector: QueryCollector) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


def test_the_figures_of_batches() -> None:
    found = QueryCollector()
    found.onQueryProgress(batch({"a": 5, "b": 1}, {"a": 3, "b": 1}))
    found.onQueryProgress(batch({"a": 4}, {"a": 4}, 1))
    assert shown(found) == {
        ("query_running", "i"): 1, ("query_failures_total", "i"): 0, ("batches_total", "i"): 2,
        ("input_rows_total", "i"): 8, ("batch_seconds", "i"): 0.25,
        ("planned_messages_total", "i", "a"): 7, ("planned_messages_total", "i", "b"): 1,
        ("depth_messages", "i", "a"): 4, ("batch_messages", "i", "a"): 4, ("lag_messages", "i", "a"): 0,
        ("message_age_seconds", "i", "a"): 1.5,
    }  # fmt: skip
    found.onQueryTerminated(SimpleNamespace(id="i", exception="why"))
    assert (shown(found)["query_running", "i"], shown(found)["query_failures_total", "i"]) == (0, 1)
    kafka = SimpleNamespace(json=json.dumps({"batchId": 1, "sources": [{"endOffset": {"t": 5}}]}))
    QueryCollector().onQueryProgress(SimpleNamespace(progress=kafka))


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_QUERIES", 2)
    monkeypatch.setattr(metrics, "MOST_QUEUES", 2)
    found = QueryCollector()
    for number in range(3):  # the label that was there first stays
        names = ["c", "a", "b", "d"][: number + 2]
        found.onQueryProgress(batch(dict.fromkeys(names, 2), dict.fromkeys(names, 1), number))
    taken = {key[2]: value for key, value in shown(found).items() if key[0] == "planned_messages_total"}
    assert taken == {"c": 3, "a": 3, OTHER: 1 + 2}
    for name in "two", "three":
        found.onQueryProgress(batch({"q": 1}, {"q": 1}, id=name, name=name))
    assert {key[1] for key in shown(found)} == {"i", "two"}
    found.onQueryTerminated(SimpleNamespace(id="two", exception=None))
    found.onQueryTerminated(SimpleNamespace(id="three", exception=None))
    found.onQueryProgress(batch({"q": 1}, {"q": 1}, id="three", name="three"))
    assert {key[1] for key in shown(found)} == {"i", "three"}
