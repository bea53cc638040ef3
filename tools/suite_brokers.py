"""Brokers where test suites of others look for one: at port 5672 of localhost, in a network of their own."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

from container_host import Container, ContainerHost
from suites import ROOT

PORT, TLS_PORT = 5672, 5671
#: Run a command in a network of its own, in which nothing else is reachable.
ALONE = ("unshare", "--map-root-user", "--net")


class Embedded:
    """`fairsched broker`, as far as tests do something to the broker itself."""

    def __init__(self, port: int, tls_port: int) -> None:
        self.port = port
        #: Where nobody listens.
        self.tls_port = tls_port
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if self._process is None:
            command = [sys.executable, "-m", "fairsched.cli", "broker", "--port", str(self.port)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self._process.stdout is not None
            assert self._process.stdout.readline().startswith("amqp://")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            code = self._process.wait(60)
            self._process.communicate()
            self._process = None
            if code:
                raise RuntimeError(f"fairsched broker ended with {code}")

    def control(self, command: str) -> None:
        """Do what rabbitmqctl's command does."""
        {"stop_app": self.close, "start_app": self.start}[command]()


def maker(broker: str) -> Callable[..., Container]:
    """Return what makes a broker of this kind, at these ports or any free ones."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    os.environ["FAIRSCHED_TEST_BROKER"] = broker  # which RabbitMQ a Node is
    from support.ports import free_ports
    from support.rabbitmq import Node

    class Fixed(Node):
        def __init__(self, port: int, tls_port: int) -> None:
            self._fixed = port, tls_port
            super().__init__(tls=True)

        def _write_files(self) -> None:
            self.port, self.tls_port = self._fixed
            super()._write_files()

        def start(self) -> None:
            if self._process is None:
                super().start()

    kind = Embedded if broker == "embedded" else Fixed
    return lambda *ports: kind(*(ports or free_ports(2)))


@contextlib.contextmanager
def serving(broker: str) -> Iterator[None]:
    """Run the broker where the suites look for one, and what makes more of them."""
    make = maker(broker)
    shared = make(PORT, TLS_PORT)
    try:
        shared.start()
        with ContainerHost(make):
            yield
    finally:
        shared.close()


def raise_loopback() -> None:
    """Let this network, which is new, reach itself."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
    with socket.socket() as any_socket:
        request = array.array("B", struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(any_socket, SIOCGIFFLAGS, request)
        _, flags = struct.unpack_from("16sh", request)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
