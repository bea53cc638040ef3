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
from urllib.parse import unquote, urlsplit

import pika
import pyarrow.parquet as pq
import pytest
from support.rabbitmq import Node
from support.spark.home import brief_jvm, with_brief_jvm
from support.spark.launched import SLOW_START
from support.waiting import eventually

from fairsched.cli import exits
from fairsched.cli.commands.pipeline import _run
from fairsched.spark.pipeline.home import is_whole
from fairsched.spark.pipeline.settings import read_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTION = """
import pyarrow as pa, pyarrow.compute as pc


def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
    number = pc.cast(pc.cast(batch.column("body"), pa.string()), pa.int64())
    return pa.record_batch({"queue": batch.column("queue"), "number": number, "twice": pc.multiply(number, 2)})


def forward(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"body": batch.column("body"), "routing_key": pa.array(["done"] * batch.num_rows)})


def located(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Where Python has Spark from, and which archives of classes its JVM has.
    import psutil, pyspark

    jvms = [one for one in psutil.Process().parents() if one.name() == "java"]
    archives = sorted({map.path for one in jvms for map in one.memory_maps() if map.path.endswith(".jsa")})
    places = pa.array(["\\n".join([pyspark.__file__, *archives])] * batch.num_rows)
    return pa.record_batch({"body": batch.column("body"), "place": places})


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no such order")
"""

FILE = """
[source]
{source}
maxMessagesPerTrigger = 400
pollTimeout = "500ms"
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
"{setting}" = "local[2]"
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
{brief}
"spark.sql.shuffle.partitions" = 2
"""

QUEUES = 'queues = {{ gold = 3, free = 1 }}\nspoolLocation = "{here}/spool"'
SCHEMA = "queue string, number long, twice long"
#: What is shown of two queues that were drained in one batch: that gives no verdict.
DRAINED = {"gold": ("3", "0", "–", "75.00%", "–", "20", "20"), "free": ("1", "0", "–", "25.00%", "–", "20", "20")}
PARQUET = 'format = "parquet"\npath = "{here}/out"'


@pytest.fixture
def job(tmp_path: Path, broker: Node, spark_home: Path) -> Any:
    """Writes the file and runs the command in a folder with the user's module."""
    (tmp_path / "orders.py").write_text(FUNCTION)
    # A server of Spark Connect takes a free port.
    environment = {**os.environ, "FAIRSCHED_URL": broker.url, "SPARK_TESTING": "1", "SPARK_HOME": str(spark_home)}

    def start(
        *arguments: str,
        stdout: int = subprocess.PIPE,
        url: bool = True,
        quick: dict[str, str] | None = None,
        **changes: str,
    ) -> Any:
        write_file(tmp_path, **changes)
        if quick is not None:  # with these variables, and without a home of Spark
            environment.pop("SPARK_HOME", None)
            environment.update(quick)
        if not url:
            del environment["FAIRSCHED_URL"]
        return subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "pipeline", "pipeline.toml", *arguments],
            cwd=tmp_path, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def write_file(folder: Path, **changes: str) -> Path:
    usually = {
        "function": "enrich", "schema": SCHEMA, "trigger": "available-now", "setting": "spark.master",
        "brief": f'"spark.driver.extraJavaOptions" = "{brief_jvm()}"',
    }  # fmt: skip
    parts = {**usually, **changes}
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


def ended(job: Any, *arguments: str, **changes: Any) -> tuple[int, str, str]:
    """Run the command, again where Spark was too slow for itself; return its code, and what it said on both outputs."""
    for _ in range(3):
        process = job(*arguments, **changes)
        out, err = process.communicate(timeout=240)
        if SLOW_START not in err:
            break
    return process.returncode, out, err


def finished(job: Any, *arguments: str, **changes: str) -> str:
    code, out, err = ended(job, *arguments, **changes)
    assert code == 0, err[-3000:]
    return out


def written(folder: Path) -> Any:
    """Return the contents of the sink's log: an attempt that ended with its JVM may leave a file of no bytes beside."""
    logs = [log.read_text().splitlines()[1:] for log in (folder / "_spark_metadata").glob("[0-9]*")]
    urls = {json.loads(line)["path"] for lines in logs for line in lines}
    return pq.read_table(sorted(unquote(urlsplit(url).path) for url in urls))


def table(shown: str) -> dict[str, tuple[str, ...]]:
    """Quantum, judged rows, share, ideal, error, other rows and all rows of each queue, in what is shown."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    return {name: tuple(rest) for name, *rest in cells if name != "queue"}


def test_a_pipeline_reads_partitions_transforms_writes_and_reports(job: Any, queues: Node, tmp_path: Path) -> None:
    fill(queues, 600)
    report = json.loads(finished(job, "--json", "--report", "shares.html"))
    assert {row["name"]: row["served"] for row in report["queues"]} == {"gold": 600, "free": 600}
    # The first batch left both queues a backlog, and is exact; the second emptied one, and the rest is what was left.
    assert {row["name"]: (row["judged"], row["error"]) for row in report["queues"]} == {
        "gold": (300, 0.0), "free": (100, 0.0),
    }  # fmt: skip
    assert (report["jain"], report["batches"], report["judged_batches"], report["total"]) == (1.0, 3, 1, 1200)
    assert sum(age["rows"] for age in report["ages"]) == 1200
    assert all(-2 <= age["p50"] <= age["p99"] <= age["max"] < 300 for age in report["ages"])
    table = written(tmp_path / "out").to_pydict()
    assert sorted(zip(table["queue"], table["number"], table["twice"], strict=True)) == sorted(
        (queue, i, 2 * i) for queue in ("gold", "free") for i in range(600)
    )
    assert queues.count("gold") == queues.count("free") == 0
    page = (tmp_path / "shares.html").read_text()
    assert "data:image/png;base64," in page
    assert "<td>gold</td>" in page
    assert "guest:guest" not in page


def test_spark_starts_from_what_the_first_run_has_left_in_the_cache(job: Any, queues: Node, tmp_path: Path) -> None:
    """And where it cannot leave anything, Spark starts as usual."""
    cache, java = tmp_path / "my cache", with_brief_jvm(tmp_path / "java")

    def places(cache: Path, end: str) -> list[Path]:
        fill(queues, 10)
        sink = PARQUET.replace("out", f"out-{end}")
        quick = {"XDG_CACHE_HOME": str(cache), "JAVA_HOME": str(java)}
        code, _, err = ended(
            job, "--json", function="located", schema="body binary, place string", quick=quick, sink=sink, brief=""
        )
        assert code == 0, err[-3000:]
        [found] = {*written(tmp_path / f"out-{end}").to_pydict()["place"]}
        return [Path(place) for place in found.split("\n")]

    (tmp_path / "file").write_text("")
    usual, archive = places(tmp_path / "file", "usual")
    assert "pyspark.zip" in usual.parts
    assert archive.name == "classes.jsa"  # Java's own
    first, *archives = places(cache, "first")
    assert first.is_relative_to(cache / "fairsched")
    assert archives == [archive]
    # A JVM goes on for some seconds after the command.
    eventually(lambda: any(map(is_whole, cache.glob("fairsched/*.new"))), 240, "its JVM has left an archive")
    second, *archives = places(cache, "second")
    assert second == first
    assert {*archives} == {archive, *cache.glob("fairsched/*.jsa")}
    assert len(archives) == 2


@pytest.mark.parametrize("setting", ["spark.master", "spark.remote"])
def test_what_a_function_raises_is_said_in_a_line_and_nothing_is_lost(
    setting: str, job: Any, queues: Node, tmp_path: Path
) -> None:
    fill(queues, 20)
    code, _, err = ended(job, function="broken", setting=setting)
    assert code == 5
    # A server of Spark Connect in the same process goes on to say what it sees.
    lines = err.strip().splitlines()[-1:] if setting == "spark.master" else err.splitlines()
    [line] = [line for line in lines if line.startswith("Error: ")]
    assert "the pipeline failed" in line
    assert "no such order" in line
    assert "guest:guest" not in err
    # The batch stands in the spool: a repaired function gets it, and a caller that is no program gets a table.
    shown = finished(job, "--report", "shares.png", setting=setting)
    assert written(tmp_path / "out").num_rows == 40
    assert shown.split("\n")[0].strip() == "pipeline: rows read"
    assert table(shown) == DRAINED
    assert "No verdict" in shown
    assert "40 messages in" in shown.splitlines()[-1]
    picture = (tmp_path / "shares.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 10_000


@pytest.mark.parametrize(
    ("arguments", "changes", "why"),
    [
        ([], {"sink": f'{PARQUET}\npartitionBy = "nothing"'}, "the pipeline cannot start: .*nothing"),
        (["--master", "nowhere"], {}, "Spark cannot be started: "),
        (["--master", "local[2]"], {"setting": "spark.remote"}, "Spark cannot be started: .*CONNECT"),
    ],
)
def test_what_spark_refuses_is_said_in_a_line(
    arguments: list[str], changes: dict[str, str], why: str, job: Any, queues: Node
) -> None:
    process = job(*arguments, **changes)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 5
    assert re.search(why, err.strip().splitlines()[-1])
    assert "Traceback" not in err


@pytest.mark.parametrize("setting", ["spark.master", "spark.remote"])
def test_a_signal_ends_a_pipeline_that_goes_on_and_it_resumes(
    setting: str, job: Any, queues: Node, tmp_path: Path
) -> None:
    fill(queues, 30)
    screen = Screen()
    process = job(trigger="1s", stdout=screen.end, setting=setting)
    try:
        # The table grows in place while the pipeline runs.
        eventually(lambda: "60 messages in" in screen.text, 180, "the terminal shows that both queues are read")
        eventually(lambda: list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), 60, "a batch is committed")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
    finally:
        process.kill()
        screen.close()
    assert queues.count("gold") + queues.count("free") == 0
    last = screen.text[screen.text.rindex("pipeline: rows read") :]
    assert table(last) == {name: tuple(cell.replace("20", "30") for cell in row) for name, row in DRAINED.items()}
    fill(queues, 10)
    finished(job, "--json")
    assert written(tmp_path / "out").num_rows == 80


def test_without_a_url_a_pipeline_has_a_broker_of_its_own(job: Any, tmp_path: Path) -> None:
    process = job("--json", trigger="1s", url=False)
    try:
        said = process.stderr.readline()
        [url] = re.findall(
            r"^No URL is given: the queues are on an embedded broker until the pipeline ends, (amqp://\S+)$", said
        )
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(100):
                channel.basic_publish("", "gold", b"%d" % number)
        eventually(lambda: list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), 180, "a batch is committed")
        eventually(lambda: written(tmp_path / "out").num_rows == 100, 60, "all is written")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        assert json.loads(out)["queues"]
    finally:
        process.kill()


def test_a_pipeline_can_write_to_rabbitmq(job: Any, queues: Node) -> None:
    queues.declare("done")
    try:
        fill(queues, 50)
        changes = {"function": "forward", "schema": "body binary, routing_key string", "sink": 'format = "rabbitmq"'}
        finished(job, "--json", **changes)
        assert queues.count("done") == 100
    finally:
        queues.delete("done")


@pytest.mark.rabbitmq("streams")
def test_a_pipeline_can_read_streams(job: Any, broker: Node, tmp_path: Path) -> None:
    name = "pipeline-events"
    broker.declare(name, arguments={"x-queue-type": "stream"})
    try:
        sent = int(time.time()) - 5
        broker.publish(name, [b"%d" % i for i in range(100)], timestamp=sent)
        report = json.loads(finished(job, "--json", source=f'streams = ["{name}"]\nstartingOffsets = "earliest"'))
    finally:
        broker.delete(name)
    assert [(row["name"], row["served"]) for row in report["queues"]] == [(name, 100)]
    assert sum(age["rows"] for age in report["ages"]) == 100
    assert all(4 <= age["p50"] <= age["max"] < 300 for age in report["ages"] if age["rows"])
    assert sorted(written(tmp_path / "out").to_pydict()["number"]) == list(range(100))


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
