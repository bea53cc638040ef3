"""A private RabbitMQ node with its own name, ports, data and cookie: nothing of the machine's own broker is touched."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import pika

REMEDY = (
    "RabbitMQ is needed for these tests and was not found. On Debian or Ubuntu: apt-get install rabbitmq-server; "
    "elsewhere put rabbitmq-server on PATH. 'make test-quick' runs the tests that need no server."
)
BOOT_TIMEOUT = 90.0

# Runs port mapper and broker, and ends with them when its standard input closes: however the tests end, no broker is
# left behind.
GUARD = """
import os, signal, subprocess, sys
epmd, port, server = sys.argv[1:]
subprocess.Popen([epmd, "-port", port], stdin=subprocess.DEVNULL)
subprocess.Popen([server], stdin=subprocess.DEVNULL)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""

# The embedded broker, with the port and the data directory that it is given: its port, and its status for each line
# that it reads.
SERVE = """
import json, sys
from fairsched import Broker
with Broker(port=int(sys.argv[1]), data_dir=sys.argv[2] or None) as broker:
    print(broker.port, flush=True)
    for _ in sys.stdin:
        print(json.dumps(broker.status()), flush=True)
"""

#: The name of each queue, and how many messages it has; to be asked in Erlang.
MESSAGES = """
[{binary_to_list(Name), Count} || [{name, {resource, _, queue, Name}}, {messages, Count}]
    <- rabbit_amqqueue:info_all(<<"/">>, [name, messages])].
"""

#: Returns once what was declared is on disk.
SYNC = "mnesia:sync_log()."


def eventually(condition: Callable[[], object], timeout: float = 30.0, what: str = "") -> None:
    """Return once `condition()` is true; fail when that takes longer than `timeout` seconds."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or condition}"
        pause.wait(0.01)


def numbered(count: int) -> list[bytes]:
    """Return bodies that differ."""
    return [b"%d" % number for number in range(count)]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def find_program(name: str, *places: str) -> str:
    """Return the path of a program; prefer `places`, whose scripts do not change the user."""
    for place in places:
        if os.access(f"{place}/{name}", os.X_OK):
            return f"{place}/{name}"
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(REMEDY)
    return found


class Broker(ABC):
    """What tests do at a broker."""

    port: int

    @abstractmethod
    def start(self) -> None:
        """Return when clients can connect."""

    @abstractmethod
    def close(self) -> None:
        """End the broker and remove its files."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @contextlib.contextmanager
    def connect(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        """A channel of a connection of its own."""
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def declare(self, *queues: str, **options: object) -> None:
        with self.connect() as channel:
            for queue in queues:
                channel.queue_declare(queue, durable=True, **options)

    def delete(self, *queues: str) -> None:
        with self.connect() as channel:
            for queue in queues:
                channel.queue_delete(queue)

    def publish(self, queue: str, bodies: Iterable[bytes], *, commit: bool = False, **properties: object) -> None:
        """Fill a queue through the default exchange; fast, because nothing is flushed in between.

        A quorum queue needs a commit: a busy one forgets what comes last right before the end of the channel.
        """
        settings = pika.BasicProperties(**properties)
        with self.connect() as channel:
            if commit:
                channel.tx_select()
            raw = channel._impl
            for number, body in enumerate(bodies):
                raw.basic_publish("", queue, body, settings)
                if number % 500 == 499:
                    channel.connection.process_data_events(0)
            if commit:
                # Comes back when persistent messages are on the disk.
                channel.tx_commit()
            # A synchronous call comes back only after the broker has taken everything before it.
            channel.queue_declare(queue, passive=True)

    def count(self, queue: str) -> int:
        """Messages that are ready in a queue."""
        with self.connect() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def left(self, *queues: str) -> int:
        """Messages in queues, ready or not acknowledged."""
        counts = self.messages()
        return sum(counts[queue] for queue in queues)

    @abstractmethod
    def messages(self) -> dict[str, int]:
        """Messages in each queue, ready or not acknowledged."""


class Node(Broker):
    """One broker, started, killed and started again over the same data."""

    def __init__(self, *, tls: bool = False, streams: bool = False) -> None:
        self.server = find_program("rabbitmq-server", "/usr/lib/rabbitmq/bin")
        self.epmd_program = find_program("epmd", "/usr/bin")
        self.home = Path(tempfile.mkdtemp(prefix="fairsched-rabbitmq-"))
        self.port, self.dist_port, self.epmd_port, self.tls_port, self.stream_port = free_ports(5)
        self.name = f"fairsched-{os.getpid()}-{self.port}@localhost"
        self.tls = tls
        #: Whether it speaks the stream protocol.
        self.streams = streams
        self._process: subprocess.Popen[bytes] | None = None
        self._write_files()

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self.tls_port}/%2F"

    @property
    def certificate(self) -> Path:
        return self.home / "server.pem"

    def _write_files(self) -> None:
        cookie = self.home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self.home / "env.conf").touch()
        (self.home / "plugins").write_text("[rabbitmq_stream].\n" if self.streams else "[].\n")
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "log.file.level = warning",
            # Alarms must come from the tests alone, however full the disk is.
            "disk_free_limit.absolute = 1MB",
        ]
        if self.streams:
            lines += [f"stream.listeners.tcp.1 = 127.0.0.1:{self.stream_port}"]
        if self.tls:
            self._make_certificate()
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self.certificate}",
                f"ssl_options.certfile = {self.certificate}",
                f"ssl_options.keyfile = {self.home / 'key.pem'}",
                "ssl_options.verify = verify_none",
                "ssl_options.fail_if_no_peer_cert = false",
            ]
        (self.home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def _make_certificate(self) -> None:
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-keyout", str(self.home / "key.pem"), "-out", str(self.certificate),
            ],
            check=True, capture_output=True,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(self.server).parent}:{os.environ.get('PATH', '')}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.home / "config"),
        }

    def start(self) -> None:
        """Start the broker and return when it accepts connections."""
        (self.home / "pid").unlink(missing_ok=True)
        with (self.home / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [sys.executable, "-c", GUARD, self.epmd_program, str(self.epmd_port), self.server],
                env=self.environment, stdin=subprocess.PIPE, stdout=console, stderr=console, cwd=self.home,
                start_new_session=True,
            )  # fmt: skip
        eventually(self._answers, BOOT_TIMEOUT, f"RabbitMQ boots; see {self.home}/console.log")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended while booting:\n{(self.home / 'console.log').read_text()[-2000:]}")
        try:
            # pika reports a refused connection at length, so ask the port first.
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            with self.connect():
                return True
        except OSError:
            return False
        except pika.exceptions.AMQPError:
            return False

    def kill(self) -> None:
        """End the broker as a power cut would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=30)
            self._process = None

    def freeze(self, seconds: float) -> threading.Timer:
        """Stop the broker where it is, and let it go on after so many seconds; returns at once what is to do that."""
        assert self._process is not None
        group = self._process.pid
        os.killpg(group, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)

        timer = threading.Timer(seconds, go_on)
        timer.start()
        return timer

    def restart(self) -> None:
        """Kill the broker and start it again over the same data.

        RabbitMQ answers a declaration, or a deletion, before Mnesia's log of it is on disk: it may forget one when it
        is killed at once. That is not what is tested here, so the log is written first.
        """
        if self._evaluate(SYNC) is None:
            self.control("eval", SYNC)
        self.kill()
        self.start()

    def restart_cleanly(self) -> None:
        """Have the broker close everything, and start again over the same data."""
        self.control("stop_app")
        self.control("start_app")
        eventually(self._answers, BOOT_TIMEOUT, "RabbitMQ starts again")

    def close(self) -> None:
        """End the broker and remove its files."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl on this node and return what it prints."""
        program = find_program("rabbitmqctl", "/usr/lib/rabbitmq/bin")
        done = subprocess.run(
            [program, "--quiet", "-n", self.name, *arguments], env=self.environment, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def _evaluate(self, expression: str) -> str | None:
        """Evaluate Erlang on this node; None where rabbitmqctl would wait: while the node is busy, or starts.

        With Erlang's own client, since rabbitmqctl takes a second of processor time to start.
        """
        [program, *_] = Path(find_program("erl")).resolve().parents[1].glob("erts-*/bin/erl_call")
        done = subprocess.run(
            [program, "-sname", self.name, "-e"], env=self.environment, input=f"{expression}\n", capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 and done.stdout.startswith("{ok, ") else None

    def messages(self) -> dict[str, int]:
        """Messages in each queue, ready or not acknowledged."""
        if (answer := self._evaluate(MESSAGES)) is not None:
            return {name: int(count) for name, count in re.findall(r'\{"(.+?)", (\d+)\}', answer)}
        listed = self.control("list_queues", "--no-table-headers", "name", "messages").splitlines()
        return {name: int(count) for name, count in (line.split("\t") for line in listed)}


class EmbeddedNode(Broker):
    """The embedded broker in the place of RabbitMQ; what only RabbitMQ's node can do is skipped."""

    def start(self, port: int = 0, data_dir: str = "") -> None:
        # In a process of its own, since tests count the threads of theirs; it ends with its standard input.
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(port), data_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def messages(self) -> dict[str, int]:
        """Messages in each queue, ready or not acknowledged."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin)
        return {queue["name"]: queue["depth"] for queue in json.loads(self._process.stdout.readline())["queues"]}

    def __getattr__(self, name: str) -> object:
        if hasattr(Node, name):
            import pytest

            pytest.skip(f"{name} is RabbitMQ's")
        raise AttributeError(name)


class DurableNode(EmbeddedNode):
    """The embedded broker with a data directory, killed and started again over it, as `Node` is."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def start(self, port: int = 0, data_dir: str = "") -> None:
        super().start(port, data_dir or str(self.data_dir))

    def kill(self) -> None:
        """End the broker where it is."""
        self._process.kill()
        self._process.communicate(timeout=30)

    def restart(self) -> None:
        """Kill the broker and start it again over the same data."""
        self.kill()
        self.start(self.port)

    def restart_cleanly(self) -> None:
        """Have the broker close everything, and start again over the same data."""
        self.close()
        self.start(self.port)


def shared_broker() -> Node | EmbeddedNode:
    """Make the broker that tests share: RabbitMQ, unless FAIRSCHED_TEST_BROKER is "embedded"."""
    return EmbeddedNode() if os.environ.get("FAIRSCHED_TEST_BROKER") == "embedded" else Node()
