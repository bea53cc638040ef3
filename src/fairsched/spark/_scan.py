"""Deliveries by the read: whole messages of one channel go straight from the socket's bytes into a list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairsched.consumer.transport import (
    BASIC_DELIVER,
    BODY,
    CONTENT,
    DELIVER,
    END,
    FRAME,
    HEADER,
    METHOD,
    Transport,
)  # fmt: skip

if TYPE_CHECKING:
    from fairsched.spark._collected import Collected

#: A read costs as much as fifty messages. After one of fewer bytes the broker is given so many seconds to send more.
_SMALL, _PAUSE = 131_072, 0.002


class ScanningTransport(Transport):
    """A `Transport` that can give all deliveries of a read to a `Collected`.

    Attributes
    ----------
    target : Collected or None
        Takes the deliveries of its channel while it is not full.

    Notes
    -----
    For one thread. No call is made for a message. What is no whole delivery of the target's channel takes pika's way, a
    frame at a time; a delivery that is not all here waits for the next read, unless its body comes in several frames.
    """

    target: Collected | None = None
    _receive = 256 * 1024

    def _on_data_available(self, data_in: bytes) -> None:
        target = self.target
        if target is None or target.full or not self._shortcut:
            super()._on_data_available(data_in)
            return
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        # While this runs, pika's own buffer is empty: what a callback does to the connection cannot touch our copy.
        self._frame_buffer = b""
        position = 0
        while self.target is target and not target.full:
            before = position
            position, other = self._scan(buffer, position, target)
            if other and not target.full:
                position = self._pass_on_next(buffer, position)
            if position == before or not other:
                break
        rest = buffer[position:] if position else buffer
        if rest and (self.target is not target or target.full):
            super()._on_data_available(rest)
            return
        self._frame_buffer = rest
        if position and len(buffer) < _SMALL:
            time.sleep(_PAUSE)

    def _pass_on_next(self, buffer: bytes, position: int) -> int:
        """Give the next frame to pika if it is all here, such as an answer among deliveries; return where it ends."""
        if len(buffer) - position < 8:
            return position
        end: int = position + FRAME.unpack_from(buffer, position)[2] + 8
        if end > len(buffer):
            return position
        self._pass_on(buffer, position, end)
        return end

    def _scan(self, buffer: bytes, start: int, target: Collected) -> tuple[int, bool]:
        """Take deliveries; return where they end, and whether what follows is something else."""
        position, size, channel = start, len(buffer), target.number
        longest = self.params.frame_max - 8
        add, now = target.deliveries.append, time.time_ns()
        room, space = target.room, target.space
        other = True
        while room > 0 and space > 0 and size - position >= 11:
            kind, number, length, method = DELIVER.unpack_from(buffer, position)
            if method != BASIC_DELIVER or number != channel or kind != METHOD:
                break
            header = position + length + 8
            if size - header < 20:
                other = False
                break
            kind, number, length, _, _, body_size = CONTENT.unpack_from(buffer, header)
            body = header + length + 8
            after = body + body_size + 8 if body_size else body
            if after > size or kind != HEADER or number != channel:
                other = kind != HEADER or number != channel or body_size > longest
                break
            if not (buffer[header - 1] == buffer[body - 1] == buffer[after - 1] == END):
                break
            if body_size and FRAME.unpack_from(buffer, body) != (BODY, channel, body_size):
                break
            content = buffer[body + 7 : after - 1] if body_size else b""
            add((buffer[position + 7 : header - 1], buffer[header + 7 : body - 1], content, now))
            position = after
            room -= 1
            space -= body_size
        self.bytes_received += position - start
        target.took(room, space)
        return position, other
