"""A socket that frames of the stream protocol go through, with TLS where asked for.

A frame is read into memory that grows as it arrives, so that a peer that announces a frame of 4 GiB takes no more than
what it sends.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time

from fairsched.errors import ConnectionFailed

#: Bytes that are read at once: some chunks.
_READ = 1 << 20
_HEAD = 4
#: Bytes that the kernel may receive before they are read.
_AHEAD = 4 << 20


class Link:
    """An open connection of sockets.

    Parameters
    ----------
    host : str
    port : int
    timeout : float
        Longest time to connect, and to send a frame, in seconds.
    context : ssl.SSLContext or None
        For TLS.
    server_hostname : str or None
        The name in the peer's certificate; None for `host`.

    Attributes
    ----------
    address : str
        host:port
    heard, sent : float
        When the last octets came or went, in seconds of `time.monotonic`.

    Raises
    ------
    ConnectionFailed
        From each method: the connection cannot be had, or was lost.
    """

    def __init__(
        self, host: str, port: int, timeout: float, context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:  # fmt: skip
        self.address = f"{host}:{port}"
        self._timeout = timeout
        self._buffer = bytearray(_READ)
        self._begin = self._end = 0
        try:
            plain = socket.create_connection((host, port), timeout)
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _AHEAD)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain
            if context is not None:
                self._socket = context.wrap_socket(plain, server_hostname=server_hostname or host)
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        self.heard = self.sent = time.monotonic()

    def _failed(self, error: Exception) -> ConnectionFailed:
        return ConnectionFailed(f"{self.address}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, octets: bytes) -> None:
        """Send some frames."""
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(octets)
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        self.sent = time.monotonic()

    def frame(self, until: float) -> memoryview | None:
        """Return the next frame without its length, valid until the next call; None if none came until then.

        What came of a frame is kept for the next call.
        """
        while True:
            held = self._end - self._begin
            size = _HEAD
            if held >= _HEAD:
                size += struct.unpack_from(">I", self._buffer, self._begin)[0]
                if held >= size:
                    found = memoryview(self._buffer)[self._begin + _HEAD : self._begin + size]
                    self._begin += size
                    return found
            self._make_room(size - held)
            if not self._receive(until):
                return None

    def _make_room(self, missing: int) -> None:
        """Have room for more octets: for what is missing of a frame, but for no more than came of it already."""
        held = self._end - self._begin
        wanted = min(missing, max(_READ, held))
        if self._end + wanted <= len(self._buffer):
            return
        source = self._buffer
        if held + wanted > len(source):
            self._buffer = bytearray(held + wanted)
        memoryview(self._buffer)[:held] = bytes(memoryview(source)[self._begin : self._end])
        self._begin, self._end = 0, held

    def _receive(self, until: float) -> bool:
        """Read what is there; wait for it until then; False if nothing came."""
        try:
            self._socket.settimeout(max(0.0, until - time.monotonic()))
            came = self._socket.recv_into(memoryview(self._buffer)[self._end :])
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        if not came:
            raise ConnectionFailed(f"{self.address}: the broker closed the connection")
        self._end += came
        self.heard = time.monotonic()
        return True
