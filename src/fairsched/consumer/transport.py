"""pika's connection with a short cut for deliveries, and writes that leave in one piece.

Everything but complete deliveries still runs through pika: handshake, tuning, heartbeats, channel life. The short cut
takes a delivery whose frames all lie in the buffer, slices the body out of it and leaves method and properties
undecoded until somebody asks. pika spends about 15 us of CPU on the three frames of a small message, most of it on
objects that a handler never looks at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from types import TracebackType
from typing import Any

import pika
from pika import frame as pika_frame

_log = logging.getLogger(__name__)

FRAME = Struct(">BHL")
DELIVER = Struct(">BHLI")
CONTENT = Struct(">BHLHHQ")
_TAG = Struct(">QB")
METHOD, HEADER, BODY, END = 1, 2, 3, 0xCE
BASIC_DELIVER = 60 << 16 | 60
# Frame header, then class, method and the length of the consumer tag.
_TAG_OFFSET = 7 + 5

#: Called with delivery tag, redelivered flag, raw method, raw content header and body.
Sink = Callable[[int, int, bytes, bytes, bytes], None]


class Transport(pika.SelectConnection):  # type: ignore[misc,unused-ignore]
    """A `pika.SelectConnection` that gives deliveries to sinks and can hold its writes together.

    Attributes
    ----------
    sinks : dict
        Sink per channel number; deliveries on other channels take pika's way.

    Notes
    -----
    For the I/O thread alone. Within ``with transport:`` frames are collected and leave as one write.

    pika offers no option for any of this, so ``_adapter_emit_data`` and ``_on_data_available`` are overridden. Where
    a pika of the future has no such methods, or keeps its input differently, everything works as before, only slower.
    """

    sinks: dict[int, Sink]
    _frame_buffer: bytes
    _held: list[bytes] | None = None
    _shortcut = False
    #: Bytes asked of the socket at once, where pika asks for 4 KiB: each call gives up the GIL, and getting it back
    #: from a handler that computes can take the interpreter's whole switch interval.
    _receive = 64 * 1024

    def open_shortcut(self) -> None:
        """Take the short cut from now on, if this pika allows it; to be called once the connection is open."""
        self.sinks = {}
        self._shortcut = isinstance(getattr(self, "_frame_buffer", None), bytes) and hasattr(self, "_process_frame")
        transport: Any = getattr(self, "_transport", None)
        if self._shortcut and hasattr(transport, "_MAX_RECV_BYTES"):
            transport._MAX_RECV_BYTES = self._receive
        else:
            _log.info(
                "pika %s keeps its input in a way that is not known here; deliveries take its way", pika.__version__
            )

    def _on_data_available(self, data_in: bytes) -> None:
        if not self._shortcut:
            super()._on_data_available(data_in)
            return
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        # While this runs, pika's own buffer is empty: what a callback does to the connection cannot touch our copy.
        self._frame_buffer = b""
        position, size, sinks = 0, len(buffer), self.sinks
        while size - position >= 8:
            kind, channel, length = FRAME.unpack_from(buffer, position)
            end = position + length + 8
            if end > size:
                break
            after = 0
            if kind == METHOD and channel in sinks:
                after = self._deliver(buffer, position, end, size, sinks[channel])
            if after:
                self.bytes_received += after - position
                position = after
                continue
            self._pass_on(buffer, position, end)
            position = end
        self._frame_buffer = buffer[position:] if position else buffer

    def _pass_on(self, buffer: bytes, start: int, end: int) -> None:
        """Give one complete frame to pika."""
        _, frame = pika_frame.decode_frame(buffer[start:end])
        self.bytes_received += end - start
        self._process_frame(frame)

    def _deliver(self, buffer: bytes, start: int, end: int, size: int, sink: Sink) -> int:
        """Give one complete delivery to its sink and return where it ends; 0 if it is something else or incomplete."""
        _, channel, _, method = DELIVER.unpack_from(buffer, start)
        if method != BASIC_DELIVER or size - end < 20:
            return 0
        body_size: int
        kind, number, length, _, _, body_size = CONTENT.unpack_from(buffer, end)
        body: int = end + length + 8
        after = body
        # One frame holds most bodies. A longer one, or one that is not all here, takes pika's way.
        if body_size:
            after += body_size + 8
            if after > size or FRAME.unpack_from(buffer, body) != (BODY, channel, body_size):
                return 0
        if after > size or kind != HEADER or number != channel:
            return 0
        if not buffer[end - 1] == buffer[body - 1] == buffer[after - 1] == END:
            return 0
        tag, redelivered = _TAG.unpack_from(buffer, start + _TAG_OFFSET + buffer[start + _TAG_OFFSET - 1])
        self.frames_received += 3 if body_size else 2
        content = buffer[body + 7 : after - 1] if body_size else b""
        sink(tag, redelivered, buffer[start + 7 : end - 1], buffer[end + 7 : body - 1], content)
        return after

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._held is None:
            super()._adapter_emit_data(data)
        else:
            self._held.append(data)

    def __enter__(self) -> Transport:
        self._held = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held and self.is_open:
            super()._adapter_emit_data(b"".join(held))
