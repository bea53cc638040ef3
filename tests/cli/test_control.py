"""A worker that is asked and told things while it runs: ``fairsched run --control`` on the embedded broker."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.waiting import eventually

from fairsched import Broker, Publisher
from fairsched.cli.broker import Session
from fairsched.cli.commands.top import _views
from fairsched.cli.control import Control
from fairsched.cli.controlsocket import ask
from fairsched.cli.group import cli
from fairsched.consumer import App, ConsumerState, Explanation

WORKER = """
import os
from fairsched.consumer import App
from support.waiting import eventually

app = App({options})

@app.consumer("gold", weight=40)
@app.consumer("free", weight=4)
def handle(message):
    eventually(lambda: os.path.exists("go"), 300)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        with Session(broker.url) as session:
            for queue in ("gold", "free"):
                session.declare(queue, {})
        yield broker.url


class Worker:
    """A running ``fairsched run --control``, whose handlers wait until they may go on."""

    def __init__(self, directory: Path, url: str, options: str = "", control: str = "worker.sock") -> None:
        (directory / "worker.py").write_text(WORKER.format(options=options))
        self.directory = directory
        self.path = str(directory / control)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "run", "worker:app", "--control", control],
            cwd=directory,
            env={**os.environ, "FAIRSCHED_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        eventually(lambda: self.process.poll() is not None or self.state().get("ready"), what="a worker that is ready")
        assert self.process.poll() is None, self.process.stderr
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def state(self) -> dict[str, Any]:
        try:
            return ask(self.path, {"command": "state"})["result"]
        except OSError:
            return {}

    def go_on(self) -> None:
        (self.directory / "go").touch()

    def command(self, *arguments: str) -> Any:
        return CliRunner().invoke(cli, [*arguments, "--control", self.path])

    def said(self, *arguments: str) -> str:
        result = self.command(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout


def publish(url: str, queue: str, count: int, **values: Any) -> None:
    with Publisher(url) as publisher:
        for _ in range(count):
            publisher.publish(b"x", queue, **values)


def test_a_worker_that_is_looked_at_and_changed(tmp_path: Path, url: str) -> None:
    publish(url, "gold", 30)
    publish(url, "free", 20)
    with Worker(tmp_path, url) as worker:
        eventually(lambda: worker.state()["buffered"] == 49)

        said = worker.said("explain", "gold")
        assert said.startswith("queue 'gold' waits: ")
        assert "(weight 40)" in said
        found = json.loads(worker.said("explain", "free", "--json"))
        assert (found["name"], found["weight"], found["unsettled"]) == ("free", 4, 20)
        assert "queue 'free' waits: " in found["sentence"]

        found = json.loads(worker.said("top", "--once", "--json"))
        assert [(row["name"], row["rate"], row["state"]) for row in found["rows"]] == [
            ("gold", None, "waits"), ("free", None, "waits")
        ]  # fmt: skip
        assert {row["name"]: row["share"] for row in found["rows"]} in (
            {"gold": 1.0, "free": 0.0}, {"gold": 0.0, "free": 1.0}
        )  # fmt: skip
        shown = worker.said("top")  # no terminal here: once
        assert "2 of 2 queues consumed" in shown
        assert all(name in shown for name in ("gold", "free", "waits"))

        assert worker.said("control", "weight", "free", "80") == "queue free: weight 80\n"
        assert json.loads(worker.said("explain", "free", "--json"))["weight"] == 80
        assert worker.said("control", "pause", "gold") == "paused: gold\n"
        assert json.loads(worker.said("control", "state"))["paused"] == ["gold"]
        with Session(url) as session:
            eventually(lambda: session.find("gold").consumers == 0)
        worker.go_on()
        eventually(lambda: json.loads(worker.said("control", "stats"))["acked"] == 50)
        publish(url, "gold", 10)
        publish(url, "free", 10)
        eventually(lambda: json.loads(worker.said("control", "stats"))["acked"] == 60)
        assert [row["state"] for row in json.loads(worker.said("top", "--once", "--json"))["rows"]] in (
            ["paused", "idle"], ["paused", "on hold"], ["idle", "paused"], ["on hold", "paused"]
        )  # fmt: skip
        assert worker.said("control", "resume", "gold") == "paused: nothing\n"
        eventually(lambda: json.loads(worker.said("control", "stats"))["slots"]["gold"]["served"] == 40)

        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        assert not os.path.exists(worker.path)
        result = worker.command("top", "--once")
        assert result.exit_code == 4
        assert "no worker answers at" in result.output


def test_what_is_refused_changes_nothing(tmp_path: Path, url: str) -> None:
    with Worker(tmp_path, url) as worker:
        for arguments, said in [
            (("explain", "silver"), "queue 'silver' is not consumed; there are 'free', 'gold'"),
            (("control", "weight", "gold", "0"), "weight of 'gold' must be a whole number of at least 1, got 0"),
            (("control", "weight", "silver", "1"), "queue 'silver' is not consumed"),
            (("control", "pause", "silver"), "queue 'silver' is not consumed"),
        ]:
            result = worker.command(*arguments)
            assert result.exit_code == 2
            assert said in result.output
        assert worker.state()["paused"] == []


def test_a_worker_that_was_killed_and_two_at_once(tmp_path: Path, url: str) -> None:
    with Worker(tmp_path, url) as worker:
        second = Worker(tmp_path, url)
        _, errors = second.process.communicate(timeout=60)
        assert second.process.returncode == 2
        assert "worker.sock'; each worker needs its own path" in errors
        assert worker.state()["ready"]
        worker.process.kill()
        worker.process.wait()
    assert os.path.exists(worker.path)
    with Worker(tmp_path, url) as another:
        assert another.state()["ready"]


def test_tenants(tmp_path: Path, url: str) -> None:
    for tenant in ("a", 7, "\x1b[2J", "x" * 500):
        publish(url, "gold", 5, headers={"tenant": tenant})
    with Worker(tmp_path, url, options="key='header:tenant', tenants={'a': 2}") as worker:
        eventually(lambda: worker.state()["buffered"] == 19)
        assert worker.said("explain", "7").startswith("tenant 7 waits: ")
        assert worker.said("control", "weight", "7", "3") == "tenant 7: weight 3\n"
        assert json.loads(worker.said("explain", "7", "--json"))["weight"] == 3
        found = json.loads(worker.said("top", "--once", "--json"))
        assert (found["kind"], found["known"]) == ("tenant", 4)
        assert {row["name"] for row in found["rows"]} == {"a", "7", "\x1b[2J", "x" * 500}
        shown = worker.said("top", "--once")
        assert "\x1b" not in shown
        result = worker.command("explain", "nobody")
        assert result.exit_code == 2
        assert "tenant 'nobody' has no buffered messages" in result.output
        assert "\x1b" not in result.output
        worker.go_on()
        eventually(lambda: json.loads(worker.said("control", "stats"))["acked"] == 20)


def test_shares_and_rates_are_of_what_was_served_in_between(tmp_path: Path, url: str) -> None:
    publish(url, "free", 10)
    with Worker(tmp_path, url) as worker:
        eventually(lambda: worker.state()["buffered"] == 9)
        looks = _views(worker.path, 0.001)
        first = {row["name"]: row for row in next(looks)["rows"]}
        assert (first["free"]["share"], first["gold"]["share"], first["free"]["rate"]) == (1.0, 0.0, None)
        assert {row["share"] for row in next(looks)["rows"]} == {None}  # nothing was served meanwhile
        worker.go_on()
        eventually(lambda: json.loads(worker.said("control", "stats"))["acked"] == 10)
        third = {row["name"]: row for row in next(looks)["rows"]}
        assert (third["free"]["share"], third["gold"]["share"], third["gold"]["rate"]) == (1.0, 0.0, 0.0)
        assert third["free"]["rate"] > 0


def test_the_live_table_until_ctrl_c(tmp_path: Path, url: str) -> None:
    publish(url, "gold", 5)
    with Worker(tmp_path, url) as worker:
        ours, theirs = pty.openpty()
        arguments = ["top", "--control", worker.path, "--interval", "10ms"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        process = subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", *arguments], stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        shown = bytearray()
        try:
            while shown.count(b"gold") < 3:  # drawn again and again
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # which is how the end of a terminal is read
                while data := os.read(ours, 65536):
                    shown += data
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        assert b"Traceback" not in shown
        worker.go_on()
        eventually(lambda: json.loads(worker.said("control", "stats"))["acked"] == 5)


def test_without_a_socket() -> None:
    result = CliRunner().invoke(cli, ["explain", "gold"])
    assert result.exit_code == 2
    assert "which worker? Give --control PATH" in result.output


def test_the_settings_say_where_the_socket_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairsched.toml").write_text('control = "from-the-file.sock"\n')
    result = CliRunner().invoke(cli, ["top", "--once"])
    assert result.exit_code == 4
    assert "no worker answers at 'from-the-file.sock': No such file or directory" in result.output


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (None, "a request is an object with a command, one of state, stats, overview, explain, weight, pause, resume"),
        ([], "an object with a command"),
        ({}, "an object with a command"),
        ({"command": "quit"}, "an object with a command"),
        ({"command": ["state"]}, "unhashable"),
        ({"command": "state", "name": "x"}, "state takes nothing, got name"),
        ({"command": "explain"}, "explain takes name, got nothing"),
        ({"command": "weight", "name": "gold"}, "weight takes name and weight, got name"),
        ({"command": "explain", "name": "gold"}, "no consumer of this app is running"),
        ({"command": "overview"}, "no consumer of this app is running"),
    ],
)
def test_requests_that_are_refused(request_: Any, said: str) -> None:
    assert said in Control(App("amqp://127.0.0.1:9"))(request_)["error"]


def test_the_state_while_no_consumer_runs() -> None:
    found = Control(App("amqp://127.0.0.1:9"))({"command": "state"})["result"]
    assert set(found) == {*ConsumerState.__dataclass_fields__, "ready", "alive"}
    assert found["connected"] is False


def test_every_field_can_be_sent() -> None:
    app = App("amqp://127.0.0.1:9", key="header:tenant", tenants={"a": 1})
    app.consumer("gold")(print)
    app._consumer = app.make_consumer()
    control = Control(app)
    for name in ("a", "gold"):
        found = control({"command": "explain", "name": name})["result"]
        assert set(found) == {*Explanation.__dataclass_fields__, "sentence"}
    for request_ in ({"command": "overview"}, {"command": "stats"}, {"command": "state"}):
        json.dumps(control(request_)["result"], allow_nan=False)
    assert "hashable, got []" in control({"command": "explain", "name": []})["error"]
    assert "queue {} is not consumed" in control({"command": "pause", "queue": {}})["error"]
    assert "got '4'" in control({"command": "weight", "name": "a", "weight": "4"})["error"]
