"""Clients of other projects, unchanged, on both brokers. `make test` installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.wireclient import Name, Server

# Some of the clients are compiled, or take long to start; `make test-quick` needs neither.
pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).parents[2] / "support" / "clients"


def finished(command: Sequence[str], **variables: str) -> str:
    """Run a program to its end, and return what it printed."""
    # Warnings of theirs are not ours.
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": paths, **variables}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env=environment
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("blocking_pika", []),
        ("callback_pika", ["select"]),
        ("callback_pika", ["asyncio"]),
        ("callback_pika", ["gevent"]),
        ("aio_pika_client", []),
        ("aiormq_client", []),
        ("kombu_client", []),
        ("amqpstorm_client", []),
        ("rabbitpy_client", []),
        ("celery_client", []),
        ("dramatiq_client", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_client_in_python(server: Server, script: str, arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), server.url, *arguments]
    assert finished(command, BROKER_URL=server.url, DONE=str(tmp_path / "done")).endswith("fine\n")


@pytest.mark.parametrize("script", ["celery_client", "dramatiq_client"])
def test_a_worker_with_fair_shares_behaves_as_before(server: Server, script: str, tmp_path: Path) -> None:
    variables = {"BROKER_URL": server.url, "DONE": str(tmp_path / "done"), "FAIR_SHARES": "1"}
    assert finished([sys.executable, str(SCRIPTS / f"{script}.py"), server.url], **variables).endswith("fine\n")


def test_the_tools_of_librabbitmq(server: Server, name: Name) -> None:
    assert shutil.which("amqp-publish"), "install amqp-tools: tools/install-servers librabbitmq"
    queue, url = name(), ["--url", server.url]
    assert finished(["amqp-declare-queue", *url, "--queue", queue]) == f"{queue}\n"
    for body in ("1", "2"):
        finished(["amqp-publish", *url, "--routing-key", queue, "--body", body, "--persistent"])
    assert finished(["amqp-get", *url, "--queue", queue]) == "1"
    assert finished(["amqp-consume", *url, "--queue", queue, "--count", "1", "cat"]) == "2"
    assert finished(["amqp-delete-queue", *url, "--queue", queue]) == "0\n"


def test_a_client_in_c(server: Server, name: Name, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "benchmarks" / "loopback" / "client.c"
    program = str(tmp_path / "client")
    built = subprocess.run(["gcc", "-o", program, source, "-lrabbitmq"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{built.stderr}\nfor librabbitmq: tools/install-servers librabbitmq"
    queue, port = name(), str(server.port)
    finished([program, "fill", port, queue, "1000", "100"])
    finished([program, "consume", port, queue, "1000", "100", "1"])
    finished([program, "publish", port, queue, "1000", "1024", "100"])
    finished([program, "consume", port, queue, "1000", "0", "0"])
