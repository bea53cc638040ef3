"""A small HTTP server with a few pages, each generated per request."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from fairsched.cli.connections import FewConnections

#: Addresses that only this machine, and that any machine can reach.
HERE, EVERYWHERE = "127.0.0.1", ""

#: Names that browsers use for this machine.
_NAMES = {"127.0.0.1", "localhost"}


class Page(NamedTuple):
    """The body and the type of an answer."""

    text: str
    kind: str = "text/plain"
    code: HTTPStatus = HTTPStatus.OK


class HttpServer:
    """Answers GET and HEAD requests until it is closed.

    Parameters
    ----------
    pages : mapping
        By path, what returns the page; called in a thread of the request.
    port : int
        Where to listen; 0 for any free port.
    host : str
        `HERE` or `EVERYWHERE`, that is on all interfaces. Here, a request by a name that is not of this machine is
        refused: a page from elsewhere caused it.

    Raises
    ------
    OSError
        If the port is taken.

    Notes
    -----
    One thread a request, as many as `FewConnections` allows. Nothing can be changed by it.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Page]], port: int = 0, host: str = HERE) -> None:
        self._server = _Server(_listening(host, port), pages, _NAMES if host == HERE else ())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="fairsched-http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """URL of the first page, on this machine."""
        return f"http://127.0.0.1:{self.port}/"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _listening(host: str, port: int) -> socket.socket:
    """Listen, everywhere means by IPv6 and IPv4 where the machine has both."""
    if host == EVERYWHERE and socket.has_dualstack_ipv6():
        try:
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise  # anything else: IPv6 is switched off
    return socket.create_server((host, port))


class _Server(FewConnections):
    def __init__(
        self, listening: socket.socket, pages: Mapping[str, Callable[[], Page]], names: Collection[str]
    ) -> None:
        super().__init__(listening, _Handler)
        self.pages = pages
        #: Host names that are accepted; empty: any.
        self.names = names


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "fairsched"
    sys_version = ""
    #: Seconds within which a request must arrive.
    timeout = 10

    def do_GET(self) -> None:
        """Answer a request."""
        names, pages = self.server.names, self.server.pages
        try:
            path, host = urlsplit(self.path).path, urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            self._answer(Page("this is no address\n", code=HTTPStatus.BAD_REQUEST))
            return
        if names and host not in names:
            self._answer(Page("ask for 127.0.0.1 or localhost\n", code=HTTPStatus.MISDIRECTED_REQUEST))
        elif (make := pages.get(path)) is not None:
            self._answer(make())
        else:
            self._answer(Page(f"there are {' and '.join(pages)}\n", code=HTTPStatus.NOT_FOUND))

    do_HEAD = do_GET

    def _answer(self, page: Page) -> None:
        body = page.text.encode()
        self.send_response(page.code)
        self.send_header("Content-Type", f"{page.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error belongs to the served program."""
