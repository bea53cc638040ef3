"""The list of tests that run on RabbitMQ alone is what is marked so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import onlyrabbitmq

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_list_of_tests_that_need_rabbitmq() -> None:
    page = (ROOT / "docs/reference/rabbitmq-only.md").read_text(encoding="utf-8")
    # To collect all of the tests takes a minute.
    marking = [path for path in (ROOT / "tests").rglob("test_*.py") if b"mark.rabbitmq(" in path.read_bytes()]
    marking.remove(Path(__file__))
    command = [sys.executable, "-m", "pytest", "-p", "support.onlyrabbitmq", "--collect-only", "-q", *map(str, marking)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")])}
    # Of a run on RabbitMQ: one on the embedded broker has left them out already.
    environment.pop("FAIRSCHED_TEST_BROKER", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=240
    )
    marked = [line for line in done.stdout.splitlines() if line.startswith(onlyrabbitmq.ROW)]
    listed = [line for line in page.splitlines() if line.startswith(onlyrabbitmq.ROW)]
    assert marked
    assert listed == marked, "\n".join(["the page should have:", *marked])
