"""The control socket: which users may open it, what is refused, and what becomes of one that was left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from fairsched.cli import controlsocket
from fairsched.cli.connections import MOST_CONNECTIONS
from fairsched.cli.controlsocket import LONGEST_REQUEST, ControlSocket, ask
from fairsched.errors import ConfigurationError


def echo(request: Any) -> Any:
    return {"heard": request}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "worker.sock")


@pytest.fixture
def control(path: str) -> Iterator[ControlSocket]:
    with ControlSocket(path, echo) as found:
        yield found


def connected(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(30)
    found.connect(path)
    return found


def exchange(path: str, sent: bytes) -> bytes:
    """Send bytes, and nothing more; return all that is answered."""
    with connected(path) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_one_request_after_another(control: ControlSocket) -> None:
    assert ask(control.path, {"a": 1}) == {"heard": {"a": 1}}
    answers = exchange(control.path, b'{"a": 1}\n[2]\n"\\ud800"\n')
    assert [json.loads(line)["heard"] for line in answers.splitlines()] == [{"a": 1}, [2], "\ud800"]


def test_only_its_user_may_open_it(control: ControlSocket) -> None:
    mode = os.stat(control.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_mask_of_the_process_is_as_before(path: str) -> None:
    before = os.umask(0o027)
    try:
        with ControlSocket(path, echo):
            assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "line", [b"\n", b"{\n", b"\xff\xfe\n", b"weight gold 40\n", b"[" * 50_000 + b"\n", b"\0" * 100 + b"\n"]
)
def test_what_is_no_json(control: ControlSocket, line: bytes) -> None:
    first, second = exchange(control.path, line + b"7\n").splitlines()
    assert json.loads(first) == {"error": "a request is a line with an object of JSON"}
    assert json.loads(second) == {"heard": 7}  # and the connection goes on


def test_a_line_that_is_too_long(control: ControlSocket) -> None:
    longest = b'"' + b"x" * (LONGEST_REQUEST - 3) + b'"\n'
    assert json.loads(exchange(control.path, longest)) == {"heard": "x" * (LONGEST_REQUEST - 3)}
    with connected(control.path) as client:
        client.sendall(b"x" * (LONGEST_REQUEST + 1))
        answer = client.recv(1000)
    assert json.loads(answer) == {"error": f"a request is a line of at most {LONGEST_REQUEST} bytes"}
    assert ask(control.path, 1) == {"heard": 1}


def test_a_silent_client_keeps_no_other_from_an_answer(control: ControlSocket) -> None:
    silent = [connected(control.path) for _ in range(3 * MOST_CONNECTIONS)]
    try:
        assert ask(control.path, 1) == {"heard": 1}
        assert silent[0].recv(1) == b""  # the oldest had to go
    finally:
        for client in silent:
            client.close()


def test_a_client_that_is_silent_for_long_is_disconnected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlsocket._Handler, "timeout", 0.05)
    with ControlSocket(path, echo), connected(path) as client:
        client.sendall(b'{"half a ')
        assert client.recv(1) == b""


def test_an_answer_that_fails(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Any) -> Any:
        if request == "fail":
            raise ZeroDivisionError
        return request

    with ControlSocket(path, fail):
        assert exchange(path, b'"fail"\n') == b""
        assert ask(path, "go on") == "go on"
    assert "ZeroDivisionError" in caplog.text


def test_two_workers_at_one_path(control: ControlSocket) -> None:
    with pytest.raises(ConfigurationError, match=r"another process answers at control=.*worker.sock"):
        ControlSocket(control.path, echo)
    assert ask(control.path, 1) == {"heard": 1}


def test_many_that_start_at_once(path: str) -> None:
    """Also if one was left behind: one of them gets the path, and is reached by it."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    barrier = threading.Barrier(8)
    made: list[ControlSocket] = []
    refused: list[Exception] = []

    def start() -> None:
        barrier.wait()
        try:
            made.append(ControlSocket(path, echo))
        except ConfigurationError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    assert ask(path, 1) == {"heard": 1}
    made[0].close()
    assert not os.path.exists(path)


def test_one_that_was_left_behind_by_a_kill(path: str) -> None:
    code = f"from fairsched.cli.controlsocket import ControlSocket\nControlSocket({path!r}, id)\nprint(flush=True)\n"
    code += "import threading; threading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConfigurationError, match="another process answers"):
            ControlSocket(path, echo)
        process.kill()
    assert os.path.exists(path)
    with ControlSocket(path, echo):
        assert ask(path, 1) == {"heard": 1}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert not os.path.exists(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_path(path: str) -> None:
    code = f"""
import os, signal
from fairsched.cli.controlsocket import ControlSocket
ControlSocket({path!r}, id)
if os.fork() == 0:
    print(os.getpid(), flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            with ControlSocket(path, echo):
                assert ask(path, 1) == {"heard": 1}
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_is_no_socket_stays(path: str, what: str) -> None:
    if what == "file":
        Path(path).write_text("precious")
    elif what == "directory":
        os.mkdir(path)
    else:
        os.symlink("nowhere", path)
    with pytest.raises(ConfigurationError, match="there is a file at"):
        ControlSocket(path, echo)
    assert os.path.lexists(path)


@pytest.mark.parametrize(("name", "said"), [("x" * 200, "too long"), ("no/such/directory", "No such file")])
def test_paths_that_cannot_be(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen at control=.*{said}"):
        ControlSocket(str(tmp_path / name), echo)


def test_another_one_at_its_path_is_not_removed(path: str) -> None:
    with ControlSocket(path, echo):
        os.unlink(path)
        other = ControlSocket(path, echo)
    assert ask(path, 1) == {"heard": 1}
    other.close()
    assert not os.path.exists(path)


def test_a_close_ends_connections(path: str) -> None:
    control = ControlSocket(path, echo)
    with connected(path) as client:
        client.sendall(b"1\n")
        assert client.recv(100)
        control.close()
        assert client.recv(1) == b""
    eventually(lambda: not [one for one in threading.enumerate() if "process_request_thread" in one.name])


def test_no_process_answers(path: str) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask(path, 1)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        with pytest.raises(TimeoutError):
            ask(path, 1, timeout=0.05)
