"""The programs in C beside ours: a broker that only delivers and confirms, a client on librabbitmq, and a load.

They are compiled anew for each run of the benchmarks, into a folder of its own.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_SOURCES = Path(__file__).parent
_REMEDY = "the delivery benchmarks need gcc and librabbitmq's header: on Debian or Ubuntu apt-get install {}"


def _compile(folder: str, name: str, *options: str) -> Path:
    """Return the program that a source file is."""
    program = Path(folder, name)
    try:
        done = subprocess.run(
            ["gcc", "-O2", "-Wall", "-o", program, _SOURCES / f"{name}.c", *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RuntimeError(_REMEDY.format("gcc librabbitmq-dev")) from None
    if done.returncode:
        remedy = _REMEDY.format("librabbitmq-dev") if "rabbitmq" in done.stderr or "amqp.h" in done.stderr else ""
        raise RuntimeError(f"{name}.c does not compile; {remedy}\n{done.stderr}")
    return program


class Load:
    """What a broker is loaded with: load.c; for a ``with`` block."""

    def __enter__(self) -> Load:
        self._folder = tempfile.TemporaryDirectory(prefix="fairsched-load-")
        try:
            self._program = _compile(self._folder.name, "load", "-pthread")
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def run(self, port: int, *words: object) -> dict[str, float]:
        """Do what load.c says of these words, and return what it prints."""
        done = subprocess.run([self._program, str(port), *map(str, words)], stdout=subprocess.PIPE, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found

    @contextlib.contextmanager
    def idle(self, port: int, connections: int, queues: int) -> Iterator[None]:
        """Have so many connections, and so many queues, that do nothing."""
        words = [str(self._program), str(port), "idle", str(connections), str(queues)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"load idle ended with {process.wait()}")
            yield
            process.communicate()  # its standard input closes


class Loopback:
    """A feeder that runs, and the client; for a ``with`` block.

    Attributes
    ----------
    port : int
        Where the feeder listens. feeder.c says what it delivers.
    """

    def __enter__(self) -> Loopback:
        self._folder = tempfile.TemporaryDirectory(prefix="fairsched-loopback-")
        try:
            feeder = _compile(self._folder.name, "feeder", "-pthread")
            self._client = _compile(self._folder.name, "client", "-lrabbitmq")
            self._feeder = subprocess.Popen([feeder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert self._feeder.stdout is not None
            self.port = int(self._feeder.stdout.readline())
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._feeder.communicate(timeout=10)  # its standard input closes
        self._folder.cleanup()

    def fill(self, port: int, queue: str, messages: int, size: int) -> None:
        """Declare a queue at a broker on this machine and publish to it."""
        subprocess.run([self._client, "fill", str(port), queue, str(messages), str(size)], check=True)

    def consume(self, port: int, queue: str, messages: int, prefetch: int, ack: bool) -> dict[str, float]:
        """Consume in C; what that took, as client.c says."""
        return self._measure("consume", port, queue, messages, prefetch, int(ack))

    def publish(self, queue: str, messages: int, size: int, window: int) -> dict[str, float]:
        """Publish to the feeder in C, in rounds that are confirmed; what that took."""
        return self._measure("publish", self.port, queue, messages, size, window)

    def _measure(self, *words: object) -> dict[str, float]:
        arguments = map(str, words)
        done = subprocess.run([self._client, *arguments], stdout=subprocess.PIPE, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found
