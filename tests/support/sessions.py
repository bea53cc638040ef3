"""Sessions of clients that break every rule, played to a live broker, and a well-behaved client as the witness.

A session is a handshake and a few dozen frames of all methods and contents, some with wrong arguments; in most of them
some frames are then damaged. They come in pieces of any size, what comes back is read or not, and in the end there is a
good-bye, a half-closed socket, a reset, or nothing: the client then stays there and is silent. A channel that the
broker closes is opened again, so that one error does not make the rest of a session meaningless.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pika
from pamqp import body, frame, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx
from support.waiting import eventually

QUEUES = [*(f"q{number}" for number in range(6)), "q0", "q1", "q3", "", "amq.rabbitmq.reply-to"]
EXCHANGES = ["x0", "x1", "x2", "x3", "amq.topic", "amq.direct", "amq.fanout", "amq.match"]
#: Names that no client may bind to, delete or publish to are asked for rarely.
SPECIAL = ["", "amq.rabbitmq.trace"]
KEYS = ["", "q0", "q1", "q2", "q3", "q4", "q5", "a", "a.b", "#", "*.b", "1", "3"]
ARGUMENTS: dict[str, list[Any]] = {
    "x-max-length": [0, 1, 3, 10],
    "x-max-length-bytes": [0, 100, 10_000],
    "x-message-ttl": [0, 1, 5, 50, 1000],
    "x-expires": [1, 5, 50, 1000],
    "x-dead-letter-exchange": EXCHANGES,
    "x-dead-letter-routing-key": KEYS,
    "x-max-priority": [1, 3, 10, 255],
    "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx"],
    "x-single-active-consumer": [True, False],
    "x-delivery-limit": [0, 1, 5],
    "x-queue-kind": ["standard", "priority", "sorted", "last-value"],
    "x-queue-key": ["h"],
    "x-fair-key": ["h"],
    "x-fair-weights": [{"a": 1}, {"a": 1, "b": 2.5}],
    "x-queue-type": ["classic", "quorum"],
    "x-consumer-timeout": [1, 1000],
    "alternate-exchange": EXCHANGES,
    "x-match": ["all", "any", "all-with-x"],
    "hash-header": ["h"],
    "x-priority": [-1, 0, 5],
}
#: What most declare a queue with: a client that declares it otherwise is refused.
DECLARED: dict[str, dict[str, Any]] = {
    "q0": {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
    "q1": {},
    "q2": {"x-message-ttl": 3, "x-dead-letter-exchange": "amq.fanout"},
    "q3": {"x-max-priority": 5, "x-overflow": "reject-publish-dlx", "x-max-length-bytes": 200_000},
    "q4": {"x-fair-key": "h", "x-fair-weights": {"a": 1, "b": 2.5}},
    "q5": {"x-single-active-consumer": True, "x-delivery-limit": 3, "x-dead-letter-exchange": "x0"},
}
KINDS = {"x0": "topic", "x1": "headers", "x2": "x-consistent-hash", "x3": "fanout"}
WRONG = [0, -1, 2**40, "x", "drop-head", True, {"a": {"b": [1, "c"]}}, [1, "b"], 1.5, None]
HEADERS = ["a", "b"] * 3 + [1, 1.5, None, ["q1"], {"a": [1, {"b": "c"}]}, [{"queue": "q0", "reason": "expired"}]]
#: Frames that are made once and drawn from, since making them costs more than sending.
POOL = 3000
#: Seconds after which a broker that gives no answer hangs.
PATIENCE = 30.0

Make = Callable[[random.Random], Any]


def table(choice: random.Random) -> dict[str, Any]:
    """Arguments of a queue, exchange, binding or consumer, one in ten of a wrong kind."""
    names = choice.sample(sorted(ARGUMENTS), choice.choice([0, 0, 0, 0, 1, 1, 2, 3]))
    return {name: choice.choice(WRONG if rarely(choice, 0.1) else ARGUMENTS[name]) for name in names}


def rarely(choice: random.Random, chance: float = 0.1) -> bool:
    return choice.random() < chance


def exchange(choice: random.Random) -> str:
    return choice.choice(SPECIAL if rarely(choice, 0.03) else EXCHANGES)


def declare_queue(choice: random.Random) -> Queue.Declare:
    if rarely(choice):
        return Queue.Declare(
            queue=choice.choice(QUEUES), passive=rarely(choice), durable=rarely(choice), exclusive=rarely(choice),
            auto_delete=rarely(choice), nowait=rarely(choice), arguments=table(choice),
        )  # fmt: skip
    name = choice.choice(sorted(DECLARED))
    return Queue.Declare(queue=name, nowait=rarely(choice), arguments=DECLARED[name])


def declare_exchange(choice: random.Random) -> Exchange.Declare:
    if rarely(choice):
        return Exchange.Declare(
            exchange=exchange(choice), auto_delete=rarely(choice), internal=rarely(choice),
            durable=rarely(choice), exchange_type=choice.choice([*KINDS.values(), "direct", "none"]),
            nowait=rarely(choice), arguments=table(choice),
        )  # fmt: skip
    name = choice.choice(sorted(KINDS))
    return Exchange.Declare(exchange=name, exchange_type=KINDS[name], nowait=rarely(choice))


#: How often each method comes, and with what.
METHODS: list[tuple[int, Make]] = [
    (10, declare_queue),
    (4, lambda c: Queue.Bind(
        queue=c.choice(QUEUES), exchange=exchange(c), routing_key=c.choice(KEYS), nowait=rarely(c),
        arguments=table(c))),
    (1, lambda c: Queue.Unbind(queue=c.choice(QUEUES), exchange=exchange(c), routing_key=c.choice(KEYS))),
    (1, lambda c: Queue.Purge(queue=c.choice(QUEUES), nowait=rarely(c))),
    (1, lambda c: Queue.Delete(queue=c.choice(QUEUES), if_unused=rarely(c), if_empty=rarely(c), nowait=rarely(c))),
    (4, declare_exchange),
    (1, lambda c: Exchange.Delete(exchange=exchange(c), if_unused=rarely(c))),
    (2, lambda c: Exchange.Bind(
        destination=exchange(c), source=exchange(c), routing_key=c.choice(KEYS), arguments=table(c))),
    (1, lambda c: Exchange.Unbind(
        destination=exchange(c), source=exchange(c), routing_key=c.choice(KEYS))),
    (5, lambda c: Basic.Consume(
        queue=c.choice(QUEUES), consumer_tag=c.choice(["", "t1", "t2", "t3"]), no_local=rarely(c),
        no_ack=rarely(c, 0.4), exclusive=rarely(c), nowait=rarely(c), arguments=table(c))),
    (2, lambda c: Basic.Cancel(consumer_tag=c.choice(["t1", "t2", "t4"]), nowait=rarely(c))),
    (5, lambda c: Basic.Get(queue=c.choice(QUEUES), no_ack=rarely(c))),
    (5, lambda c: Basic.Ack(*tag(c))),
    (3, lambda c: Basic.Nack(*tag(c), requeue=rarely(c, 0.5))),
    (1, lambda c: Basic.Reject(tag(c)[0], requeue=rarely(c, 0.5))),
    (1, lambda c: Basic.Recover(requeue=not rarely(c))),
    (3, lambda c: Basic.Qos(
        prefetch_count=c.choice([0, 1, 2, 10, 65535]), prefetch_size=int(rarely(c, 0.05)), global_=rarely(c, 0.4))),
    (2, lambda c: Confirm.Select(nowait=rarely(c))),
    (1, lambda c: c.choice([Tx.Select, Tx.Commit, Tx.Rollback])()),
    (1, lambda c: c.choice([Channel.Open(), Channel.CloseOk(), Connection.Blocked("no"), *[Channel.Flow(True)] * 20])),
    (1, lambda _: Channel.Close(200, "bye", 0, 0)),
]  # fmt: skip


def tag(choice: random.Random) -> tuple[int, bool]:
    """A delivery tag, and whether those before it are meant, too: mostly all of them."""
    return (0, True) if rarely(choice, 0.7) else (choice.choice([0, 1, 1, 1, 2, 3, 4, 10, 2**63 - 1]), rarely(choice))


def properties(choice: random.Random) -> Basic.Properties:
    found: dict[str, Any] = {}
    if rarely(choice, 0.5):
        names = choice.sample(["h", "h", "CC", "BCC", "x-death", "k"], choice.choice([1, 1, 2]))
        found["headers"] = {
            name: ["q1", "q2"] if "CC" in name and not rarely(choice) else choice.choice(HEADERS) for name in names
        }
    for name, values in (
        ("expiration", ["0", "1", "10", "10", "1000", "60000", "99999999999999", "x"]),
        ("priority", [0, 1, 5, 255]),
        ("delivery_mode", [1, 2]),
        ("reply_to", ["here", "here", "here", "amq.rabbitmq.reply-to"]),
        ("user_id", ["guest", "guest", "guest", "guest", "other"]),
        ("correlation_id", ["", "c" * 255]),
    ):
        if rarely(choice):
            found[name] = choice.choice(values)
    return Basic.Properties(**found)


def publication(choice: random.Random, channel: int) -> bytes:
    """A message, whose body may come in many frames, or be announced wrongly."""
    size = choice.choice([0, 0, 1, 10, 100, 100, 100, 5000, 140_000])
    method = Basic.Publish(
        exchange="" if rarely(choice, 0.5) else exchange(choice), routing_key=choice.choice(KEYS),
        mandatory=rarely(choice), immediate=rarely(choice, 0.01),
    )  # fmt: skip
    announced = size + int(rarely(choice, 0.03))
    parts = [
        frame.marshal(method, channel),
        frame.marshal(header.ContentHeader(0, announced, properties(choice)), channel),
    ]
    step = choice.choice([131_064, 4000] if size > 200 else [131_064, 1, 37])
    parts += [frame.marshal(body.ContentBody(b"b" * min(step, size - at)), channel) for at in range(0, size, step)]
    return b"".join(parts)


def damage(choice: random.Random, data: bytes) -> bytes:
    """Change some octets of frames, lose some, or have some twice."""
    found = bytearray(data)
    for _ in range(choice.choice([1, 1, 1, 2, 5])):
        if not found:
            break
        at = choice.randrange(len(found))
        what = choice.randrange(7)
        if what == 0:
            found[at] ^= 1 << choice.randrange(8)
        elif what == 1:
            found[at] = choice.choice([0, 1, 2, 127, 128, 206, 255])
        elif what == 2:
            del found[at : at + choice.choice([1, 2, 4, 8, 100])]
        elif what == 3:
            found[at:at] = choice.randbytes(choice.choice([1, 2, 8]))
        elif what == 4:
            found[at:at] = found[at : at + choice.choice([4, 20, 60])]
        elif what == 5:
            found[3:7] = struct.pack(">I", choice.choice([0, 1, 2**31, 2**32 - 1, 131_072, 131_073, len(found)]))
        else:
            del found[at:]
    return bytes(found)


def handshake(choice: random.Random) -> list[bytes]:
    capabilities: dict[str, Any] = {
        name: rarely(choice, 0.5) for name in ("consumer_cancel_notify", "authentication_failure_close")
    }
    password = "wrong" if rarely(choice, 0.03) else "guest"
    return [
        b"AMQP\0\0\x09\x01",
        frame.marshal(Connection.StartOk({"capabilities": capabilities}, response=f"\0guest\0{password}"), 0),
        frame.marshal(
            Connection.TuneOk(
                0 if rarely(choice, 0.02) else choice.choice([2047, 10]), choice.choice([131_072, 131_072, 4096]),
                choice.choice([0, 0, 1, 60]),
            ), 0,
        ),
        frame.marshal(Connection.Open("/"), 0),
    ]  # fmt: skip


class Sessions:
    """Draws sessions; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.choice = choice = random.Random(seed)
        self._openings = [frame.marshal(Channel.Open(), number) for number in (1, 2, 3)]
        self._declarations = [
            *(frame.marshal(Queue.Declare(queue=name, arguments=DECLARED[name]), 1) for name in DECLARED),
            *(frame.marshal(Exchange.Declare(exchange=name, exchange_type=KINDS[name]), 1) for name in KINDS),
        ]
        self._good_bye = frame.marshal(Connection.Close(200, "bye", 0, 0), 0)
        self._handshakes = [handshake(choice) for _ in range(50)]
        self._pool = [self._frames() for _ in range(POOL)]

    def _frames(self) -> bytes:
        """A method, or a message."""
        choice = self.choice
        channel = (
            choice.choice([1, 1, 1, 2, 3]) if not rarely(choice, 0.002) else choice.choice([0, 4, 65535, 2047, 2048])
        )
        if rarely(choice, 0.3):
            return publication(choice, channel)
        weights, makers = zip(*METHODS, strict=True)
        method = choice.choices(makers, weights)[0](choice)
        again = [Channel.Open()] if isinstance(method, Channel.Close) else []
        return b"".join(frame.marshal(one, channel) for one in [method, *again])

    def session(self) -> list[bytes]:
        """Return what a client sends: octets of the handshake, methods and messages."""
        choice = self.choice
        parts = list(choice.choice(self._handshakes))
        if rarely(choice, 0.05):
            parts[choice.randrange(4)] = damage(choice, choice.choice(parts))
        if rarely(choice, 0.02):
            parts.pop(choice.randrange(4))
        parts += self._openings[: 2 if rarely(choice, 0.05) else 3]
        if rarely(choice, 0.7):
            parts += self._declarations
        damaged = 0.05 if rarely(choice, 0.7) else 0.0
        for _ in range(choice.choice([0, 3, 10, 30, 100])):
            drawn = choice.choice(self._pool)
            parts.append(damage(choice, drawn) if choice.random() < damaged else drawn)
        if rarely(choice, 0.3):
            parts.append(self._good_bye)
        return parts


#: How a client answers when one of its channels is closed.
AGAIN = {
    number: frame.marshal(Channel.CloseOk(), number) + frame.marshal(Channel.Open(), number) for number in range(1, 4)
}
CLOSE, DELIVER, GET_OK = b"\0\x14\0\x28", b"\0\x3c\0\x3c", b"\0\x3c\0\x47"


class Player:
    """Plays one session over a socket."""

    def __init__(self, connection: socket.socket, choice: random.Random, counts: Counter[str]) -> None:
        self.connection = connection
        self.choice = choice
        self.counts = counts
        self.reads = not rarely(choice, 0.2)
        self._read = bytearray()
        connection.settimeout(0.2)

    def play(self, parts: list[bytes]) -> bool:
        """Send all, and end it in some way; return whether the connection is to stay."""
        try:
            self._send(parts)
            end = self.choice.choice([0, 1, 1, 1, 2, 2, 3, 4])
            if end == 0:  # a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == 1:
                self.connection.shutdown(socket.SHUT_WR)
            if end in (1, 2):
                while self._take(0.05):
                    pass
                self.counts["left open by the broker"] += 1
            return end == 3
        except OSError:  # ConnectionError, TimeoutError, or ENOTCONN of a shutdown
            self.counts["closed by the broker"] += 1
            return False

    def _send(self, parts: list[bytes]) -> None:
        """Send in pieces, reading now and then or never."""
        choice = self.choice
        whole = rarely(choice, 0.7)
        tiny = rarely(choice, 0.05)
        while parts:
            count = choice.choice([1, 2, 5, 20])
            data, parts = b"".join(parts[:count]), parts[count:]
            size = len(data) or 1 if whole else choice.choice([100, 1000, 50_000])
            if tiny and len(data) < 2000:
                size = 7
            for at in range(0, len(data), size):
                self._write(data[at : at + size])
            if self.reads:
                self._take(choice.choice([0, 0, 0.002]))
        self.counts["sent whole"] += 1

    def _write(self, data: bytes) -> None:
        deadline = time.monotonic() + PATIENCE
        while data:
            try:
                data = data[self.connection.send(data) :]
            except TimeoutError:
                # Nothing of its is read while so many answers wait for it.
                assert time.monotonic() < deadline, "the broker hangs"
                self.counts["not read from"] += 1
                if not self.reads:
                    raise
                self._take(0)

    def _take(self, patience: float) -> bool:
        """Read what is there within so many seconds, and heed it; return whether something was."""
        if not select.select([self.connection], [], [], patience)[0]:
            return False
        octets = self.connection.recv(1 << 20)
        if not octets:
            raise ConnectionError
        self._read += octets
        answers = b""
        at = 0
        while len(self._read) - at >= 7:
            kind, number, size = struct.unpack_from(">BHI", self._read, at)
            if len(self._read) - at < size + 8:
                break
            method = bytes(self._read[at + 7 : at + 11]) if kind == 1 else b""
            if method == CLOSE:
                answers += AGAIN.get(number, b"")
                self.counts["channels closed"] += 1
            self.counts["deliveries"] += method in (DELIVER, GET_OK)
            at += size + 8
        del self._read[:at]
        if answers:
            self._write(answers)
        return True


class Attackers:
    """Clients that play sessions one after the other, each a thread."""

    def __init__(self, port: int, seed: int, sessions: int, clients: int = 6) -> None:
        self.port = port
        self.errors: list[BaseException] = []
        self.counts: Counter[str] = Counter()
        self._left = iter(range(sessions))
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._play_on, args=(seed * 1000 + n,)) for n in range(clients)]

    def run(self) -> None:
        """Play all sessions."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _play_on(self, seed: int) -> None:
        sessions = Sessions(seed)
        idle: deque[socket.socket] = deque()
        counts: Counter[str] = Counter()
        try:
            while self._take():
                one = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
                if Player(one, sessions.choice, counts).play(sessions.session()):
                    idle.append(one)
                else:
                    one.close()
                if len(idle) > 20:
                    idle.popleft().close()
        except BaseException as error:
            self.errors.append(error)
        finally:
            for one in idle:
                one.close()
            with self._lock:
                self.counts += counts

    def _take(self) -> bool:
        with self._lock:
            return next(self._left, None) is not None and not self.errors


class Witness:
    """A client that keeps to the rules, and notes if what it publishes is not confirmed, or not what it gets."""

    def __init__(self, url: str) -> None:
        self.parameters = pika.URLParameters(url)
        self.parameters.blocked_connection_timeout = PATIENCE
        self.parameters.heartbeat = 10
        self.rounds = 0
        self.errors: list[BaseException] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            with pika.BlockingConnection(self.parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("witness", exclusive=True)
                while not self._done.wait(0.01):
                    self._round(channel)
        except BaseException as error:
            self.errors.append(error)

    def _round(self, channel: Any) -> None:
        written = b"%d" % self.rounds
        guard = threading.Timer(PATIENCE, channel.connection._impl._transport.abort)
        guard.start()
        try:
            channel.basic_publish("", "witness", written, mandatory=True)
            method, _, read = channel.basic_get("witness", auto_ack=False)
            channel.basic_ack(method.delivery_tag)
        finally:
            guard.cancel()
        assert read == written
        self.rounds += 1


def unwritable(name: str) -> bool:
    """Tell whether a name was not UTF-8."""
    return "\ufffd" in name


def sweep(url: str, status: Callable[[], dict[str, Any]]) -> None:
    """Delete all queues but the exclusive ones, and those whose damaged names pika cannot write."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for queue in status()["queues"]:
            if not queue["exclusive"] and not unwritable(queue["name"]):
                channel.queue_delete(queue["name"])


def attack(port: int, url: str, status: Callable[[], dict[str, Any]], *, seed: int, sessions: int) -> Counter[str]:
    """Play sessions beside a witness; fail unless that is unharmed, and everything is gone afterwards."""
    attackers = Attackers(port, seed, sessions)
    with Witness(url) as witness:
        attackers.run()
        sweep(url, status)
    assert witness.errors == []
    assert witness.rounds
    eventually(lambda: not status()["connections"], PATIENCE, "all connections have ended")
    sweep(url, status)
    left = [queue["name"] for queue in status()["queues"]]
    assert all(unwritable(name) for name in left), left
    if not left:
        for what in ("connections", "channels", "messages", "message_bytes"):
            eventually(lambda what=what: not status()[what], PATIENCE, f"no {what} are left")
    return attackers.counts
