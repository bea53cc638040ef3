"""A packed environment is all that executors need."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.distributions import ROOT
from support.rabbitmq import Node
from support.spark.packing import pack_environment
from support.spark.queries import from_files
from support.spark.running import fill, options_of

from fairsched.spark.pipeline.home import link

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def printed_by(driver: Any) -> list[Any]:
    """Return what a script printed as JSON, once it has ended well."""
    said, _ = driver.communicate(timeout=600)
    assert driver.returncode == 0, said
    return [json.loads(line) for line in said.splitlines() if line.startswith("[")]


def test_executors_have_all_of_us_from_a_packed_environment(
    spark: Any, launch: Any, wheel: Path, broker: Node, queues: Callable[..., list[str]], tmp_path: Path
) -> None:
    archive = pack_environment(tmp_path, wheel)
    # The planner of a source is Spark's too: it runs the same relative path, in the driver's folder.
    folder = tmp_path / "driver"
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "env", filter="tar")
    names = queues(4)
    expected = fill(broker, names, 100)
    options = options_of(broker, dict.fromkeys(names, 1), tmp_path / "spool", maxMessagesPerTrigger=200)
    driver = launch(
        "packed", str(archive), json.dumps(options), str(tmp_path / "checkpoint"), str(tmp_path / "sink"), cwd=folder,
        SPARK_HOME=str(link(tmp_path / "home")), PYSPARK_PYTHON="./env/bin/python",
    )  # fmt: skip
    whence, cases = printed_by(driver)
    assert len(whence) == 4
    for one in whence:
        work, _, rest = one["engine"].partition("/env/lib/")
        assert "/home/work/app-" in work
        assert "/site-packages/fairsched/_core." in rest
        assert one["found by name"].startswith(f"{work}/env/lib/")
        assert one["python"] == f"{work}/env/bin/python"
        assert one["arrow"].startswith(f"{work}/env/")
        assert [path for path in one["path"] if path.startswith((f"{ROOT}/src", f"{ROOT}/tests"))] == []
    assert [name for name, _found, _expected in cases] == [
        "placed", "ordered", "finished", "marked", "reported", "swept",
    ]  # fmt: skip
    for name, there, here in cases:
        assert there == here, name
    placed, marked = cases[0][1], cases[3][1]
    assert set(placed.values()) == {0, 1}
    assert {False, True} == set(marked)
    found = from_files(spark, tmp_path / "sink")
    assert len(found) == 400
    assert set(found) == expected
    assert sum(broker.count(name) for name in names) == 0
