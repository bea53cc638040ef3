"""A Unix socket for requests to a worker: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from socketserver import StreamRequestHandler
from types import TracebackType
from typing import Any, Self

from fairsched.cli.connections import FewConnections
from fairsched.errors import ConfigurationError

_log = logging.getLogger(__name__)

#: Longest request, in bytes.
LONGEST_REQUEST = 65_536
#: Seconds after which an idle connection is closed.
PATIENCE = 60.0
#: Seconds to wait for another process that creates its socket.
_LOCK_PATIENCE = 5.0


#: Sockets of this process. A child process must close them: otherwise it would answer after the worker has ended.
_listening_here: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class ControlSocket:
    """Answers requests on a Unix socket until it is closed.

    Parameters
    ----------
    path : str
        Where; only the user of this process may open it (mode 0600). A socket there that does not answer any more is
        replaced.
    answer : callable
        ``answer(request)``: from an object of JSON to another; called in a thread of the connection. What it raises is
        logged.

    Raises
    ------
    ConfigurationError
        If another process answers at the path, something else is there, or there can be no socket.

    Notes
    -----
    One thread per connection, as many as `FewConnections` allows; a client that is silent for a minute is disconnected.
    After a request that is too long nothing more of the connection is read.
    """

    def __init__(self, path: str, answer: Callable[[Any], Any]) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise ConfigurationError(f"control needs Unix sockets, which {sys.platform} does not have")
        self.path = os.path.abspath(path)
        try:
            with _locked(os.path.dirname(self.path)):
                _clear(self.path)
                listening = _listening(self.path)
                self._identity = _identity(self.path)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at control={path!r}: {error.strerror or error}") from error
        self._server = _Server(listening, answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="fairsched-control-socket", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and remove the socket unless another process has replaced it."""
        self._server.shutdown()
        self._thread.join()
        # In this order, a client that finds the path finds a server that answers, or a refused connection.
        with contextlib.suppress(OSError), _locked(os.path.dirname(self.path)):
            if _identity(self.path) == self._identity:
                os.unlink(self.path)
        self._server.server_close()
        self._server.end_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Lock a directory against other processes that create or remove control sockets; it ends with the process."""
    import fcntl  # Windows has none, and no Unix sockets

    found = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(found)


def _clear(path: str) -> None:
    """Remove a stale socket; refuse any other file."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigurationError(f"control must be a path at which nothing is, but there is a file at {path!r}")
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:  # the process that created it is gone
            os.unlink(path)
            return
        except BlockingIOError:  # more are waiting for an answer than it has room for
            pass
    raise ConfigurationError(f"another process answers at control={path!r}; each worker needs its own path")


def _listening(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    try:
        before = os.umask(0o177)  # so that there is no moment at which others may open it
        try:
            found.bind(path)
        finally:
            os.umask(before)
        found.listen(128)
        _listening_here.add(found)
    except BaseException:
        found.close()
        raise
    return found


def _in_child() -> None:
    for one in list(_listening_here):
        one.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


class _Server(FewConnections):
    def __init__(self, listening: socket.socket, answer: Callable[[Any], Any]) -> None:
        super().__init__(listening, _Handler)
        self.answer = answer


class _Handler(StreamRequestHandler):
    server: _Server
    timeout = PATIENCE

    def handle(self) -> None:
        """Answer requests until the client leaves."""
        while line := self.rfile.readline(LONGEST_REQUEST + 1):
            if len(line) > LONGEST_REQUEST:
                self._send({"error": f"a request is a line of at most {LONGEST_REQUEST} bytes"})
                return
            self._send(self._answer(line))

    def _answer(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return {"error": "a request is a line with an object of JSON"}
        return self.server.answer(request)

    def _send(self, answer: Any) -> None:
        self.wfile.write(json.dumps(answer, allow_nan=False).encode() + b"\n")


def ask(path: str, request: Any, timeout: float = 5.0) -> Any:
    """Send a request to a worker's control socket.

    Parameters
    ----------
    path : str
        Where the socket is.
    request : object
        An object of JSON.
    timeout : float
        Longest wait in seconds.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    OSError
        If no worker answers.
    ValueError
        If the answer is not of JSON.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(timeout)
        asking.connect(path)
        asking.sendall(json.dumps(request).encode() + b"\n")
        with asking.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the worker closed the connection")
    return json.loads(line)
