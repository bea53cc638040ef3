"""Spark Connect: everything public gives what it gives in a session of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rabbitmq import Node
from support.spark.running import fill, options_of

import fairsched.spark

SUPPORT = Path(__file__).parents[1] / "support" / "spark"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_everything_public_works_over_connect(
    launch: Any, broker: Node, queues: Callable[..., list[str]], tmp_path: Path
) -> None:
    names = queues(2)
    fill(broker, names, 60)
    broker.declare("connected-sink")
    options = options_of(broker, dict(zip(names, (3, 1), strict=True)), tmp_path / "spool", maxMessagesPerTrigger=40)
    try:
        script = launch("connected", json.dumps(options), broker.url, str(tmp_path), SPARK_TESTING="1")
        said, _ = script.communicate(timeout=500)
        assert script.returncode == 0, said
        [cases] = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
        for name, found, expected in cases:
            assert found == expected, name
        assert broker.count("connected-sink") == 2 + 1 + 120
    finally:
        broker.delete("connected-sink")
    assert sum(broker.count(name) for name in names) == 0
    source = "".join((SUPPORT / f"{name}.py").read_text() for name in ("connected", "smallframes"))
    assert {name for name in fairsched.spark.__all__ if not re.search(rf"\b{name}\(", source)} == set()
