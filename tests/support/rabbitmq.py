"""Brokers of the tests' own: a RabbitMQ node with its own name, ports, data and cookie, and the embedded broker."""

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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from support.ports import free_ports, is_taken
from support.waiting import eventually

REMEDY = (
    "RabbitMQ is needed for these tests and was not found. On Debian or Ubuntu: apt-get install rabbitmq-server; "
    "elsewhere put rabbitmq-server on PATH. 'make test-quick' runs the tests that need no server."
)
#: Seconds for the start of a node, which takes five of processor time: a node that ends is noticed at once.
BOOT_TIMEOUT = 180.0
#: Messages of one transaction; RabbitMQ 4.3 refuses more than 10 000.
TRANSACTION = 5000

#: What FAIRSCHED_TEST_BROKER may name: the RabbitMQ of this machine, the embedded broker, or a RabbitMQ that
#: `tools/install-servers rabbitmq-4` puts beside it.
CHOICES = ("rabbitmq", "embedded", "rabbitmq-4.0", "rabbitmq-4.3")

# Runs port mapper and broker, and ends with them: when its standard input closes, so that no broker is left behind
# however the tests end; and when one of the two ends, so that nobody waits for a broker that does not boot.
GUARD = """
import os, signal, socket, subprocess, sys, threading, time
epmd, port, server = sys.argv[1:]

def run(*command):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=lambda: end(f"{command[0]} ended with {process.wait()}")).start()

def end(why):
    print(why, flush=True)
    os.killpg(0, signal.SIGKILL)

def listens():
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", int(port))) == 0

run(epmd, "-port", port)
# A broker that finds no port mapper starts one that outlives it.
while not listens():
    time.sleep(0.01)
run(server)
sys.stdin.read()
end("the tests ended it")
"""

# The embedded broker, with the port, the data directory and the users that it is given: its port, and an answer to each
# line that it reads.
SERVE = """
import json, sys
from fairsched import Broker
port, data_dir, users = json.loads(sys.argv[1])
with Broker(port=port, data_dir=data_dir, users=users) as broker:
    print(broker.port, flush=True)
    for line in sys.stdin:
        what, argument = json.loads(line)
        if what == "memory_limit":
            broker.memory_limit = argument
        answer = getattr(broker, what)
        print(json.dumps(answer() if callable(answer) else answer), flush=True)
"""

#: The name of each queue, and how many messages it has; to be asked in Erlang.
MESSAGES = """
[{binary_to_list(Name), Count} || [{name, {resource, _, queue, Name}}, {messages, Count}]
    <- rabbit_amqqueue:info_all(<<"/">>, [name, messages])].
"""

#: Deletes all virtual hosts and all that is in them, and all users but one, who then has a virtual host again.
FORGET = """
[rabbit_vhost:delete(Host, <<"test">>) || Host <- rabbit_vhost:list_names()],
[rabbit_auth_backend_internal:delete_user(User, <<"test">>)
    || {user, User} <- lists:flatten(rabbit_auth_backend_internal:list_users()), User =/= <<"guest">>],
rabbit_vhost:add(<<"/">>, #{}, <<"test">>),
rabbit_auth_backend_internal:set_permissions(
    <<"guest">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).
"""

#: Quorum queues forward an unconfirmed dead letter again after these milliseconds, instead of three minutes.
FORWARD_SOON = "-rabbit dead_letter_worker_publisher_confirm_timeout 10000"

#: Returns once what was declared is on disk: the log of Mnesia, and the names of quorum queues, which RabbitMQ 3.10
#: writes every half second.
SYNC = "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()]."


def binary(text: str) -> str:
    """Return text as a binary in Erlang."""
    return f"<<{json.dumps(text)}>>"


def numbered(count: int) -> list[bytes]:
    """Return bodies that differ."""
    return [b"%d" % number for number in range(count)]


def find_program(name: str, *places: str) -> str:
    """Return the path of a program; prefer `places`, whose scripts do not change the user."""
    for place in places:
        if os.access(f"{place}/{name}", os.X_OK):
            return f"{place}/{name}"
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(REMEDY)
    return found


def chosen_broker() -> str:
    """Return the broker that this run is on: FAIRSCHED_TEST_BROKER."""
    chosen = os.environ.get("FAIRSCHED_TEST_BROKER", "rabbitmq")
    if chosen not in CHOICES:
        raise ValueError(f"FAIRSCHED_TEST_BROKER must be one of {', '.join(CHOICES)}, got {chosen!r}")
    return chosen


def root_of(name: str) -> str:
    """Return the folder in which that RabbitMQ is in usr; empty for the one of this machine."""
    if name == "rabbitmq":
        return ""
    root = Path(__file__).parents[2] / "build" / name
    if not root.is_dir():
        raise RuntimeError(f"{root} is missing: tools/install-servers rabbitmq-4 puts it there")
    return str(root)


#: Users of an embedded broker that stands for RabbitMQ, where they can be added later.
USERS = {"guest": "guest", "app": "hush-hush"}


class Broker(ABC):
    """A broker, and the operations of tests on it; it may be killed and started again over the same data."""

    port: int
    _process: subprocess.Popen[Any] | None = None

    @abstractmethod
    def start(self) -> None:
        """Return when clients can connect; again on the same port, and over the same data."""

    @abstractmethod
    def close(self) -> None:
        """End the broker and remove its files."""

    @abstractmethod
    def restart_cleanly(self) -> None:
        """Have the broker close everything, and start again over the same data."""

    @abstractmethod
    def close_connections(self) -> None:
        """Have the broker close all connections, as its operator would."""

    @abstractmethod
    def raise_memory_alarm(self) -> None:
        """Have the broker block publishers; there must be a message in a queue."""

    @abstractmethod
    def clear_memory_alarm(self) -> None:
        """Let publishers go on."""

    @abstractmethod
    def channels(self) -> int:
        """Return how many channels are open."""

    @abstractmethod
    def add_user(self, name: str, password: str) -> str:
        """Add a user who may do everything; returns the URL for that user."""

    @property
    def hashes_types(self) -> bool:
        """Whether its consistent-hash exchange hashes the types of headers, as RabbitMQ's before 3.13."""
        return False

    def kill(self) -> None:
        """End the broker as a power cut would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=30)
            self._process = None

    def restart(self) -> None:
        """Kill the broker and start it again over the same data."""
        self.kill()
        self.start()

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
        return self.url_of("guest", "guest")

    def url_of(self, user: str, password: str) -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/%2F"

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

    def publish(self, queue: str, bodies: Iterable[bytes], **properties: object) -> None:
        """Fill a queue through the default exchange; return when all messages are in it, and persistent ones on disk.

        In transactions, since a busy quorum queue loses what is not confirmed when the channel ends.
        """
        settings = pika.BasicProperties(**properties)
        with self.connect() as channel:
            channel.queue_declare(queue, passive=True)
            channel.tx_select()
            raw = channel._impl
            for number, body in enumerate(bodies, 1):
                raw.basic_publish("", queue, body, settings)
                if number % 500 == 0:
                    channel.connection.process_data_events(0)
                if number % TRANSACTION == 0:
                    channel.tx_commit()
            channel.tx_commit()

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
    """A RabbitMQ node."""

    def __init__(self, *, tls: bool = False, asks_certificates: bool = False, streams: bool = False) -> None:
        if on_embedded():
            raise RuntimeError("this run is on the embedded broker: mark what needs RabbitMQ with pytest.mark.rabbitmq")
        self.root = root_of(chosen_broker())
        self.server = self._program("rabbitmq-server")
        self.epmd_program = self._program("epmd")
        #: The folder of its Erlang.
        self.erlang = Path(self._program("erl")).resolve().parents[1]
        self.home = Path(tempfile.mkdtemp(prefix="fairsched-rabbitmq-"))
        self._ports = free_ports(6)
        self.port, self.dist_port, self.epmd_port, self.tls_port, self.stream_port, self.stream_tls_port = self._ports
        self.name = f"fairsched-{os.getpid()}-{self.port}@localhost"
        self.tls = tls
        #: Whether clients need a certificate too.
        self.asks_certificates = asks_certificates
        #: Its version, such as (3, 10, 8), once it runs.
        self.version: tuple[int, ...] = ()
        #: Whether it speaks the stream protocol.
        self.streams = streams
        self._write_files()

    def _program(self, name: str) -> str:
        """Return the path of a program of RabbitMQ's or of its Erlang's; prefer those that do not change the user."""
        return find_program(name, *(f"{self.root}/usr/{place}" for place in ("lib/rabbitmq/bin", "bin")))

    @property
    def hashes_types(self) -> bool:
        return self.version < (3, 13)

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self.tls_port}/%2F"

    @property
    def stream_url(self) -> str:
        return f"rabbitmq-stream://guest:guest@127.0.0.1:{self.stream_port}/%2F"

    @property
    def stream_tls_url(self) -> str:
        return f"rabbitmq-stream+tls://guest:guest@localhost:{self.stream_tls_port}/%2F"

    @property
    def certificate(self) -> Path:
        return self.home / "server.pem"

    @property
    def client_certificate(self) -> Path:
        """A certificate that the node trusts, if it asks for one."""
        return self.home / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.home / "client-key.pem"

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
        if self.tls and self.streams:
            lines += [f"stream.listeners.ssl.1 = 127.0.0.1:{self.stream_tls_port}"]
        if self.tls:
            self._make_certificates()
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self.certificate}",
                f"ssl_options.certfile = {self.certificate}",
                f"ssl_options.keyfile = {self.home / 'key.pem'}",
                f"ssl_options.verify = verify_{'peer' if self.asks_certificates else 'none'}",
                f"ssl_options.fail_if_no_peer_cert = {str(self.asks_certificates).lower()}",
            ]
        (self.home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def _make_certificates(self) -> None:
        alternatives = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        self._make_certificate("localhost", self.certificate, self.home / "key.pem", "-addext", alternatives)
        if self.asks_certificates:
            signer = ["-CA", str(self.certificate), "-CAkey", str(self.home / "key.pem")]
            # The end of a chain must not be its beginning too.
            signer += ["-addext", "basicConstraints=critical,CA:FALSE"]
            self._make_certificate("guest", self.client_certificate, self.client_key, *signer)

    @staticmethod
    def _make_certificate(name: str, certificate: Path, key: Path, *options: str) -> None:
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", str(key), "-out", str(certificate), *options,
            ],
            check=True, capture_output=True,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(self.server).parent}:{self.erlang / 'bin'}:{os.environ.get('PATH', '')}",
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
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": FORWARD_SOON,
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
        try:
            eventually(self._answers, BOOT_TIMEOUT, "RabbitMQ boots")
        except Exception as error:
            error.add_note(self._last_words())
            raise

    def _last_words(self) -> str:
        """Return how busy the machine is, and the ends of the files into which the node writes."""
        load = f"load average: {os.getloadavg()}\n"
        files = [self.home / "console.log", *sorted((self.home / "log").glob("*.log"))]
        return load + "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def kill(self) -> None:
        """End the node as a power cut would; returns when the system has closed its sockets.

        Only the guard is a child of ours, and it may be gone before the others of its group are. A node that starts
        while its predecessor still listens ends at once.
        """
        super().kill()
        eventually(lambda: not any(map(is_taken, self._ports)), what="the sockets of a killed RabbitMQ are closed")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended while booting, with {self._process.returncode}")
        try:
            # pika reports a refused connection at length, so ask the port first.
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            with self.connect() as channel:
                version = channel.connection._impl.server_properties["version"]
        except (OSError, pika.exceptions.AMQPError, AMQPConnectorException):
            return False
        self.version = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        return True

    def restart(self) -> None:
        """Kill the broker and start it again over the same data.

        With Mnesia, RabbitMQ answers a declaration, or a deletion, before the log of it is on disk: it may forget one
        when it is killed at once. That is not what is tested here, so the log is written first. Later versions keep
        what is declared in Khepri, which is on disk before they answer.
        """
        if self.version < (4, 2):
            self.evaluate(SYNC)
        super().restart()

    def restart_cleanly(self) -> None:
        """Have the broker close everything, and start again over the same data."""
        # By rabbitmqctl, which waits for a busy node; Erlang's client may begin a start and not see it through.
        self.control("stop_app")
        self.control("start_app")
        eventually(self._answers, BOOT_TIMEOUT, "RabbitMQ starts again")

    def close_connections(self) -> None:
        self.evaluate('[rabbit_networking:close_connection(Pid, "test") || Pid <- rabbit_networking:connections()].')

    def raise_memory_alarm(self) -> None:
        self._limit_memory("{absolute, 1}", alarm=True)

    def clear_memory_alarm(self) -> None:
        self._limit_memory("0.6", alarm=False)

    def _limit_memory(self, limit: str, *, alarm: bool) -> None:
        """Limit the memory of this node; return when its connections have been told of the alarm, or of its end.

        The process that answers which alarms there are has told all connections of them before.
        """
        self.order(f"vm_memory_monitor:set_vm_memory_high_watermark({limit}).")
        eventually(lambda: ("memory" in self.evaluate("rabbit_alarm:get_alarms().")) == alarm, what=f"alarm: {alarm}")

    def add_user(self, name: str, password: str) -> str:
        # Another test of this process may have left a user of that name, with another password.
        self.delete_user(name)
        self.order(f'rabbit_auth_backend_internal:add_user({binary(name)}, {binary(password)}, <<"test">>).')
        self.permit(name)
        return self.url_of(name, password)

    def delete_user(self, name: str) -> None:
        """Delete a user, if there is one."""
        self.evaluate(f'catch rabbit_auth_backend_internal:delete_user({binary(name)}, <<"test">>).')

    def permit(self, user: str, configure: str = ".*", write: str = ".*", read: str = ".*", *, host: str = "/") -> None:
        """Set what a user may do in a virtual host, by the patterns of names."""
        names = ", ".join(map(binary, (user, host, configure, write, read)))
        self.order(f'rabbit_auth_backend_internal:set_permissions({names}, <<"test">>).')

    def add_host(self, name: str, queue_type: str | None = None) -> None:
        """Add a virtual host that guests may use, with a default type of queues."""
        metadata = "" if queue_type is None else f"default_queue_type => {binary(queue_type)}"
        self.order(f'rabbit_vhost:add({binary(name)}, #{{{metadata}}}, <<"test">>).')
        self.permit("guest", host=name)

    def delete_host(self, name: str) -> None:
        self.order(f'rabbit_vhost:delete({binary(name)}, <<"test">>).')

    def forget(self) -> bool:
        """Have nothing left of what a test did; False if something is, as on a node that does not run."""
        if self._process is None:
            return False
        try:
            self.close_connections()
            self.order(" ".join(FORGET.split()))
            return "resource_limit" not in self.evaluate("rabbit_alarm:get_alarms().")
        except (AssertionError, subprocess.SubprocessError):
            return False

    def set_policy(self, queue: str, definition: dict[str, Any]) -> None:
        """Set a policy for one queue."""
        names = ", ".join(map(binary, ("/", queue, f"^{queue}$", json.dumps(definition))))
        self.order(f'rabbit_policy:parse_set({names}, <<"0">>, <<"all">>, <<"test">>).')

    def close(self) -> None:
        """End the broker and remove its files."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl on this node and return what it prints."""
        program = self._program("rabbitmqctl")
        done = subprocess.run(
            [program, "--quiet", "-n", self.name, *arguments], env=self.environment, capture_output=True, text=True,
            timeout=BOOT_TIMEOUT, check=True,
        )  # fmt: skip
        return done.stdout

    def channels(self) -> int:
        [count] = re.findall(r"\d+", self.evaluate("length(rabbit_channel:list())."))
        return int(count)

    def evaluate(self, expression: str) -> str:
        """Evaluate Erlang on this node; return its answer as Erlang prints it."""
        answer = self._evaluate(expression)
        return self.control("eval", expression) if answer is None else answer

    def order(self, expression: str) -> None:
        """Evaluate Erlang whose answer is to be ok."""
        answer = self.evaluate(expression).strip()
        assert answer in ("{ok, ok}", "ok"), f"{expression}: {answer}"

    def _evaluate(self, expression: str) -> str | None:
        """Evaluate Erlang on this node; None where rabbitmqctl would wait: while the node is busy, or starts.

        With Erlang's own client, since rabbitmqctl takes a second of processor time to start.
        """
        [program, *_] = self.erlang.glob("erts-*/bin/erl_call")
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
    """The embedded broker in a process of its own, since tests count the threads of theirs.

    It has a data directory, or keeps all in memory.
    """

    def __init__(self, *, durable: bool = False, users: dict[str, str] | None = None) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="fairsched-embedded-") if durable else None
        self.port = 0
        self.users = users
        self._asking = threading.Lock()

    def start(self) -> None:
        directory = None if self.home is None else self.home.name
        # It ends with its standard input.
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps([self.port, directory, self.users])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the embedded broker ended while it started, with {self._process.wait(30)}")
        self.port = int(line)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _end(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=30)
            self._process = None

    def close(self) -> None:
        self._end()
        if self.home is not None:
            self.home.cleanup()

    def restart_cleanly(self) -> None:
        self._end()
        self.start()

    def close_connections(self) -> None:
        self._ask("close_connections")

    def raise_memory_alarm(self) -> None:
        self._ask("memory_limit", 1)
        eventually(lambda: self._ask("status")["memory_alarm"], what="it is short of memory")

    def clear_memory_alarm(self) -> None:
        self._ask("memory_limit", 0)

    def add_user(self, name: str, password: str) -> str:
        assert (self.users or {}).get(name) == password, f"the users are named when the broker is made: {self.users}"
        return self.url_of(name, password)

    def channels(self) -> int:
        return self._ask("status")["channels"]

    def messages(self) -> dict[str, int]:
        return {queue["name"]: queue["depth"] for queue in self._ask("status")["queues"]}

    def _ask(self, what: str, argument: object = None) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            print(json.dumps([what, argument]), file=self._process.stdin)
            return json.loads(self._process.stdout.readline())


def on_embedded() -> bool:
    """Whether this run is on the embedded broker."""
    return chosen_broker() == "embedded"


def make_broker(*, durable: bool = False) -> Node | EmbeddedNode:
    """Make the broker that this run is on; a `durable` one may be killed and has everything again."""
    return EmbeddedNode(durable=durable, users=USERS) if on_embedded() else Node(streams=True)
