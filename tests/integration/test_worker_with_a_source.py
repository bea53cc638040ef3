"""`fairsched run` with a source of queues: what comes and goes is in its state, figures, explanations and metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_ports
from support.rabbitmq import Broker
from support.waiting import eventually

APP = """
from fairsched import App, QueueSource

app = App(prefetch=20)

@app.consumer("fixed", weight=2)
def fixed(message):
    print("handled", message.queue, message.body.decode(), flush=True)

@app.consumer(QueueSource(lambda: {"unused": 1}))
def handle(message):
    fixed(message)
"""
SETTINGS = """
queues = {{fixed = {fixed}}}
prefetch = {prefetch}
control = "control"
metrics_port = {metrics}
health_port = {health}

[queue_source]
file = "{source}"
every = "100ms"
"""


class Worker:
    """The command, in a folder of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.metrics_port, self.health_port = free_ports(2)
        self.environment = {**os.environ, "FAIRSCHED_URL": url}
        (folder / "worker.py").write_text(APP)
        self.configure()
        self.name({"a": 1})
        self.output = folder / "output"
        with self.output.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairsched.cli", "run", "worker:app"], cwd=folder, stdin=subprocess.DEVNULL,
                env=self.environment, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def configure(self, fixed: int = 2, prefetch: int = 20, source: str = "queues.json") -> None:
        ports = {"metrics": self.metrics_port, "health": self.health_port}
        text = SETTINGS.format(fixed=fixed, prefetch=prefetch, source=source, **ports)
        (self.folder / "fairsched.toml").write_text(text)

    def name(self, queues: dict[str, Any]) -> None:
        """Have the source name queues; the file is never half written."""
        new = self.folder / "new.json"
        new.write_text(json.dumps(queues))
        new.replace(self.folder / "queues.json")

    def ask(self, *arguments: str, code: int = 0) -> str:
        """Run another command against this worker."""
        done = subprocess.run(
            [sys.executable, "-m", "fairsched.cli", *arguments], cwd=self.folder, env=self.environment, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=50,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("control", "state"))
        return found

    def page(self, port: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    def consumed(self) -> dict[str, bool]:
        """Return what the metrics say of the queues."""
        assert self.process.poll() is None, self.said()
        prefix = 'fairsched_queue_consumed{queue="'
        lines = self.page(self.metrics_port, "/metrics").splitlines()
        found = [line.removeprefix(prefix).split('"} ') for line in lines if line.startswith(prefix)]
        return {name: float(value) == 1.0 for name, value in found}

    def said(self) -> str:
        return self.output.read_text()

    def reload(self, *said: str) -> None:
        before = len(self.said())
        self.process.send_signal(signal.SIGHUP)
        for line in said:
            eventually(lambda line=line: line in self.said()[before:], what=line)


@pytest.fixture
def worker(broker: Broker, tmp_path: Path) -> Iterator[Worker]:
    broker.declare("fixed", "a", "b")
    made = Worker(broker.url, tmp_path)
    try:
        eventually(lambda: made.consumed() == {"fixed": True, "a": True}, what="it consumes")
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        broker.delete("fixed", "a", "b")


def test_queues_that_come_and_go_are_seen_from_outside(broker: Broker, worker: Worker) -> None:
    broker.publish("a", [b"1"])
    eventually(lambda: "handled a 1" in worker.said())
    assert "'b'" in worker.ask("explain", "b", code=2)

    worker.name({"a": 1, "b": {"weight": 5}})
    eventually(lambda: worker.consumed() == {"fixed": True, "a": True, "b": True})
    broker.publish("b", [b"2"])
    eventually(lambda: "handled b 2" in worker.said())
    assert worker.state()["consuming"] == {"fixed": True, "a": True, "b": True}
    assert rows(worker) == {"fixed": 2, "a": 1, "b": 5}
    assert "'b'" in worker.ask("explain", "b")
    assert '"weight": 5' in worker.ask("explain", "b", "--json")
    metrics = worker.page(worker.metrics_port, "/metrics")
    assert 'fairsched_served_messages_total{queue="b"} 1.0' in metrics
    assert 'fairsched_prefetch_limit{queue="b"}' in metrics

    worker.name({"b": {"weight": 5}})
    eventually(lambda: worker.consumed() == {"fixed": True, "b": True})
    broker.publish("a", [b"3"])
    assert worker.state()["consuming"] == {"fixed": True, "b": True}
    assert rows(worker) == {"fixed": 2, "b": 5}
    assert "'a'" in worker.ask("explain", "a", code=2)
    assert 'queue="a"' not in worker.page(worker.metrics_port, "/metrics")
    assert worker.page(worker.health_port, "/readyz")
    assert broker.count("a") == 1

    worker.name({"a": 1})
    eventually(lambda: "handled a 3" in worker.said())
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 0
    assert "Traceback" not in worker.said()


def rows(worker: Worker) -> dict[str, int]:
    """Return the weight of each row of `fairsched top`."""
    found = json.loads(worker.ask("top", "--once", "--json"))
    assert found["known"] == len(found["rows"])
    return {row["name"]: row["weight"] for row in found["rows"]}


def test_a_reload_leaves_the_queues_of_the_source(worker: Worker) -> None:
    worker.name({"a": 3, "b": 5})
    eventually(lambda: worker.consumed() == {"fixed": True, "a": True, "b": True})
    worker.configure(fixed=7, prefetch=30)
    worker.reload("SIGHUP: weights are now fixed=7", "SIGHUP: without effect until the next start: prefetch")
    eventually(lambda: rows(worker) == {"fixed": 7, "a": 3, "b": 5})
    worker.configure(fixed=7, source="others.json")
    worker.reload("SIGHUP: no weight has changed", "SIGHUP: without effect until the next start: queue_source")
    # The source is asked as before.
    worker.name({"a": 4})
    eventually(lambda: worker.consumed() == {"fixed": True, "a": True} and rows(worker) == {"fixed": 7, "a": 4})
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 0
    assert "Traceback" not in worker.said()


def test_a_source_that_becomes_invalid_changes_nothing(worker: Worker) -> None:
    (worker.folder / "queues.json").write_text('{"a": 1, "b": 1, "a": 2}')
    text = "names in an object of JSON must differ, got 'a' more than once"
    eventually(lambda: text in worker.said())
    assert worker.state()["consuming"] == {"fixed": True, "a": True}
    worker.name({"a": 1, "b": 1})
    eventually(lambda: worker.consumed() == {"fixed": True, "a": True, "b": True})
