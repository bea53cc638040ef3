"""Brokers that refuse, babble or keep silent; a real one is in tests/integration."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairsched.cli.broker import Session
from fairsched.cli.group import cli
from fairsched.errors import ConnectionFailed

SECRET = "hunter2"


@contextlib.contextmanager
def server(says: bytes | None) -> Iterator[str]:
    """Accept one connection, say something and close; with None, keep silent until the other side gives up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                if says is not None:
                    connection.sendall(says)
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"amqp://app:{SECRET}@127.0.0.1:{listening.getsockname()[1]}/"
        thread.join(30)
        assert not thread.is_alive()


def failure(url: str, timeout: float) -> str:
    """Open a session and return why it failed."""
    with pytest.raises(ConnectionFailed) as failed, Session(url, timeout):
        pass
    assert SECRET not in str(failed.value)
    assert failed.value.__cause__ is None
    return str(failed.value)


def test_a_server_that_speaks_something_else() -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert failure(url, 10.0).startswith("127.0.0.1:")


def test_a_server_that_hangs_up() -> None:
    with server(b"") as url:
        assert failure(url, 10.0).startswith("127.0.0.1:")


def test_a_server_that_keeps_silent_is_given_up() -> None:
    with server(None) as url:
        assert failure(url, 0.3).endswith(": no answer within 0.3 s")


def test_a_host_that_does_not_exist() -> None:
    assert "no-such-host.invalid:5672" in failure(f"amqp://app:{SECRET}@no-such-host.invalid/", 10.0)


def check(*arguments: str, env: dict[str, str | None] | None = None) -> tuple[int, list[str]]:
    result = CliRunner().invoke(cli, ["check", *arguments], env=env)
    assert SECRET not in result.output
    return result.exit_code, result.stdout.splitlines()


def test_check_refuses_a_bad_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairsched.toml").write_text(f'url = "amqp://app:{SECRET}@broker"\nprefech = 3\n')
    code, lines = check()
    assert code == 2
    assert lines == ["\u2717 configuration: unknown setting 'prefech' in file fairsched.toml: did you mean 'prefetch'?"]


def test_check_says_where_settings_come_from_and_that_no_broker_is_there(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text(f'url = "amqp://app:{SECRET}@127.0.0.1:1/"\n')
    code, lines = check("--config", str(path), env={"FAIRSCHED_PREFETCH": "50"})
    assert code == 4
    assert lines[0] == (
        f"\u2713 configuration: url='amqp://app:******@127.0.0.1:1/' from file {path}, "
        "prefetch=50 from environment variable FAIRSCHED_PREFETCH"
    )
    assert lines[1].startswith("\u2717 broker 127.0.0.1:1: ConnectionRefusedError: ")
    assert len(lines) == 2


def test_check_looks_at_every_broker() -> None:
    code, lines = check("--url", "amqp://127.0.0.1:1", "--url", "amqp://127.0.0.1:2")
    assert code == 4
    assert [line[:20] for line in lines[1:]] == ["\u2717 broker 127.0.0.1:1", "\u2717 broker 127.0.0.1:2"]


WORKER = """
from fairsched.consumer import App
app = App("amqp://app:hunter2@127.0.0.1:1/", prefetch=100)
app.consumer("gold", weight=40)(print)
app.consumer("free", weight=4)(print)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"worker_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(WORKER)
    return f"{name}:app"


def test_check_of_an_app_takes_its_url(worker: str) -> None:
    code, lines = check(worker)
    assert code == 4
    assert lines[0] == "\u2713 configuration: nothing set, all defaults"
    assert lines[1].startswith("\u2717 broker 127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["-Q", "silver"], {}, "no handler for queue 'silver'"),
        ([], {"FAIRSCHED_TENANTS": "tenant=3"}, "tenants= needs key="),
        ([], {"FAIRSCHED_PREFETCH": "gold=3"}, "prefetch must name every queue and no other; it differs in free"),
    ],
)
def test_check_looks_at_the_whole(worker: str, arguments: list[str], environment: dict[str, str], message: str) -> None:
    code, lines = check(worker, *arguments, env=dict(environment))
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("\u2717 configuration: ")
    assert message in lines[0]


def test_check_without_an_app_looks_at_the_whole_too() -> None:
    code, lines = check("-Q", "gold,free", env={"FAIRSCHED_PREFETCH": "gold=3"})
    assert code == 2
    assert "it differs in free" in lines[0]


def test_check_needs_time() -> None:
    result = CliRunner().invoke(cli, ["check", "--timeout", "0"])
    assert result.exit_code == 2
    assert "a duration must be more than zero, got '0'" in result.stderr


def test_check_where_its_marks_cannot_be_written() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "check", "--url", "amqp://127.0.0.1:1"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert [line.split()[0] for line in done.stdout.decode("latin-1").splitlines()] == ["ok", "FAILED"]
