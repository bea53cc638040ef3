"""Deliveries by the read: whole messages of one channel go straight from the socket's bytes into a list."""

from __future__ import annotations

import time
from struct import Struct
from typing import TYPE_CHECKING

from fairsched.consumer.transport import Transport

if TYPE_CHECKING:
    from fairsched.spark._collected import Collected

_DELIVER = Struct(">BHLI")
_CONTENT = Struct(">BHLHHQ")
_FRAME = Struct(">BHL")
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_BASIC_DELIVER = 60 << 16 | 60
#: A read costs as much as fifty messages. After one of fewer bytes the broker is given so many seconds to send more.
_SMALL, _PAUSE = 32_768, 0.001


class ScanningTransport(Transport):
    """A `Transport` that can give all deliveries of a read to a `Collected`.

    Attributes
    ----------
    target : Collected or None
        Takes the deliveries of its channel while it is not full.

    Notes
    -----
    For one thread. What is no whole delivery of the target's channel takes the way of `Transport`; a delivery that is
    not all here waits for the next read, unless its body comes in several frames. No call is made for a message.
    """

    target: Collected | None = None

    def _on_data_available(self, data_in: bytes) -> None:
        target = self.target
        if target is None or target.full or not self._shortcut:
            super()._on_data_available(data_in)
            return
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        self._frame_buffer = b""
        position, other = self._scan(buffer, target)
        self.bytes_received += position
        if position and not target.full and len(buffer) < _SMALL:
            time.sleep(_PAUSE)
        rest = buffer[position:] if position else buffer
        if other and rest:
            super()._on_data_available(rest)
        else:
            self._frame_buffer = rest

    def _scan(self, buffer: bytes, target: Collected) -> tuple[int, bool]:
        """Take deliveries; return where they end, and whether what follows is something else."""
        position, size, channel = 0, len(buffer), target.number
        longest = self.params.frame_max - 8
        add, now = target.deliveries.append, time.time_ns()
        room, space = target.room, target.space
        other = True
        while room > 0 and space > 0 and size - position >= 11:
            kind, number, length, method = _DELIVER.unpack_from(buffer, position)
            if method != _BASIC_DELIVER or number != channel or kind != _METHOD:
                break
            header = position + length + 8
            if size - header < 20:
                other = False
                break
            kind, number, length, _, _, body_size = _CONTENT.unpack_from(buffer, header)
            body = header + length + 8
            after = body + body_size + 8 if body_size else body
            if after > size or kind != _HEADER or number != channel:
                other = kind != _HEADER or number != channel or body_size > longest
                break
            if not (buffer[header - 1] == buffer[body - 1] == buffer[after - 1] == _END):
                break
            if body_size and _FRAME.unpack_from(buffer, body) != (_BODY, channel, body_size):
                break
            content = buffer[body + 7 : after - 1] if body_size else b""
            add((buffer[position + 7 : header - 1], buffer[header + 7 : body - 1], content, now))
            position = after
            room -= 1
            space -= body_size
        target.took(room, space)
        return position, other
