"""As much of RabbitMQ's stream protocol as stores a consumer's offset, which takes an offset of the stream itself.

Layouts: the plugin's PROTOCOL.adoc.
"""

from __future__ import annotations

import socket
import struct
from typing import BinaryIO

_STORE_OFFSET, _PEER_PROPERTIES, _HANDSHAKE, _AUTHENTICATE, _TUNE, _OPEN = 10, 17, 18, 19, 20, 21


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _send(link: socket.socket, key: int, payload: bytes) -> None:
    frame = struct.pack(">HH", key, 1) + payload
    link.sendall(struct.pack(">I", len(frame)) + frame)


def _receive(file: BinaryIO) -> tuple[int, bytes]:
    """The key of the next frame, without the bit of a response, and what follows its version."""
    [size] = struct.unpack(">I", file.read(4))
    frame = file.read(size)
    return struct.unpack_from(">H", frame)[0] & 0x7FFF, frame[4:]


def store_offset(port: int, stream: str, reference: str, offset: int) -> None:
    """Store an offset under a name, as consumers do to go on from there."""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        file = link.makefile("rb")
        for number, (key, payload) in enumerate(
            [
                (_PEER_PROPERTIES, struct.pack(">i", 0)),
                (_HANDSHAKE, b""),
                (_AUTHENTICATE, _string("PLAIN") + struct.pack(">i", 12) + b"\0guest\0guest"),
            ]
        ):
            _send(link, key, struct.pack(">I", number) + payload)
            assert _receive(file)[0] == key
        key, limits = _receive(file)
        assert key == _TUNE
        _send(link, _TUNE, limits)
        _send(link, _OPEN, struct.pack(">I", 9) + _string("/"))
        assert _receive(file)[0] == _OPEN
        _send(link, _STORE_OFFSET, _string(reference) + _string(stream) + struct.pack(">Q", offset))
