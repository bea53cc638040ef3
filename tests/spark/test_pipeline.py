"""A pipeline from a file, as a user runs it: a process of its own, a real broker, real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration.rabbitmq import Node, eventually

from fairsched.cli import exits
from fairsched.cli.pipeline import _run
from fairsched.spark.pipelinefile import read_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

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

    def start(*arguments: str, stdout: int = subprocess.PIPE, **changes: str) -> Any:
        write_file(tmp_path, **changes)
        return subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "pipeline", "pipeline.toml", *arguments],
            cwd=tmp_path, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def write_file(folder: Path, **changes: str) -> Path:
    parts = {"function": "enrich", "schema": SCHEMA, "trigger": "available-now", **changes}
    for name, usual in (("source", QUEUES), ("sink", PARQUET)):
        parts[name] = parts.get(name, usual).format(here=folder)
    path = folder / "pipeline.toml"
    path.write_text(FILE.format(here=folder, **parts))
    return path


class Screen:
    """A terminal of 100 columns, and what has been written on it, without colours and moves of the cursor."""

    def __init__(self) -> None:
        self._own, self.end = pty.openpty()
        termios.tcsetwinsize(self.end, (40, 100))
        self._written = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        # The last end that is closed makes reading fail.
        with contextlib.suppress(OSError):
            while found := os.read(self._own, 65536):
                self._written += found

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._written.decode("utf-8", "ignore"))

    def close(self) -> None:
        os.close(self.end)
        self._thread.join(60)
        os.close(self._own)


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


def table(shown: str) -> dict[str, tuple[str, ...]]:
    """Quantum, rows, share and ideal of each queue, in what is shown."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    return {name: (quantum, served, share, ideal) for name, quantum, served, _rate, share, ideal, _error in cells
            if name != "queue"}  # fmt: skip


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
    # The batch stands in the spool: a repaired function gets it, and who is no program gets a table.
    shown = finished(job("--report", "shares.png"))
    assert pq.read_table(tmp_path / "out").num_rows == 40
    assert shown.split("\n")[0].strip() == "pipeline: rows read"
    assert table(shown) == {"gold": ("3", "20", "50.00%", "75.00%"), "free": ("1", "20", "50.00%", "25.00%")}
    assert "40 messages in" in shown.splitlines()[-1]
    picture = (tmp_path / "shares.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 10_000


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
    screen = Screen()
    process = job(trigger="1s", stdout=screen.end)
    try:
        # The table grows in place while the pipeline runs.
        eventually(lambda: "60 messages in" in screen.text, 180, "the terminal shows that both queues are read")
        eventually(lambda: list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), 60, "a batch is committed")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        finished(process)
    finally:
        process.kill()
        screen.close()
    assert queues.count("gold") + queues.count("free") == 0
    last = screen.text[screen.text.rindex("pipeline: rows read") :]
    assert table(last) == {"gold": ("3", "30", "50.00%", "75.00%"), "free": ("1", "30", "50.00%", "25.00%")}
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


@pytest.mark.parametrize(
    ("sink", "url", "why"),
    [
        ('format = "delta"\npath = "{here}/out"', None, "cannot start: .*Failed to find the data source: delta"),
        (PARQUET, "amqp://app:hush@127.0.0.1:1/", r"failed: fairsched.errors.ConnectionFailed: 127.0.0.1:1: .*refused"),
    ],
)
def test_what_goes_wrong_in_spark_is_said_in_a_line(
    sink: str, url: str | None, why: str, spark: Any, broker: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    path = write_file(tmp_path, sink=sink)
    path.write_text(path.read_text().replace("[partition]", "connectRetries = 0\n[partition]"))
    settings = read_pipeline(path, {"FAIRSCHED_URL": url or broker.url})
    try:
        with pytest.raises(exits.Failure, match=why) as caught:
            _run(spark, settings, None)
    finally:
        spark.sparkContext.setLogLevel("ERROR")  # a pipeline that fails silences the rest
    assert caught.value.exit_code == exits.APPLICATION
    assert "\n" not in caught.value.message
    assert "hush" not in caught.value.message
