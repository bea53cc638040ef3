"""The command line against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.rabbitmq import Node, on_embedded
from support.waiting import eventually

from fairsched.cli.broker import Session
from fairsched.cli.brokerexperiment import on_broker
from fairsched.cli.experiment import Plan
from fairsched.cli.group import cli
from fairsched.errors import ConnectionFailed, QueueNotFound

WORKER = """
import sys
from fairsched.consumer import App

app = App()

@app.consumer({gold!r}, weight=40)
def gold(message):
    print("gold", message.body.decode(), flush=True)

@app.consumer({free!r}, weight=4)
def free(message):
    print("free", message.body.decode(), flush=True)
    if message.body == b"leave":
        raise SystemExit(7)
    if message.body == b"fail":
        raise ValueError("a bad message")
"""


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


def queues_of(broker: Node) -> set[str]:
    return set(broker.messages())


# check ------------------------------------------------------------------------------------------------------------


def test_check_finds_broker_and_queues(broker: Node, new_queue: Callable[..., str]) -> None:
    gold, free = new_queue(), new_queue()
    broker.publish(gold, [b"x"] * 3)
    result = command("check", "--url", broker.url, "-Q", f"{gold}=40,{free}=4")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("\u2713 configuration: url='amqp://guest:******@127.0.0.1:")
    assert lines[1].startswith("\u2713 broker amqp://guest:******@127.0.0.1:")
    assert (" fairsched " if on_embedded() else " RabbitMQ ") in lines[1]
    assert lines[2:] == [
        f"\u2713 queue {gold}: 3 messages ready, 0 consumers",
        f"\u2713 queue {free}: 0 messages ready, 0 consumers",
    ]
    assert "guest:guest" not in result.output


def test_check_goes_on_after_a_missing_queue(broker: Node, new_queue: Callable[..., str]) -> None:
    there = new_queue()
    result = command("check", "--url", broker.url, "-Q", "not-there", "-Q", there)
    assert result.exit_code == 6
    lines = result.stdout.splitlines()
    assert lines[2].startswith("\u2717 queue not-there: ")
    assert "NOT_FOUND" in lines[2]
    assert lines[3].startswith(f"\u2713 queue {there}: ")


@pytest.mark.parametrize("change", [("guest:guest", "guest:wr0ng"), ("/%2F", "/no-such-vhost")])
def test_check_of_a_broker_that_refuses(broker: Node, change: tuple[str, str]) -> None:
    result = command("check", "--url", broker.url.replace(*change), "-Q", "any")
    assert result.exit_code == 4
    assert result.stdout.splitlines()[1].startswith("\u2717 broker 127.0.0.1:")
    assert "wr0ng" not in result.output


def test_check_of_one_broker_that_is_there_and_one_that_is_not(broker: Node) -> None:
    result = command("check", "--url", "amqp://127.0.0.1:1", "--url", broker.url, "-Q", "not-there")
    assert result.exit_code == 4  # brokers come before queues
    assert [line[0] for line in result.stdout.splitlines()] == list("\u2713\u2717\u2713\u2717")


# demo -------------------------------------------------------------------------------------------------------------


@pytest.mark.steady
def test_demo_over_the_broker(broker: Node) -> None:
    before = queues_of(broker)
    # Windows that last for 200 ms: what else the machine does must not decide whether this passes.
    result = command("demo", "--url", broker.url, "--json", "--messages", "20000", "--prefetch", "400")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert list(found) == ["queues", "jain", "total", "seconds"]
    assert [row["name"] for row in found["queues"]] == [f"p{index}" for index in range(10)]
    assert found["total"] == 20_000
    assert max(abs(row["error"]) for row in found["queues"]) < 0.03
    assert found["jain"] >= 0.9999
    assert queues_of(broker) == before


def test_demo_deletes_its_queues_when_it_fails(broker: Node) -> None:
    before = queues_of(broker)
    during: set[str] = set()

    def fail(_served: object, _seconds: float) -> None:
        during.update(queues_of(broker))
        raise RuntimeError("no more ink")

    with pytest.raises(RuntimeError, match="no more ink"):
        on_broker(broker.url)(Plan(3000, 1e-3, 50), fail)
    assert len(during - before) == 10
    assert queues_of(broker) == before


@pytest.mark.parametrize(
    ("arguments", "queues"),
    [
        (["demo", "--messages", "20000", "--service-time", "10ms"], 10),
        # Its first one.
        (["bench", "--flood", "5000", "--tenants", "3", "--service-time", "10ms"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_queues_are_deleted_after_an_interrupt(broker: Node, arguments: list[str], queues: int) -> None:
    before = queues_of(broker)
    process = subprocess.Popen(
        [sys.executable, "-m", "fairsched.cli", *arguments, "--url", broker.url],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: len(queues_of(broker) - before) == queues, what="its queues are declared")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1  # click's code for an interrupt
    finally:
        process.kill()
        process.wait()
    assert queues_of(broker) == before


# bench ------------------------------------------------------------------------------------------------------------


def test_bench_over_the_broker(broker: Node) -> None:
    before = queues_of(broker)
    plan = ["--flood", "60", "--tenants", "3", "--each", "2"]
    result = command("bench", "--url", broker.url, "--json", *plan)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["name"] for one in found["contestants"]] == ["FIFO", "pika", "round robin", "fairsched", "lanes"]
    assert "@" not in found["broker"]
    assert queues_of(broker) == before


# run --------------------------------------------------------------------------------------------------------------


class Worker:
    """A running ``fairsched run``, its output in a file."""

    def __init__(self, directory: Path, broker: Node, queues: tuple[str, str], *arguments: str) -> None:
        (directory / "worker.py").write_text(WORKER.format(gold=queues[0], free=queues[1]))
        self._output = directory / "output"
        environment = {**os.environ, "FAIRSCHED_URL": broker.url}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairsched.cli", "run", "worker:app", *arguments],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_handles_until_a_signal(
    tmp_path: Path, broker: Node, new_queue: Callable[..., str], number: signal.Signals
) -> None:
    gold, free = new_queue(), new_queue()
    broker.publish(gold, [b"%d" % index for index in range(100)])
    broker.publish(free, [b"%d" % index for index in range(10)])
    with Worker(tmp_path, broker, (gold, free), "--workers", "2") as worker:
        eventually(lambda: worker.output.count("gold") == 100 and worker.output.count("free") == 10)
        worker.process.send_signal(number)
        assert worker.process.wait(30) == 0
    assert "finishing" in worker.output
    assert broker.count(gold) == broker.count(free) == 0
    assert "guest:guest" not in worker.output


def test_run_goes_on_after_a_failing_message(tmp_path: Path, broker: Node, new_queue: Callable[..., str]) -> None:
    gold, free = new_queue(), new_queue()
    broker.publish(free, [b"fail", b"next"])
    (tmp_path / "fairsched.toml").write_text('on_error = "reject"\n')
    with Worker(tmp_path, broker, (gold, free)) as worker:
        eventually(lambda: "free next" in worker.output)
        worker.process.terminate()
        assert worker.process.wait(30) == 0
    assert "a bad message" in worker.output
    assert broker.count(free) == 0


def test_run_of_some_queues(tmp_path: Path, broker: Node, new_queue: Callable[..., str]) -> None:
    gold, free = new_queue(), new_queue()
    broker.publish(gold, [b"x"])
    broker.publish(free, [b"x"])
    with Worker(tmp_path, broker, (gold, free), "-Q", free) as worker:
        eventually(lambda: "free x" in worker.output)
        worker.process.terminate()
        assert worker.process.wait(30) == 0
    assert "gold x" not in worker.output
    assert broker.count(gold) == 1


def test_run_ends_with_the_application(tmp_path: Path, broker: Node, new_queue: Callable[..., str]) -> None:
    gold, free = new_queue(), new_queue()
    broker.publish(free, [b"leave"])
    with Worker(tmp_path, broker, (gold, free)) as worker:
        assert worker.process.wait(30) == 5
    assert "Error: the application failed: SystemExit(7)" in worker.output


def test_run_without_its_queue(tmp_path: Path, broker: Node, new_queue: Callable[..., str]) -> None:
    with Worker(tmp_path, broker, (new_queue(), "not-there")) as worker:
        assert worker.process.wait(30) == 6
    assert "not-there" in worker.output


def test_run_with_a_wrong_password(tmp_path: Path, broker: Node) -> None:
    url = broker.url.replace("guest:guest", "guest:wr0ng")
    with Worker(tmp_path, broker, ("gold", "free"), "--url", url) as worker:
        assert worker.process.wait(30) == 4
    assert "wr0ng" not in worker.output


# Session ----------------------------------------------------------------------------------------------------------


def test_session_declares_fills_finds_and_deletes(broker: Node) -> None:
    with Session(broker.url) as session:
        session.declare("of-session", {"x-expires": 60_000})
        session.publish("of-session", [b"x"] * 2500)
        assert session.find("of-session") == (2500, 0)
        session.delete("of-session")
        with pytest.raises(QueueNotFound, match="no queue 'of-session'"):
            session.find("of-session")
        session.delete("of-session")  # gone already: no error, and the channel is open again


def test_session_tells_of_a_refusal(broker: Node, new_queue: Callable[..., str]) -> None:
    name = new_queue()
    with Session(broker.url) as session:
        with pytest.raises(ConnectionFailed, match="PRECONDITION_FAILED"):
            session.declare(name, {"x-expires": 60_000})
        assert session.find(name) == (0, 0)
