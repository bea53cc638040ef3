"""A pipeline from a file, as a user runs it: a process of its own, a real broker, real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration.rabbitmq import Node, eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FUNCTION = """
import pyarrow as pa, pyarrow.compute as pc


def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
    number = pc.cast(pc.cast(batch.column("body"), pa.string()), pa.int64())
    return pa.record_batch({"queue": batch.column("queue"), "number": number, "twice": pc.multiply(number, 2)})


def forward(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"body": batch.column("body"), "routing_key": pa.array(["done"] * batch.num_rows)})


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no such order")
"""

FILE = """
[source]
{source}
maxMessagesPerTrigger = 400
pollTimeoutMs = 500
numPartitions = 2

[partition]
key = "message_id"
members = {{ "shard-0" = 1, "shard-1" = 1 }}

[transform]
function = "orders:{function}"
schema = "{schema}"

[sink]
{sink}
checkpointLocation = "{here}/checkpoint"
trigger = "{trigger}"

[spark]
"spark.master" = "local[2]"
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
"spark.sql.shuffle.partitions" = 2
"""

QUEUES = 'queues = {{ gold = 3, free = 1 }}\nspoolLocation = "{here}/spool"'
SCHEMA = "queue string, number long, twice long"
PARQUET = 'format = "parquet"\npath = "{here}/out"'


@pytest.fixture
def job(tmp_path: Path, broker: Node) -> Any:
    """Writes the file and runs the command in a folder with the user's module."""
    (tmp_path / "orders.py").write_text(FUNCTION)
    environment = {**os.environ, "FAIRSCHED_URL": broker.url}

    def start(*arguments: str, **changes: str) -> Any:
        parts = {"function": "enrich", "schema": SCHEMA, "trigger": "available-now", **changes}
        for name, usual in (("source", QUEUES), ("sink", PARQUET)):
            parts[name] = parts.get(name, usual).format(here=tmp_path)
        (tmp_path / "pipeline.toml").write_text(FILE.format(here=tmp_path, **parts))
        return subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "pipeline", "pipeline.toml", *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


@pytest.fixture
def queues(broker: Node) -> Any:
    broker.declare("gold", "free")
    yield broker
    broker.delete("gold", "free")


def fill(broker: Node, count: int) -> None:
    stamp = int(time.time())
    for queue in ("gold", "free"):
        broker.publish(queue, [b"%d" % i for i in range(count)], delivery_mode=2, timestamp=stamp)


def finished(process: Any) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    return str(out)


def test_a_pipeline_reads_partitions_transforms_writes_and_reports(job: Any, queues: Node, tmp_path: Path) -> None:
    fill(queues, 600)
    report = json.loads(finished(job("--json", "--report", "shares.html")))
    assert {row["name"]: row["served"] for row in report["queues"]} == {"gold": 600, "free": 600}
    assert sum(age["rows"] for age in report["ages"]) == 1200
    assert all(-2 <= age["p50"] <= age["p99"] <= age["max"] < 300 for age in report["ages"])
    table = pq.read_table(tmp_path / "out").to_pydict()
    assert sorted(zip(table["queue"], table["number"], table["twice"], strict=True)) == sorted(
        (queue, i, 2 * i) for queue in ("gold", "free") for i in range(600)
    )
    assert queues.count("gold") == queues.count("free") == 0
    page = (tmp_path / "shares.html").read_text()
    assert "data:image/png;base64," in page
    assert "<td>gold</td>" in page
    assert "guest:guest" not in page


def test_what_a_function_raises_is_said_in_a_line_and_nothing_is_lost(job: Any, queues: Node, tmp_path: Path) -> None:
    fill(queues, 20)
    process = job(function="broken")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 5
    last = err.strip().splitlines()[-1]
    assert "the pipeline failed" in last
    assert "no such order" in last
    assert "guest:guest" not in err
    # The batch stands in the spool: a repaired function gets it.
    finished(job("--json"))
    assert pq.read_table(tmp_path / "out").num_rows == 40


def test_what_spark_refuses_is_said_in_a_line(job: Any, queues: Node) -> None:
    process = job(sink=f'{PARQUET}\npartitionBy = "nothing"')
    _, err = process.communicate(timeout=240)
    assert process.returncode == 5
    last = err.strip().splitlines()[-1]
    assert "the pipeline cannot start" in last
    assert "nothing" in last
    assert "Traceback" not in err


def test_a_signal_ends_a_pipeline_that_goes_on_and_it_resumes(job: Any, queues: Node, tmp_path: Path) -> None:
    fill(queues, 30)
    process = job("--json", trigger="1s")
    try:
        eventually(lambda: queues.count("gold") + queues.count("free") == 0, 120, "both queues are read")
        eventually(lambda: list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), 60, "a batch is committed")
        process.send_signal(signal.SIGTERM)
        out = finished(process)
    finally:
        process.kill()
    assert sum(row["served"] for row in json.loads(out)["queues"]) == 60
    fill(queues, 10)
    finished(job("--json"))
    assert pq.read_table(tmp_path / "out").num_rows == 80


def test_a_pipeline_can_write_to_rabbitmq(job: Any, queues: Node) -> None:
    queues.declare("done")
    try:
        fill(queues, 50)
        changes = {"function": "forward", "schema": "body binary, routing_key string", "sink": 'format = "rabbitmq"'}
        finished(job("--json", **changes))
        assert queues.count("done") == 100
    finally:
        queues.delete("done")


def test_a_pipeline_can_read_streams(job: Any, broker: Node, tmp_path: Path) -> None:
    name = "pipeline-events"
    broker.declare(name, arguments={"x-queue-type": "stream"})
    try:
        sent = int(time.time()) - 5
        broker.publish(name, [b"%d" % i for i in range(100)], commit=True, timestamp=sent)
        report = json.loads(finished(job("--json", source=f'streams = ["{name}"]\nstartingOffsets = "earliest"')))
    finally:
        broker.delete(name)
    assert [(row["name"], row["served"]) for row in report["queues"]] == [(name, 100)]
    assert sum(age["rows"] for age in report["ages"]) == 100
    assert all(4 <= age["p50"] <= age["max"] < 300 for age in report["ages"] if age["rows"])
    assert sorted(pq.read_table(tmp_path / "out").to_pydict()["number"]) == list(range(100))
