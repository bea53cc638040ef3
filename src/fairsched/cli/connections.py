"""A server with one thread per connection, and few connections."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any

_log = logging.getLogger(__name__)

#: Maximum number of connections at a time.
MOST_CONNECTIONS = 32


class FewConnections(ThreadingMixIn, TCPServer):
    """Server that handles each connection in its own thread; beyond the maximum, it ends the oldest connection.

    So a client that opens many connections, or sends slowly, neither delays others nor takes threads and descriptors
    from the program that is served.

    Parameters
    ----------
    listening : socket
        Where connections come in; closed with the server.
    handler : type
        Of `socketserver`.

    Notes
    -----
    `shutdown` may be called from any thread but that of `serve_forever`.
    """

    # http.server looks up the name of this machine first, which takes long without a working name server.
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseRequestHandler]) -> None:
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()
        #: The oldest first.
        self._connections: dict[Any, None] = {}
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request, and end the oldest connection if there are too many."""
        with self._guard:
            self._connections[request] = None
            if len(self._connections) > MOST_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._guard:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def end_all(self) -> None:
        """End all connections."""
        with self._guard:
            for request in self._connections:
                _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error that ended a request; a disconnected client is not an error."""
        gone = isinstance(sys.exception(), OSError)
        _log.log(logging.DEBUG if gone else logging.ERROR, "a request failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is gone by itself
        connection.shutdown(socket.SHUT_RDWR)
