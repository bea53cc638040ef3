"""Fixtures for tests on a real Spark: one session for all of them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rabbitmq import Node
from support.spark.s3server import S3Server

TESTS = Path(__file__).resolve().parents[1]
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            fixtures = set(getattr(item, "fixturenames", ()))
            if fixtures & {"spark", "launch"}:
                item.add_marker(pytest.mark.spark)
            if fixtures & {"spark", "launch", "broker", "mortal", "s3"}:
                item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server without buckets."""
    server = S3Server()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def queues(broker: Node) -> Callable[..., list[str]]:
    """Declares queues that no other test uses."""

    def declare(count: int, **options: Any) -> list[str]:
        number = next(_numbers)
        names = [f"s{number}-{index}" for index in range(count)]
        broker.declare(*names, **options)
        return names

    return declare


@pytest.fixture
def driver(broker: Node, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes drivers over a spool in the test's folder, and stops them."""
    from support.spark.running import Driver, options_of

    made: list[Driver] = []

    def make(quanta: dict[str, int] | list[str], *reader: Any, **more: object) -> Driver:
        weights = quanta if isinstance(quanta, dict) else dict.fromkeys(quanta, 1)
        more.setdefault("planningInterval", "0s")
        made.append(Driver(options_of(broker, weights, tmp_path / "spool", **more), *reader))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def spark_home() -> Path:
    """The home from which Spark starts quickly."""
    from support.spark.classes import make

    return make()


@pytest.fixture(scope="session")
def environment(spark_home: Path) -> dict[str, str]:
    """The environment in which Spark finds Java, fairsched and the modules of these tests."""
    from support.spark.home import BRIEF, find_java

    found = dict(os.environ, JAVA_HOME=find_java(), PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(spark_home))
    found["SPARK_LAUNCHER_OPTS"] = BRIEF
    paths = [str(TESTS), str(TESTS.parent / "src"), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return found


@pytest.fixture
def launch(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts one of the scripts in `support/spark` in a session of its own, and ends all of it."""
    from support.spark.launched import end, launch

    started: list[subprocess.Popen[str]] = []

    def start(
        script: str, *arguments: str, cwd: Path | None = None, stderr: int | None = None, **more: str
    ) -> subprocess.Popen[str]:
        started.append(launch(script, *arguments, environment={**environment, **more}, cwd=cwd, stderr=stderr))
        return started[-1]

    yield start
    for process in started:
        end(process)


@pytest.fixture(scope="session")
def spark(environment: dict[str, str]) -> Iterator[Any]:
    """One session for all tests; a task may fail three times in it."""
    from support.spark.session import start

    before = dict(os.environ)
    os.environ.update(environment)
    session = start("local[2,4]")
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)
