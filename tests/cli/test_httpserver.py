"""The HTTP server under clients that mean it ill: slow ones, many, those that go away, and what is no request."""

from __future__ import annotations

import http.client
import logging
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from support.waiting import eventually

from fairsched.cli.health import health_pages
from fairsched.cli.httpserver import EVERYWHERE, HttpServer
from fairsched.consumer.state import ConsumerState


@pytest.fixture
def health() -> Iterator[HttpServer]:
    with HttpServer(health_pages(ConsumerState), host=EVERYWHERE) as running:
        yield running


def ask(port: int, path: str = "/healthz") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def sent(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as answer:
            return answer.readline()


def requests() -> int:
    """Return how many threads answer requests."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_client_with_many_connections_keeps_no_other_from_an_answer(health: HttpServer) -> None:
    held = []
    try:
        for _ in range(150):
            held.append(socket.create_connection(("127.0.0.1", health.port), timeout=30))
            held[-1].sendall(b"GET /healthz HTTP/1.1\r\n")
        assert ask(health.port) == (200, "ok\n")
        # The oldest were ended, and the latest wait for the rest of their requests.
        assert held[0].recv(1) == b""
        eventually(lambda: requests() <= 32)
        held[-1].sendall(b"\r\n")
        assert held[-1].recv(12) == b"HTTP/1.0 200"
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nHost: [\r\n\r\n", b"400"),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"501"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n", b"431"),
    ],
)
def test_what_is_no_request_is_refused(
    health: HttpServer, data: bytes, code: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sent(health.port, data).split()[1] == code
    assert ask(health.port) == (200, "ok\n")
    assert capfd.readouterr() == ("", "")


def test_head_is_get_without_the_page(health: HttpServer) -> None:
    for path in ("/healthz", "/nothing"):
        answers = []
        for method in ("GET", "HEAD"):
            connection = http.client.HTTPConnection("127.0.0.1", health.port, timeout=30)
            connection.request(method, path)
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("Content-Length"), answer.getheader("Content-Type")))
            body = answer.read()
            connection.close()
        assert answers[0] == answers[1]
        assert body == b""


def test_a_client_that_goes_away_is_not_worth_a_word(
    health: HttpServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fairsched.cli.connections")
    connection = socket.create_connection(("127.0.0.1", health.port), timeout=30)
    connection.sendall(b"GET /healthz HTTP/1.1\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a close is a reset
    connection.close()
    eventually(lambda: caplog.records)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert capfd.readouterr().err == ""


def test_a_page_that_cannot_be_made_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> ConsumerState:
        raise RuntimeError("no state")

    with HttpServer(health_pages(fail), host=EVERYWHERE) as health:
        assert sent(health.port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        eventually(lambda: "no state" in caplog.text)
        assert ask(health.port, "/")[0] == 404
