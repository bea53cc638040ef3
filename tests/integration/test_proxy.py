"""The proxy that the prefetch tests put before the broker does to the network what it says."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from support.proxy import Proxy, behind
from support.waiting import eventually


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections are cut on purpose here."""


@pytest.fixture
def echo() -> Iterator[int]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", proxy.port), 30)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(65536)
        assert piece, "the connection ended early"
        data += piece
    return data


def round_trip(connection: socket.socket) -> float:
    """Seconds that a few bytes take there and back."""
    begin = time.monotonic()
    connection.sendall(b"ping")
    exactly(connection, 4)
    return time.monotonic() - begin


def check_round_trip(connection: socket.socket, least: float, most: float) -> None:
    """None is shorter, and one is no longer: a busy machine lengthens some, and shortens none."""
    best = [most]

    def looked() -> bool:
        best[0] = min(best[0], round_trip(connection))
        return best[0] < most

    eventually(looked)
    assert best[0] >= least


def ends(connection: socket.socket) -> bool:
    """Wait for the end of a connection that has nothing more to say."""
    try:
        return not connection.recv(100)
    except ConnectionResetError:
        return True


def test_passes_on_unchanged_in_both_directions(echo: int) -> None:
    with Proxy(echo) as proxy, connect(proxy) as connection:
        sent = bytes(range(256)) * 4000
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        assert exactly(connection, len(sent)) == sent


def test_delays_each_way(echo: int) -> None:
    with Proxy(echo, delay=0.05) as proxy, connect(proxy) as connection:
        check_round_trip(connection, 0.1, 0.13)
        proxy.delay = 0.0
        check_round_trip(connection, 0.0, 0.05)


def test_a_shorter_delay_lets_nothing_overtake(echo: int) -> None:
    with Proxy(echo, delay=0.1) as proxy, connect(proxy) as connection:
        for number in range(50):
            connection.sendall(b"%03d" % number)
            proxy.delay = 0.1 - number * 0.002
        assert exactly(connection, 150) == b"".join(b"%03d" % number for number in range(50))


@pytest.mark.steady
def test_a_delayed_line_carries_many_at_a_time(echo: int) -> None:
    """A hundred messages take one round trip of 0.2 s and not a hundred."""
    with Proxy(echo, delay=0.1) as proxy, connect(proxy) as connection:
        begin = time.monotonic()
        for _ in range(100):
            connection.sendall(b"ping")
        exactly(connection, 400)
        assert 0.2 <= time.monotonic() - begin < 10


@pytest.mark.steady
def test_throttles(echo: int) -> None:
    with Proxy(echo, rate=200_000) as proxy, connect(proxy) as connection:
        begin = time.monotonic()
        connection.sendall(bytes(100_000))
        exactly(connection, 100_000)
        # The way back begins when the first piece has come.
        assert 0.5 <= time.monotonic() - begin < 5


def test_cuts_and_recovers(echo: int) -> None:
    with Proxy(echo) as proxy:
        with connect(proxy) as connection:
            round_trip(connection)
            proxy.cut()
            assert ends(connection)
        proxy.accepting = False
        with connect(proxy) as connection:
            assert ends(connection)
        proxy.accepting = True
        with connect(proxy) as connection:
            round_trip(connection)


def test_a_connection_is_cut_after_its_allowance(echo: int) -> None:
    with Proxy(echo) as proxy:
        proxy.allowance = 100_000
        for _ in range(2):
            with connect(proxy) as connection:
                connection.sendall(bytes(99_999))
                exactly(connection, 99_999)
                connection.sendall(b"xyz")
                exactly(connection, 1)
                assert ends(connection)
        assert proxy.connections == 2


def test_silence_takes_what_is_sent_and_the_end_too(echo: int) -> None:
    with Proxy(echo) as proxy, connect(proxy) as connection:
        round_trip(connection)
        proxy.silence()
        connection.sendall(b"anybody there?")
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        with connect(proxy) as another:
            round_trip(another)


def test_an_end_is_passed_on_after_what_was_sent(echo: int) -> None:
    with Proxy(echo, delay=0.05) as proxy, connect(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert exactly(connection, 10) == b"last words"
        assert connection.recv(100) == b""


def test_url_behind_a_proxy() -> None:
    proxy = Proxy(1)
    proxy.port = 4321
    assert behind(proxy, "amqp://guest:guest@127.0.0.1:5672/%2F") == "amqp://guest:guest@127.0.0.1:4321/%2F"
