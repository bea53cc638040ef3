"""The examples, run as their readers would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.rabbitmq import Node
from support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNT = 40


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "app", "iterate", "tenants", "coroutines", "from_pika", "publish",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("example", "queues", "ends_itself"),
    [
        ("app", ["gold", "free"], False),
        ("from_pika", ["gold", "free"], False),
        ("tenants", ["jobs"], False),
        ("iterate", ["gold", "free"], True),
        ("coroutines", ["gold", "free"], True),
    ],
)
def test_example(broker: Node, example: str, queues: list[str], ends_itself: bool) -> None:
    broker.delete(*queues)
    broker.declare(*queues)
    for queue in queues:
        broker.publish(queue, [b"message"] * COUNT, headers={"tenant": "paying"})
    expected = COUNT * len(queues)
    with subprocess.Popen(
        [sys.executable, EXAMPLES / f"{example}.py"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "FAIRSCHED_URL": broker.url},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(expected)]
        if ends_itself:
            broker.publish(queues[0], [b"last"])
        else:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert all(line.endswith(": message\n") for line in lines)
    eventually(lambda: all(broker.count(queue) == 0 for queue in queues))


def test_publishing_example(broker: Node) -> None:
    broker.delete("orders")
    broker.declare("orders")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "publish.py"],
        stdout=subprocess.PIPE, text=True, check=True, timeout=60, env={**os.environ, "FAIRSCHED_URL": broker.url},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "100 orders are confirmed",
        "returned: 312 NO_ROUTE, routing key no-such-queue",
    ]
    assert broker.count("orders") == 100
