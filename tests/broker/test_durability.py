"""A broker with a data directory that is killed while clients publish and consume, and one whose disk fails."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from support.outcomes import Outcomes
from support.waiting import eventually

import fairsched
from fairsched.broker._journal import Store

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

    def await_confirms(self, count: int) -> None:
        """Return when so many messages are confirmed."""
        eventually(lambda: len(self.confirmed) >= count or not self.is_alive(), what=f"{count} confirms")

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
        #: With the time from which on that is certain. The last of `order` may be settled too: the broker may have been
        #: killed right after it read that.
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


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_kills(tmp_path: Path, outcomes: Outcomes) -> None:
    """A confirmed message is in both queues of the exchange, or was settled there; rejected, it is among the dead."""
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
        publishing.await_confirms(draw.randint(1, 1500))  # when it is killed is random
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
        settled = {number for _, number in consuming[0].settled}.union(consuming[0].order[-1:])

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
        outcomes.note(
            "broker killed under load", "embedded broker, confirmed messages", (sorted(must), [*consuming[0].order, *a])
        )
        must.clear()  # all of it was taken
    assert sent


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A message acknowledged, expired, purged, pushed out, replaced or deleted takes no room when it comes again."""
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


def hidden(path: Path) -> None:
    """Have a broker keep a message with hidden keys, in a queue with a dead-letter exchange, and kill it."""
    broker = Process(path)
    with connected(broker.url) as channel:
        channel.confirm_delivery()
        channel.exchange_declare("dead", "direct", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dead"})
        for key in ("seen", "hidden", "other"):
            channel.queue_declare(f"dead-{key}", durable=True)
            channel.queue_bind(f"dead-{key}", "dead", key)
        headers = {"CC": ["seen"], "BCC": ["hidden", "k"], "x": 1}
        channel.basic_publish("", "q", b"body", pika.BasicProperties(delivery_mode=2, headers=headers))
    broker.kill()


def test_hidden_keys_outlive_a_kill(tmp_path: Path) -> None:
    hidden(tmp_path)
    Process(tmp_path).kill()  # and what was recovered outlives another one
    broker = Process(tmp_path)
    with connected(broker.url) as channel:
        method, properties, body = channel.basic_get("q")
        assert (properties.headers, body, method.redelivered) == ({"CC": ["seen"], "x": 1}, b"body", True)
        channel.basic_nack(method.delivery_tag, requeue=False)
        depths = {"q": 0, "dead-seen": 1, "dead-hidden": 1, "dead-other": 0}
        eventually(lambda: {queue["name"]: queue["depth"] for queue in broker.status()["queues"]} == depths)
        channel.queue_purge("dead-other")  # its answer waits for all that was recorded before
    broker.kill()
    broker = Process(tmp_path)
    with connected(broker.url) as channel:
        assert channel.basic_get("dead-other")[0] is channel.basic_get("q")[0] is None
        for queue in ("dead-seen", "dead-hidden"):
            _, properties, body = channel.basic_get(queue, auto_ack=True)
            assert (properties.headers["CC"], properties.headers["x"], body) == (["seen"], 1, b"body")
            assert "BCC" not in properties.headers
            assert properties.headers["x-death"][0]["routing-keys"] == ["q", "seen"]
            assert channel.basic_get(queue)[0] is None
    broker.close()


@pytest.mark.parametrize("length", [0, 12, 14, 1 << 31])
def test_keys_whose_length_is_damaged_are_refused(tmp_path: Path, length: int) -> None:
    hidden(tmp_path)
    keys = b"S\0\0\0\6hiddenS\0\0\0\1k"
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        [(number, octets)] = connection.execute("select number, octets from chunk where instr(octets, ?)", (keys,))
        whole = len(keys).to_bytes(4, "big") + keys
        damaged = octets.replace(whole, length.to_bytes(4, "big") + keys)
        assert octets.count(whole) == 1
        connection.execute("update chunk set octets = ? where number = ?", (damaged, number))
    connection.close()
    with pytest.raises(ValueError, match=r"broker\.db cannot be restored: a record is not well formed"):
        fairsched.Broker(data_dir=tmp_path).start()


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
        assert channel.queue_declare("transient", passive=True).method.message_count == 1  # which changes nothing
        channel.exchange_declare("amq.topic", passive=True)
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


@pytest.mark.parametrize("name", ["", "broker.db", "broker.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_files_that_go_while_it_runs(tmp_path: Path, name: str, replaced: bool) -> None:
    """Nothing is confirmed that would not be found again; put back, they have what was confirmed."""
    directory, away = tmp_path / "d", tmp_path / "away"
    broker = Process(directory)
    with connected(broker.url) as channel:
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"%012d" % 0, PERSISTENT)
        (directory / name).rename(away)
        if replaced:
            shutil.copytree(away, directory) if away.is_dir() else shutil.copy(away, directory / name)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"%012d" % 1, PERSISTENT)
    error = broker.status()["data_error"]
    assert error.startswith("FileNotFoundError: ")
    assert "was moved, removed or replaced while the broker ran" in error
    broker.kill()
    if replaced and away.is_dir():
        shutil.rmtree(directory)
    away.rename(directory / name)
    broker = Process(directory)
    assert drained(broker.url, "q")[0][:1] == [0]
    broker.close()


def test_a_relative_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fairsched.Broker(data_dir="d") as broker, connected(broker.url) as channel:
        monkeypatch.chdir("/")
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"", PERSISTENT)
        assert broker.status()["data_error"] is None


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


def test_an_attempt_does_not_end_the_lock(tmp_path: Path) -> None:
    """A second broker of the same process is refused, and so is one of another process after that."""
    with fairsched.Broker(data_dir=tmp_path):
        with pytest.raises(RuntimeError, match="in use by another broker"):
            fairsched.Broker(data_dir=tmp_path).start()
        done = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path), "1", "0"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "in use by another broker" in done.stderr
