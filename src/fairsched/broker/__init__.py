"""An AMQP 0-9-1 broker inside a Python process: for laptops, tests and edge nodes.

    with fairsched.Broker() as broker:
        pika.BlockingConnection(pika.URLParameters(broker.url))

Its I/O threads never take the GIL (core/broker); Python checks passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import logging
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from fairsched._core import checked_timeout
from fairsched.amqp.bounds import LARGEST_HEARTBEAT, LARGEST_PORT
from fairsched.amqp.fieldtables import write_table
from fairsched.scheduling.greenlets import refuse

try:
    from fairsched.broker._broker import Server
    from fairsched.broker._journal import Store
except ModuleNotFoundError as error:
    raise ImportError(
        f"the embedded broker needs the sockets of POSIX, which {sys.platform} has not: use RabbitMQ, or a container"
    ) from error

__all__ = ["Broker"]

_log = logging.getLogger(__name__)

#: Cost of scrypt: 4 MiB and about ten milliseconds.
_SCRYPT = {"n": 4096, "r": 8, "p": 1}
#: Cost for the public password of the user guest: no time.
_PUBLIC = {**_SCRYPT, "n": 2}
_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
_STOP_SECONDS = 5.0
#: Largest body in octets, as in RabbitMQ.
_MESSAGE_MOST = 536870912
#: Log line for an address.
_NO_TLS = (
    "connection from %s closed: it began TLS, which the broker does not support; use a URL with amqp:// instead of "
    "amqps://, or put a TLS proxy in front"
)
#: Largest body in octets that can be stored on disk.
_KEPT_MOST = 268435456


class _Passwords:
    """Users and the salted hashes of their passwords; nothing is kept in clear."""

    def __init__(self, users: Mapping[str, str], cost: Mapping[str, int]) -> None:
        self._cost = cost
        self._hashes: dict[bytes, tuple[bytes, bytes]] = {}
        for user, password in users.items():
            salt = os.urandom(16)
            self._hashes[user.encode()] = salt, self._hash(password.encode(), salt)
        self._unknown = os.urandom(16), os.urandom(64)

    def _hash(self, password: bytes, salt: bytes) -> bytes:
        return hashlib.scrypt(password, salt=salt, **self._cost)

    def admits(self, user: bytes, password: bytes) -> bool:
        salt, expected = self._hashes.get(user, self._unknown)  # which takes as long
        return hmac.compare_digest(self._hash(password, salt), expected)


def _nanoseconds(name: str, seconds: float | None) -> int:
    """Convert a timeout; 0: none, as is one of more than 146 years."""
    nanoseconds = checked_timeout(seconds, name) * 1e9
    return math.ceil(nanoseconds) if nanoseconds < 2**62 else 0


class Broker:
    """An AMQP 0-9-1 broker that runs from `start` to `close`, or within a with statement.

    Parameters
    ----------
    host : str
        Numeric address to listen on.
    port : int
        Port to listen on; 0: any free port.
    users : Mapping[str, str], optional
        User names and passwords. None: the user guest with the password guest, from this machine only.
    vhosts : Sequence[str]
        Virtual hosts.
    io_threads : int
        Number of threads that serve connections.
    heartbeat : int
        Heartbeat in seconds, suggested to clients; 0: none.
    max_connections, max_queues : int
        0: no limit.
    max_message_size : int
        Maximum size of a body in bytes, up to 536870912 as in RabbitMQ; with a data directory, up to 268435456.
    memory_limit : int
        Bytes of messages above which publishers are blocked; 0: no limit. The attribute may be set at any time.
    consumer_timeout : float, optional
        Seconds within which deliveries must be acknowledged; None or 0: no limit. A queue's `x-consumer-timeout` takes
        precedence.
    data_dir : str or path, optional
        A directory that only this broker uses, created if it does not exist. Durable exchanges and queues, and
        persistent messages in durable queues, are stored there and survive the process. None: everything is kept in
        memory only.

    Attributes
    ----------
    port : int
        The port it listens on, once started.
    url : str
        The URL for clients: `amqp://guest:guest@127.0.0.1:…/%2F`.

    Raises
    ------
    ValueError
        A parameter is invalid.
    OSError
        `start`: the broker cannot listen on the address, or cannot write to the data directory.
    RuntimeError
        `start`: the data directory is in use by another broker; or gevent or eventlet has replaced threads by
        greenlets, which the broker would block.

    Notes
    -----
    With a data directory, a confirm, or the reply to a declaration, is sent once the message or declaration is on disk.
    Users are not stored there. TLS is not supported: put a TLS proxy in front, or listen on loopback only. Thread
    safety: call `start` and `close` from one thread.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        users: Mapping[str, str] | None = None,
        vhosts: Sequence[str] = ("/",),
        io_threads: int = 1,
        heartbeat: int = 60,
        max_connections: int = 0,
        max_queues: int = 0,
        max_message_size: int = 134217728,
        memory_limit: int = 0,
        consumer_timeout: float | None = 1800.0,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if not 0 <= port <= LARGEST_PORT:
            raise ValueError(f"port must be 0 to {LARGEST_PORT}, got {port!r}")
        if io_threads < 1:
            raise ValueError(f"io_threads must be 1 or more, got {io_threads!r}")
        if not 0 <= heartbeat <= LARGEST_HEARTBEAT:
            raise ValueError(f"heartbeat must be 0 to {LARGEST_HEARTBEAT} seconds, got {heartbeat!r}")
        for name, value in (
            ("max_connections", max_connections),
            ("max_queues", max_queues),
            ("max_message_size", max_message_size),
            ("memory_limit", memory_limit),
        ):
            if value < 0:
                raise ValueError(f"{name} must be 0 or more, got {value!r}")
        if max_message_size > _MESSAGE_MOST:
            raise ValueError(f"max_message_size must be {_MESSAGE_MOST} at most, got {max_message_size!r}")
        if data_dir is not None and max_message_size > _KEPT_MOST:
            raise ValueError(f"max_message_size must be {_KEPT_MOST} at most with data_dir, got {max_message_size!r}")
        if data_dir is not None and not os.fspath(data_dir):
            raise ValueError(f"data_dir must be the path of a directory, got {data_dir!r}")
        if not vhosts or isinstance(vhosts, str):
            raise ValueError(f"vhosts must name at least one virtual host, got {vhosts!r}")
        self.host = host
        self._wanted_port = port
        self._guest_only = users is None
        self._passwords = _Passwords({"guest": "guest"}, _PUBLIC) if users is None else _Passwords(users, _SCRYPT)
        self._user = "guest:guest@" if users is None else ""
        self._vhosts = tuple(vhosts)
        self._io_threads = io_threads
        self._limits = {
            "connections": max_connections,
            "queues": max_queues,
            "channel_max": 2047,
            "frame_max": 131072,
            "heartbeat": heartbeat,
            "message_size": max_message_size,
            "memory": memory_limit,
            "handshake": 10_000_000_000,
            "ack_timeout": _nanoseconds("consumer_timeout", consumer_timeout),
        }
        self._data_dir = data_dir
        self._store: Store | None = None
        self._server: Server | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> Broker:
        """Restore the contents of the data directory, listen, and serve connections from now on."""
        refuse("the embedded broker needs", "run it in a process of its own, by `fairsched broker`")
        if self._server is not None:
            raise RuntimeError("the broker has started")
        store = Store(self._data_dir) if self._data_dir is not None else None
        try:
            self._server = self._make(store)
        except BaseException:
            if store is not None:
                store.close()
            raise
        self._store = store
        loops = [self._server.run] * self._io_threads + [self._check_passwords]
        self._threads = [
            threading.Thread(target=loop, name=f"fairsched-broker-{number}", daemon=True)
            for number, loop in enumerate(loops)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Close all connections, as RabbitMQ does at shutdown, and stop.

        Messages in the queues are lost, except durable contents if there is a data directory.
        """
        server, self._server = self._server, None
        if server is None:
            return
        server.quiet()
        deadline = time.monotonic() + _STOP_SECONDS
        while server.counts()["connections"] and time.monotonic() < deadline:
            if deadline - time.monotonic() < _STOP_SECONDS - 1:
                server.disconnect()
            time.sleep(0.002)
        server.stop()
        for thread in self._threads:
            thread.join()
        self._threads = []
        store, self._store = self._store, None
        if store is not None:
            server.say_closed()
            store.close()

    def close_connections(self) -> None:
        """Close all connections, as `rabbitmqctl close_all_connections` does: with 320, CONNECTION_FORCED.

        Clients may reconnect at once. Use it to test how a program reacts.

        Raises
        ------
        RuntimeError
            The broker is not running.

        Notes
        -----
        Safe from any thread; O(connections). Returns before clients are notified.
        """
        self._running().close_connections()

    @property
    def memory_limit(self) -> int:
        """Bytes of messages above which publishers are blocked; 0: no limit.

        Set it to 1 while a message is queued to block publishers with `connection.blocked`, as RabbitMQ's memory alarm
        does; set it to 0 to unblock them. The change takes up to half a second.
        """
        return self._limits["memory"]

    @memory_limit.setter
    def memory_limit(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"memory_limit must be 0 or more, got {limit!r}")
        if self._server is not None:
            self._server.limit_memory(limit)
        self._limits["memory"] = limit

    def _make(self, store: Store | None) -> Server:
        try:
            server = Server(
                self.host,
                self._wanted_port,
                properties=write_table(_server_properties()),
                vhosts=self._vhosts,
                limits=self._limits,
                store=store,
            )
        except ValueError as error:
            path = store.path if store is not None else ""
            raise ValueError(f"the contents of {path} cannot be restored: {error}") from None
        if store is not None:
            store.flush()  # drops the record of the last shutdown
            store.start()
        return server

    def _check_passwords(self) -> None:
        server = self._server
        assert server is not None
        while (login := server.login()) is not None:
            token, user, password, local, peer = login
            admitted = False
            try:
                if user is None:
                    _log.warning(_NO_TLS, peer)
                else:
                    admitted = self._passwords.admits(user, password) and (local or not self._guest_only)
            except Exception:  # such as MemoryError: the next check may succeed
                _log.exception("password of a login from %s could not be checked; login refused", peer)
            server.answer(token, admitted)

    @property
    def port(self) -> int:
        """The port that the broker listens on."""
        return self._running().port

    @property
    def url(self) -> str:
        """The URL for clients."""
        vhost = quote(self._vhosts[0], safe="")  # %2F: to some clients an empty path is a virtual host without a name
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{self._user}{host}:{self.port}/{vhost}"

    def status(self) -> dict[str, Any]:
        """Return the numbers of connections, channels and messages, and the state of each queue and consumer.

        Returns
        -------
        dict
            JSON-serializable: "connections", "channels", "messages", "message_bytes", "memory_alarm" (whether
            publishers are blocked), "data_file" (None: there is none), "data_error" (why durable contents are no longer
            accepted, or None), and "queues", a list of dicts: "vhost", "name", "durable", "exclusive", "ready", "depth"
            (including unacknowledged messages), "bytes", "consumers", and the counters since the start "published",
            "delivered", "acknowledged". "consumers" is a list of dicts: "vhost", "queue", "tag", "connection",
            "channel", "prefetch", "priority", "acknowledges", and "list", the list of its queue that it is in:
            "interested", "notified" (it is taking messages), "not interested" (its prefetch is used up, or its
            connection accepts no more).

        Notes
        -----
        Safe from any thread; O(queues + consumers). The figures are not a consistent snapshot.
        """
        server = self._running()
        store = self._store
        data = {
            "data_file": store.path if store is not None else None,
            "data_error": store.complaint if store is not None else None,
        }
        return {**server.counts(), **data, "queues": server.queues(), "consumers": server.consumers()}

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the broker is not running: call start, or use a with statement")
        return self._server

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _server_properties() -> dict[str, Any]:
    return {
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "cluster_name": "fairsched",
        "copyright": "The fairsched authors",
        "information": "Weighted fair consuming for RabbitMQ",
        "platform": f"Python {platform.python_version()}",
        "product": "fairsched",
        "version": importlib.metadata.version("fairsched"),
    }
