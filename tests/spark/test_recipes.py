"""Every recipe on the pages about Spark is run as it is printed, from a fresh folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.rabbitmq import Node
from support.spark.recipes import STORE, Block, Machine, blocks_of
from support.spark.s3server import S3Server
from support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

QUEUES = ("gold", "silver", "free")

#: How each block begins, in the order of the pages.
SPARK = {
    "install": 'pip install "fairsched[spark]" ', "job": "# job.py", "run": "PYSPARK_PYTHON=$(",
    "store": "pip install s3fs", "sql": "CREATE TEMPORARY VIEW", "dead": "# dead.py", "listener": "# listener.py",
    "exported": "# exported.py",
    "archive": "pip install --target lib",
    "packed": "python -m venv made", "connect": 'pip install "fairsched[spark]" "pyspark[connect]"',
}  # fmt: skip
PIPELINE = {
    "run": 'pip install "fairsched[cli,spark]"', "file": "# orders.toml", "function": "# orders.py",
    "shares": "# shares.py",
}  # fmt: skip


def named(page: str, beginnings: dict[str, str]) -> dict[str, Block]:
    found = blocks_of(page)
    assert len(found) == len(beginnings)
    for block, beginning in zip(found, beginnings.values(), strict=True):
        assert block.code.startswith(beginning)
    return dict(zip(beginnings, found, strict=True))


@pytest.fixture(scope="module")
def spark_page() -> dict[str, Block]:
    return named("spark.md", SPARK)


@pytest.fixture(scope="module")
def pipeline_page() -> dict[str, Block]:
    return named("pipeline.md", PIPELINE)


@pytest.fixture
def filled(broker: Node) -> Iterator[Node]:
    """A broker with the queues of the pages, 50 numbers in each, and one for what comes out."""
    broker.declare(*QUEUES, "orders-out")
    for queue in QUEUES:
        broker.publish(queue, [b"%d" % number for number in range(50)], delivery_mode=2)
    yield broker
    broker.delete(*QUEUES, "orders-out")


@pytest.fixture
def machine(filled: Node, wheel: Path, spark_home: Path, tmp_path: Path) -> Callable[[str], Machine]:
    def make(master: str) -> Machine:
        return Machine(tmp_path, wheel, filled.url, master, spark_home)

    return make


def ends_well(machine: Machine, code: str) -> str:
    process = machine.start(code)
    try:
        said, _ = process.communicate(timeout=600)
    finally:
        kill(process)
    assert process.returncode == 0, said[-5000:]
    return said


def kill(process: subprocess.Popen[str]) -> None:
    """End what a shell started, too."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate(timeout=60)


def check_job(broker: Node, said: str) -> None:
    """Everything went through the job, and Spark had nothing to say of the format."""
    assert broker.count("orders-out") == 150, said[-5000:]
    assert broker.left(*QUEUES) == 0
    assert "replaced" not in said


def test_the_first_job(machine: Callable[[str], Machine], spark_page: dict[str, Block], filled: Node) -> None:
    here = machine("local[2]")
    here.with_another_python3()
    here.write(spark_page["job"])
    ends_well(here, spark_page["connect"].code)
    check_job(filled, ends_well(here, spark_page["install"].code + spark_page["run"].code))


def test_a_spool_in_an_object_store(
    machine: Callable[[str], Machine], spark_page: dict[str, Block], filled: Node, s3: S3Server
) -> None:
    here = machine("local[2]")
    bucket = s3.new_bucket()
    here.write(spark_page["job"], {"/shared/spool/orders": f"{bucket}/spool/orders"})
    server = {STORE: s3.environment["AWS_ENDPOINT_URL_S3"]}
    code = spark_page["install"].code + here.text(spark_page["store"], server) + spark_page["run"].code
    check_job(filled, ends_well(here, code))
    assert not (here.shared / "spool").exists()


def test_queues_in_sql(spark: Any, filled: Node, spark_page: dict[str, Block]) -> None:
    view, count, rest = spark_page["sql"].code.split(";")
    assert not rest.strip()
    spark.sql(view.replace("amqp://app:secret@broker/%2F", filled.url))
    assert {tuple(row) for row in spark.sql(count).collect()} == {(queue, 50) for queue in QUEUES}
    spark.catalog.dropTempView("waiting")


def test_an_archive_for_executors(
    machine: Callable[[str], Machine], spark_page: dict[str, Block], filled: Node
) -> None:
    here = machine("local-cluster[2,1,900]")
    here.write(spark_page["job"])
    check_job(filled, ends_well(here, spark_page["archive"].code))


def test_an_environment_for_executors(
    machine: Callable[[str], Machine], spark_page: dict[str, Block], filled: Node
) -> None:
    here = machine("local-cluster[2,1,900]")
    here.offer("numpy", "pandas", "pika", "pyarrow")
    here.write(spark_page["job"])
    check_job(filled, ends_well(here, spark_page["packed"].code))


def test_a_ready_pipeline(machine: Callable[[str], Machine], pipeline_page: dict[str, Block], filled: Node) -> None:
    here = machine("local[2]")
    for name in ("file", "function"):
        here.write(pipeline_page[name])
    process = here.start(here.text(pipeline_page["run"]))
    table, page = here.shared / "orders" / "table", here.here / "shares.html"
    try:
        eventually(lambda: filled.left(*QUEUES) == 0, 300, "all queues are read")
        commits = here.shared / "orders" / "checkpoint" / "commits"
        eventually(lambda: list(commits.glob("[0-9]*")), 120, "a batch is committed")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C, which the JVM does not heed
        eventually(page.exists, 120, "the report is written")
    finally:
        kill(process)
    assert sorted(pq.read_table(table).column("number").to_pylist()) == sorted([*range(50)] * 3)
    assert {path.name for path in table.glob("queue=*")} == {f"queue={queue}" for queue in QUEUES}


def test_the_same_from_python(
    machine: Callable[[str], Machine], pipeline_page: dict[str, Block], spark_page: dict[str, Block], filled: Node
) -> None:
    here = machine("local[2]")
    here.write(pipeline_page["shares"])
    said = ends_well(here, spark_page["install"].code + "PYSPARK_PYTHON=$(command -v python) python shares.py")
    assert "Row(gold=50, silver=50, free=50, _other=0)" in said
    assert pq.read_table(here.shared / "shares" / "table").num_rows == 150
