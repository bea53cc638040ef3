"""A spool on S3, over HTTP: a name is created once, batches are read again, and queries lose and repeat nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.rabbitmq import Node
from support.spark.faulty import fault, reached
from support.spark.queries import from_files
from support.spark.racing import race
from support.spark.running import fill, options_of
from support.spark.s3server import CARELESS, SECRET, S3Server

from fairsched.errors import ConfigurationError
from fairsched.spark.source import store
from fairsched.spark.source.spool import BatchGone, Segment, Spool, SpoolLost
from fairsched.spark.source.store import check, open_store


def segment(body: bytes, count: int = 1) -> Segment:
    rows = pa.RecordBatch.from_pydict({"body": pa.array([body] * count, pa.binary())})
    return Segment(rows, {"q": count}, {"q": count * len(body)}, {"q": 7})


@pytest.fixture
def server(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, and the way to it in this process's environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def test_of_racing_processes_one_creates_each_name(server: S3Server, environment: dict[str, str]):
    race(f"{server.new_bucket()}/spool", 2, {**environment, **server.environment})


def test_a_batch_is_published_replayed_and_removed(server: S3Server):
    place = f"{server.new_bucket()}/team/spool"
    planner, first, second = (Spool(place, "e") for _ in range(3))
    planner.refuse_foreign(strict=True)
    planner.open_batch(1, strict=True)
    assert first.published(1, 0, 1) is None
    assert first.publish(1, 0, 1, segment(b"first", 3))
    assert not second.publish(1, 0, 1, segment(b"second"))
    assert second.published(1, 0, 1).batch.to_pydict() == {"body": [b"first"] * 3}
    assert planner.counts(1, 0) == {"q": 3}
    with pytest.raises(SpoolLost, match="holds epoch e"):
        Spool(place, "f").refuse_foreign(strict=True)
    [found] = planner.close_until(1)
    assert (found.sizes, found.batch.num_rows) == ({"q": 15}, 0)
    with pytest.raises(BatchGone):
        second.publish(1, 0, 2, segment(b"late"))
    planner.open_batch(2, strict=True)
    planner.close_until(2)
    assert open_store(place).listed() == ["e"]
    assert open_store(place).listed("e") == ["epoch"]


def test_what_a_large_segment_says_of_itself_is_read_without_its_rows(server: S3Server):
    spool = Spool(f"{server.new_bucket()}/spool", "e")
    spool.open_batch(1, strict=True)
    assert spool.publish(1, 0, 1, segment(b"x" * 1000, 4000))
    assert spool.counts(1, 0) == {"q": 4000}
    assert spool.published(1, 0, 1).batch.num_rows == 4000


def test_a_server_that_ignores_the_condition_is_found_out(server: S3Server):
    place = f"{server.new_bucket(CARELESS)}/spool"
    with pytest.raises(ConfigurationError, match="must refuse to create a file that exists"):
        check(open_store(place), place)
    assert open_store(place).listed() == []


def test_a_driver_that_would_overwrite_is_refused_on_executors_too(server: S3Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "version", lambda _package: "2024.10.0")
    with pytest.raises(ConfigurationError, match=r"needs s3fs 2024\.12 or newer.*got 2024\.10\.0"):
        open_store("s3://bucket/spool")


def test_a_place_that_cannot_be_reached_is_an_error_without_secrets(server: S3Server):
    place = "s3://no-such-bucket/spool"
    with pytest.raises(ConfigurationError, match=r"'s3://no-such-bucket/spool'.*bucket does not exist") as caught:
        Spool(place, "e").refuse_foreign(strict=True)
    assert SECRET not in str(caught.value)


def source(node: Node, names: list[str], place: str, more: str = "") -> dict[str, str]:
    faults = {"fault": more} if more else {}
    return options_of(node, dict.fromkeys(names, 1), place, maxMessagesPerTrigger=100, numPartitions=2, **faults)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_queries_lose_and_repeat_nothing(
    server: S3Server, spark: Any, launch: Any, broker: Node, queues: Callable[..., list[str]], tmp_path: Path
) -> None:
    place = f"{server.new_bucket()}/orders"
    names = queues(4)
    expected = fill(broker, names, 100)
    # Workers die in every batch when they have acknowledged, so half of the rows are read again from the bucket.
    options = source(broker, names, place, fault("acknowledged", "exit", tmp_path, 1, 4))
    one = {"options": options, "checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
    driver = launch("drained", json.dumps([one]), **server.environment)
    driver.communicate(timeout=500)
    assert driver.returncode == 0
    assert reached(tmp_path) == [f"acknowledged/{number}" for number in range(1, 5)]
    found = from_files(spark, tmp_path / "sink")
    assert len(found) == 400
    assert set(found) == expected
    assert broker.left(*names) == 0
    # Only the last batch, which the next run would commit, is still there.
    [epoch] = open_store(place).listed()
    assert open_store(place).listed(epoch) == ["0000000004", "epoch"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_on_a_place_that_overwrites_is_refused(
    s3: S3Server, launch: Any, broker: Node, queues: Callable[..., list[str]], tmp_path: Path
) -> None:
    place = f"{s3.new_bucket(CARELESS)}/orders"
    names = queues(1)
    fill(broker, names, 10)
    one = {"options": source(broker, names, place), "checkpoint": str(tmp_path / "c"), "sink": str(tmp_path / "s")}
    driver = launch("drained", json.dumps([one]), stderr=subprocess.STDOUT, **s3.environment)
    said, _ = driver.communicate(timeout=500)
    assert driver.returncode != 0
    assert f"spoolLocation '{place}' must refuse to create a file that exists" in said
    assert SECRET not in said
    assert broker.count(names[0]) == 10
