"""``fairsched broker``, and the pytest fixture."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
from support.ports import free_ports
from support.wireclient import WireClient


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fairsched.cli", "broker", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the next line it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_prints_its_url_and_ends_with_a_signal(ending: signal.Signals) -> None:
    with running("--port", "0") as process:
        url = first_line(process)
        with WireClient(urlsplit(url).port or 0) as client:
            client.open().channel().published(b"1", routing_key="q")
            # A client that is connected is told.
            process.send_signal(ending)
            reason = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
            assert client.ended() == (320, reason)
            output, errors = process.communicate(timeout=30)
        assert (process.returncode, output, errors) == (0, "", "")


def test_it_does_not_wait_for_clients_that_do_not_answer() -> None:
    with running("--port", "0") as process, WireClient(urlsplit(first_line(process)).port or 0) as client:
        client.open()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_port_that_was_asked_for() -> None:
    [port] = free_ports(1)
    with running("--port", str(port)) as process:
        assert first_line(process) == f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        with running("--port", str(port)) as second:
            _output, errors = second.communicate(timeout=60)
            assert second.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in errors


def test_a_data_directory(tmp_path: Path) -> None:
    for turn in range(2):
        with running("--port", "0", "--data-dir", str(tmp_path / "data")) as process:
            with pika.BlockingConnection(pika.URLParameters(first_line(process))) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                assert channel.queue_declare("orders", durable=True).method.message_count == turn
                channel.basic_publish("", "orders", b"1", pika.BasicProperties(delivery_mode=2))
            process.kill()
    (tmp_path / "file").write_bytes(b"")
    with running("--port", "0", "--data-dir", str(tmp_path / "file" / "data")) as process:
        _output, errors = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "the data directory must be one that this user can write to" in errors
        assert "Traceback" not in errors


def test_the_status_page() -> None:
    with running("--port", "0", "--status-port", "0") as process:
        url, page = first_line(process), first_line(process)
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders")
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"1")
            with urllib.request.urlopen(page + "status.json", timeout=10) as answer:
                status = json.load(answer)
        [queue] = status["queues"]
        assert (queue["name"], queue["ready"]) == ("orders", 1)
        assert "guest:guest" not in json.dumps(status)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


FIXTURE = """
import pika

def test_one(fairsched_broker):
    with pika.BlockingConnection(pika.URLParameters(fairsched_broker.url)) as connection:
        connection.channel().queue_declare("q")

def test_another_broker(fairsched_broker):
    with pika.BlockingConnection(pika.URLParameters(fairsched_broker.url)) as connection:
        connection.channel().queue_declare("q", durable=True)  # which is no other queue of that name
"""


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(FIXTURE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_fairsched", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
