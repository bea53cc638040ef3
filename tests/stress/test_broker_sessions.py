"""Sessions that break every rule, crowds, and clients that do not read or say nothing: the others are unharmed."""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pika
import pytest
from pamqp import base, frame
from pamqp.commands import Basic, Channel, Connection, Queue
from pamqp.header import ContentHeader
from support.sessions import Witness, attack
from support.waiting import eventually

import fairsched

pytestmark = pytest.mark.stress

#: All that is asked for takes ten minutes; in every run of the tests it is some seconds' worth.
SESSIONS = 100_000 if os.environ.get("HYPOTHESIS_PROFILE") == "expensive" else 1200
#: Sessions after which a new broker is begun with, so that what stays behind is found near its cause.
STEP = 5000
#: How basic.consume-ok begins.
CONSUME_OK = b"\0\x3c\0\x15"


@pytest.fixture(scope="module", autouse=True)
def many_files() -> Iterator[None]:
    """Let this process have as many sockets as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[fairsched.Broker]:
    """A broker with one I/O thread, or two."""
    with fairsched.Broker(io_threads=request.param) as running:
        yield running


@pytest.fixture
def others(broker: fairsched.Broker) -> Iterator[Witness]:
    """A client that must not notice anything."""
    with Witness(broker.url) as witness:
        eventually(lambda: witness.rounds or witness.errors)
        yield witness
        before = witness.rounds
        eventually(lambda: witness.rounds > before or witness.errors)
    assert witness.errors == []


def greeting(*more: base.Frame, heartbeat: int = 0) -> list[bytes]:
    """Return the frames that open a connection with a channel, and more methods on that, each method apart."""
    methods: list[tuple[base.Frame, int]] = [
        (Connection.StartOk({}, response="\0guest\0guest"), 0), (Connection.TuneOk(2047, 131_072, heartbeat), 0),
        (Connection.Open("/"), 0), (Channel.Open(), 1), *((one, 1) for one in more),
    ]  # fmt: skip
    return [b"AMQP\0\0\x09\x01", *(frame.marshal(*one) for one in methods)]


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Read until something is there; fail if the broker closes the connection."""
    found = bytearray()
    while end not in found[-1 << 17 :]:
        more = connection.recv(1 << 16)
        assert more, f"closed after {bytes(found[-100:])!r}"
        found += more
    return bytes(found)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("io_threads", [1, 2])
def test_mutated_sessions_harm_no_other(io_threads: int) -> None:
    each = SESSIONS // 2
    for done in range(0, each, STEP):
        with fairsched.Broker(io_threads=io_threads) as broker:
            counts = attack(
                broker.port, broker.url, broker.status, seed=done + io_threads, sessions=min(STEP, each - done)
            )
        # They reached all that they are for: sessions that are all refused at once find nothing.
        for what in ("closed by the broker", "left open by the broker", "sent whole", "channels closed", "deliveries"):
            assert counts[what] > 10


@pytest.mark.usefixtures("others")
def test_a_thousand_connections_at_once(broker: fairsched.Broker) -> None:
    opening = b"".join(greeting(Queue.Declare(exclusive=True), Basic.Consume(no_ack=True)))
    publication = b"".join(
        [
            frame.marshal(Basic.Publish(0, "", "nowhere", mandatory=True), 1),
            frame.marshal(ContentHeader(0, 0, Basic.Properties()), 1),
        ]
    )
    with ExitStack() as open_ones:
        address = ("127.0.0.1", broker.port)
        crowd = [open_ones.enter_context(socket.create_connection(address, 30)) for _ in range(1000)]
        for one in crowd:
            one.sendall(opening)
        for one in crowd:
            read_until(one, CONSUME_OK)
        assert broker.status()["connections"] == 1001
        for one in crowd:
            one.sendall(publication)
        for one in crowd:
            read_until(one, b"NO_ROUTE")
        # Half of them vanish, the others reset.
        for one in crowd[::2]:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: broker.status()["connections"] == 1)
    eventually(lambda: [queue["name"] for queue in broker.status()["queues"]] == ["witness"])


@pytest.mark.usefixtures("others")
def test_peers_that_fall_silent_at_any_octet_are_ended(broker: fairsched.Broker) -> None:
    """Within the ten seconds that a handshake may take; afterwards by heartbeats."""
    said = b"".join(greeting(Queue.Declare(queue="q"), heartbeat=1))
    with ExitStack() as open_ones:
        silent = []
        for length in range(0, len(said), 3):
            silent.append(open_ones.enter_context(socket.create_connection(("127.0.0.1", broker.port), 40)))
            silent[-1].sendall(said[:length])
        for one in silent:
            while one.recv(1 << 16):
                pass
    eventually(lambda: broker.status()["connections"] == 1)


@pytest.mark.usefixtures("others")
def test_a_slow_reader_leaves_to_others_what_it_has_no_room_for(broker: fairsched.Broker) -> None:
    count, filling = 20_000, bytes(992)
    with ExitStack() as open_ones:
        slow = open_ones.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(30)
        slow.connect(("127.0.0.1", broker.port))
        slow.sendall(b"".join(greeting(Queue.Declare(queue="q"), Basic.Consume(queue="q", no_ack=True))))
        read_until(slow, CONSUME_OK)
        channel = open_ones.enter_context(pika.BlockingConnection(pika.URLParameters(broker.url))).channel()
        for number in range(count):
            channel.basic_publish("", "q", b"%08d" % number + filling)
        # Some of them are under way; the others wait in the queue.
        ready = channel.queue_declare("q", passive=True).method.message_count
        assert 1000 < ready < count
        taken = [int(channel.basic_get("q", auto_ack=True)[2][:8]) for _ in range(1000)]
        channel.basic_publish("", "q", b"the end")
        assert taken == list(range(count - ready, count - ready + 1000))
        read = read_until(slow, b"the end")
    assert [int(one) for one in re.findall(rb"(\d{8})" + filling, read)] == [
        number for number in range(count) if number not in set(taken)
    ]
    eventually(lambda: broker.status()["connections"] == 1)


def test_a_client_that_comes_when_no_file_can_be_opened_is_turned_away() -> None:
    """Else its socket would wait for ever, and be reported again and again."""
    command = [sys.executable, "-m", "fairsched.cli", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ExitStack() as open_ones:
        open_ones.callback(process.kill)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 64))
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        port = urlsplit(url).port or 0
        with Witness(url) as witness:
            eventually(lambda: witness.rounds or witness.errors)
            crowd = [open_ones.enter_context(socket.create_connection(("127.0.0.1", port), 9)) for _ in range(100)]
            turned_away = sum(one.recv(1) == b"" for one in reversed(crowd[-30:]))
            assert turned_away == 30
            before = witness.rounds
            eventually(lambda: witness.rounds > before or witness.errors)
            for one in crowd:
                one.close()
            eventually(lambda: greeted(port))
        assert witness.errors == []


def greeted(port: int) -> bool:
    """Tell whether a broker talks to a new client."""
    with socket.create_connection(("127.0.0.1", port), 9) as one, suppress(ConnectionError):
        one.sendall(b"AMQP\0\0\x09\x01")
        return one.recv(1) == b"\1"
    return False
