"""A broker with a data directory that is killed while clients publish and consume, and one whose disk fails."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from support.rabbitmq import eventually

import fairsched
from fairsched._journal import Store

#: How often a broker is killed.
KILLS = 50 if os.environ.get("HYPOTHESIS_PROFILE") == "expensive" else 4

PERSISTENT = pika.BasicProperties(delivery_mode=2)

# A broker with a data directory, so many I/O threads, and files that may have so many octets.
SERVE = """
import json, resource, signal, sys
from fairsched import Broker
most = int(sys.argv[3])
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Broker(data_dir=sys.argv[1], io_threads=int(sys.argv[2])) as broker:
    print(broker.url, flush=True)
    for _ in sys.stdin:
        print(json.dumps(broker.status()), flush=True)
"""


class Process:
    """A broker in a process of its own, which can be killed."""

    def __init__(self, data_dir: Path, io_threads: int = 1, most: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(data_dir), str(io_threads), str(most)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def kill(self) -> str:
        """Return what it said on standard error."""
        self._process.kill()
        return self._process.communicate(timeout=60)[1]

    def close(self) -> str:
        """Have it end in good order."""
        said = self._process.communicate(timeout=60)[1]
        assert self._process.returncode == 0, said
        return said

    def status(self) -> dict:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin)
        return json.loads(self._process.stdout.readline())


@contextmanager
def connected(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        with suppress(pika.exceptions.AMQPError):  # the broker may be gone
            connection.close()


def drained(url: str, *queues: str) -> list[list[int]]:
    """The numbers in queues, which are left empty."""
    found: list[list[int]] = []
    with connected(url) as channel:
        for queue in queues:
            found.append([])
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found[-1].append(int(got[2][:12]))
    return found


class Publishing(threading.Thread):
    """Publishes numbers to an exchange until the broker is gone: which were confirmed, which were not refused."""

    def __init__(self, url: str, numbers: Iterator[int], draw: random.Random) -> None:
        super().__init__(daemon=True)
        self.url, self.numbers, self.draw = url, numbers, draw
        self.confirmed: list[int] = []
        self.sent: list[int] = []

    def run(self) -> None:
        tags: dict[int, int] = {}
        confirmed = 0

        def on_confirm(frame) -> None:
            nonlocal confirmed
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            first = confirmed + 1 if frame.method.multiple else frame.method.delivery_tag
            self.confirmed += [tags[tag] for tag in range(first, frame.method.delivery_tag + 1)]
            confirmed = frame.method.delivery_tag

        try:
            with connected(self.url) as channel:
                raw = channel._impl
                raw.confirm_delivery(on_confirm)
                for tag in itertools.count(1):
                    number = next(self.numbers)
                    tags[tag] = number
                    self.sent.append(number)
                    body = b"%012d" % number + bytes(self.draw.randrange(2000))
                    raw.basic_publish("work", "", body, PERSISTENT)
                    if tag - len(self.confirmed) > 200 or self.draw.random() < 0.05:
                        channel.connection.process_data_events(0.001)
        except (pika.exceptions.AMQPError, OSError):
            pass


class Consuming(threading.Thread):
    """Takes from a queue until the broker is gone, and acknowledges or rejects: to another queue."""

    def __init__(self, url: str, queue: str, rejects: bool) -> None:
        super().__init__(daemon=True)
        self.url, self.queue, self.rejects = url, queue, rejects
        self.order: list[int] = []
        self.settled: list[tuple[float, int]] = []

    def run(self) -> None:
        try:
            with connected(self.url) as channel:
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume(self.queue):
                    number = int(body[:12])
                    self.order.append(number)
                    if self.rejects:
                        channel.basic_nack(method.delivery_tag, requeue=False)
                    else:
                        channel.basic_ack(method.delivery_tag)
                    channel.connection.process_data_events(0)
                    self.settled.append((time.monotonic(), number))
        except (pika.exceptions.AMQPError, OSError):
            pass


@pytest.mark.timeout(1800)
def test_kills(tmp_path: Path) -> None:
    """What was confirmed is in both queues of the exchange, or was settled there; rejected, it is among the dead."""
    draw = random.Random(os.urandom(8))
    must: set[int] = set()
    sent: set[int] = set()
    acked: set[int] = set()
    rejected: set[int] = set()
    numbers = itertools.count()
    for turn in range(KILLS):
        broker = Process(tmp_path, io_threads=1 + turn % 2)
        with connected(broker.url) as channel:
            channel.exchange_declare("work", "fanout", durable=True)
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            for queue, arguments in (("a", {}), ("r", dead), ("dead", {})):
                channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind("a", "work")
            channel.queue_bind("r", "work")
        publishing = Publishing(broker.url, numbers, draw)
        consuming = [Consuming(broker.url, "a", False), Consuming(broker.url, "r", True)]
        for thread in (publishing, *consuming):
            thread.start()
        time.sleep(draw.uniform(0.05, 1))  # when it is killed is random
        broker.kill()
        killed = time.monotonic()
        for thread in (publishing, *consuming):
            thread.join(60)
            assert not thread.is_alive()
        must |= set(publishing.confirmed)
        sent |= set(publishing.sent)
        assert consuming[0].order == sorted(consuming[0].order)
        # An acknowledgement that is two seconds old is on the disk: what is younger may come once more.
        acked |= {number for at, number in consuming[0].settled if at < killed - 2}
        rejected |= set(consuming[1].order)
        settled = {number for _, number in consuming[0].settled}

        broker = Process(tmp_path)
        a, r, dead_letters = drained(broker.url, "a", "r", "dead")
        broker.close()
        for found in (a, r):
            assert found == sorted(set(found))
            assert set(found) <= sent
        assert not acked & set(a)
        assert must <= set(a) | settled
        assert must <= set(r) | set(dead_letters)
        assert set(dead_letters) <= rejected
        must.clear()  # all of it was taken
    assert sent


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """What was acknowledged, expired, purged, pushed out, replaced or deleted takes no room when it comes again."""
    with fairsched.Broker(data_dir=tmp_path) as broker, connected(broker.url) as channel:
        channel.confirm_delivery()
        channel.exchange_declare("all", "fanout", durable=True)
        for queue, arguments in {
            "acked": {}, "purged": {}, "deleted": {}, "expired": {"x-message-ttl": 1}, "full": {"x-max-length": 0},
            "refuses": {"x-max-length": 0, "x-overflow": "reject-publish"},
            "last": {"x-queue-kind": "last-value", "x-queue-key": "k"},
        }.items():  # fmt: skip
            channel.queue_declare(queue, durable=True, arguments=arguments)
            if queue != "refuses":
                channel.queue_bind(queue, "all")
        keyed = pika.BasicProperties(delivery_mode=2, headers={"k": "v"})
        for number in range(20):
            channel.basic_publish("all", "", b"%d" % number, keyed)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "refuses", b"x", PERSISTENT)
        for _ in range(20):
            channel.basic_ack(channel.basic_get("acked")[0].delivery_tag)
        channel.queue_purge("purged")
        channel.queue_delete("deleted")
        channel.queue_delete("refuses")
        eventually(lambda: broker.status()["messages"] == 1)
    with fairsched.Broker(data_dir=tmp_path) as broker:
        queues = {queue["name"]: queue["depth"] for queue in broker.status()["queues"]}
        assert queues == {"acked": 0, "purged": 0, "expired": 0, "full": 0, "last": 1}
        with connected(broker.url) as channel:
            assert channel.basic_get("last", auto_ack=True)[2] == b"19"
            for queue in queues:
                channel.queue_delete(queue)
            channel.exchange_delete("all")
    store = Store(tmp_path)
    assert [kind for _, kind, _ in store.records()] == [7]  # it was closed
    store.close()


def test_a_transaction_is_there_when_its_commit_is_answered(tmp_path: Path) -> None:
    broker = Process(tmp_path)
    with connected(broker.url) as channel:
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(100):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.tx_commit()
        channel.basic_publish("", "q", b"100", PERSISTENT)
        broker.kill()
    broker = Process(tmp_path)
    assert drained(broker.url, "q") == [list(range(100))]
    broker.close()


def test_a_disk_that_fails(tmp_path: Path) -> None:
    """Nothing is confirmed that is not there; what needs the disk is refused; the rest goes on, and status says why."""
    broker = Process(tmp_path, most=3_000_000)
    confirmed = []
    with connected(broker.url) as channel:
        channel.queue_declare("q", durable=True)
        channel.queue_declare("transient")
        channel.confirm_delivery()
        with suppress(pika.exceptions.NackError):
            for number in range(10_000):
                channel.basic_publish("", "q", b"%012d" % number + bytes(10_000), PERSISTENT)
                confirmed.append(number)
        assert len(confirmed) < 1000
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"0", PERSISTENT)
        channel.basic_publish("", "q", b"0")
        channel.basic_publish("", "transient", b"0", PERSISTENT)
    with (
        connected(broker.url) as channel,
        pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="RESOURCE_ERR"),
    ):
        channel.queue_declare("more", durable=True)
    with connected(broker.url) as channel:
        channel.basic_publish("", "q", b"0", PERSISTENT)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="its status says why"):
            channel.connection.process_data_events(30)
    status = broker.status()
    assert status["data_file"] == str(tmp_path / "broker.db")
    assert status["data_error"].startswith("OperationalError: ")
    broker.close()
    broker = Process(tmp_path)
    assert broker.status()["data_error"] is None
    assert drained(broker.url, "q")[0][: len(confirmed)] == confirmed
    broker.close()


def test_directories_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="the data directory must be one that this user can write to"):
        fairsched.Broker(data_dir=tmp_path / "file").start()
    with fairsched.Broker(data_dir=tmp_path / "d", vhosts=["/", "orders"]) as broker:
        with pytest.raises(RuntimeError, match=r"broker\.db is in use by another broker"):
            fairsched.Broker(data_dir=tmp_path / "d").start()
        with connected(broker.url.replace("%2F", "orders")) as channel:
            channel.queue_declare("q", durable=True)
    with pytest.raises(ValueError, match="virtual host 'orders', which `vhosts` does not name"):
        fairsched.Broker(data_dir=tmp_path / "d").start()
    fairsched.Broker(data_dir=tmp_path / "d", vhosts=["orders"]).start().close()
    with pytest.raises(ValueError, match="max_message_size must be 268435456 at most with data_dir"):
        fairsched.Broker(data_dir=tmp_path / "d", max_message_size=(1 << 28) + 1)
    with pytest.raises(ValueError, match="data_dir must be the path of a directory, got ''"):
        fairsched.Broker(data_dir="")


def test_no_password_is_kept(tmp_path: Path) -> None:
    with fairsched.Broker(data_dir=tmp_path, users={"alice": "wonderland"}) as broker:
        url = broker.url.replace("//", "//alice:wonderland@")
        with connected(url) as channel:
            channel.queue_declare("q", durable=True)
            assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())
    [file] = tmp_path.iterdir()
    assert b"wonderland" not in file.read_bytes()
    assert b"alice" not in file.read_bytes()


def test_who_tries_does_not_end_the_lock(tmp_path: Path) -> None:
    """A second broker of the same process is refused, and so is one of another process after that."""
    with fairsched.Broker(data_dir=tmp_path):
        with pytest.raises(RuntimeError, match="in use by another broker"):
            fairsched.Broker(data_dir=tmp_path).start()
        done = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path), "1", "0"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "in use by another broker" in done.stderr
