"""Memory: a task's is bounded whatever its share. That nothing grows with time, test_soak.py shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.rabbitmq import Node
from spark.running import options_of

MEGABYTE = 1 << 20


def measure(environment: dict[str, str], options: dict[str, str], count: int) -> dict[str, Any]:
    script = Path(__file__).parent / "measured.py"
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(options), str(count)], env=environment, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_task_holds_a_segment_however_large_its_share(
    environment: dict[str, str], broker: Node, queues: Callable[..., list[str]], tmp_path: Path
) -> None:
    names = queues(2)
    for name in names:
        broker.publish(name, [b"x" * 200] * 100_000)
    options = options_of(
        broker, dict.fromkeys(names, 1), tmp_path / "spool", maxMessagesPerTrigger=200_000, numPartitions=1
    )
    found = measure(environment, options, 200_000)
    assert found["rows"] == 200_000
    assert found["above"] <= 200 * MEGABYTE
