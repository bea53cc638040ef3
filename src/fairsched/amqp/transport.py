"""pika's connection with a short cut for deliveries, and writes that leave in one piece.

Everything but complete deliveries still runs through pika: handshake, tuning, heartbeats, channel life. The short cut
takes a delivery whose frames all lie in the buffer, slices the body out of it and leaves method and properties
undecoded until asked for (core/amqp/frames.pxd); one that is not all here yet waits for the next read. pika spends
about 15 us of CPU on the three frames of a small message, most of it on objects that a handler never looks at.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import sys
from collections.abc import Callable
from struct import Struct
from types import TracebackType
from typing import Any

import pika
from pika import frame as pika_frame

from fairsched.amqp.properties import ReceivedProperties
from fairsched.delivery._delivery import ChannelDeliveries, give_deliveries
from fairsched.errors import ConfigurationError

_log = logging.getLogger(__name__)

_FRAME = Struct(">BHL")
#: What is around a frame's payload.
_AROUND = 8

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
#: Octets of a content header for class basic: where they begin in a frame, what they begin with, the fewest there are.
_HEAD, _BASIC, _LEAST = 7, b"\0\x3c", 14
_BODY_SIZE = Struct(">Q")
#: Class and method of what has a content: basic.publish, return, deliver and get-ok.
_WITH_CONTENT = frozenset(bytes((0, 60, 0, method)) for method in (40, 50, 60, 71))
#: Those after which a channel has none: channel.open-ok, close and close-ok.
_ANEW = frozenset(bytes((0, 20, 0, method)) for method in (11, 40, 41))

#: Bytes of a frame that settles.
_SETTLEMENT = 21

#: Bytes that the kernel may receive before they are read: most prefetch windows are smaller.
_AHEAD = 4 << 20

#: What the short cut needs of pika, which promises none of it: methods of the connection, and attributes of some type.
_METHODS = ("_on_data_available", "_process_frame", "_adapter_emit_data")
_ATTRIBUTES = {
    "_frame_buffer": bytes, "bytes_received": int, "frames_received": int, "bytes_sent": int, "frames_sent": int
}  # fmt: skip

#: What channels give their deliveries to; a function is called with delivery tag, redelivered flag, raw method, raw
#: content header and body.
Sink = ChannelDeliveries | Callable[[int, int, bytes, bytes, bytes], None]


def decode_frame(data: bytes) -> tuple[int, Any]:
    """Decode a frame as pika does, but leave the properties in a content header for later: pika fails at some.

    Parameters
    ----------
    data : bytes
        Begins with it.

    Returns
    -------
    end : int
        Where it ends; 0 when it is not all here.
    frame : pika.frame.Frame or None
        It. The properties of a content header are `ReceivedProperties`.

    Raises
    ------
    Exception
        What pika raises at a frame that is none.
    """
    if len(data) > _HEAD + _LEAST and data[0] == _HEADER and data.startswith(_BASIC, _HEAD):
        _, channel, size = _FRAME.unpack_from(data)
        end = _HEAD + size
        if size >= _LEAST and end < len(data) and data[end] == _END:
            header = data[_HEAD:end]
            return end + 1, pika_frame.Header(channel, _BODY_SIZE.unpack_from(header, 4)[0], ReceivedProperties(header))
    found: tuple[int, Any] = pika_frame.decode_frame(data)
    return found


@functools.cache
def _tell(missing: str) -> None:
    """Log why the short cut is not taken; once, since pika stays what it is."""
    _log.warning("deliveries take pika's way, which is slower: this is pika %s, %s", pika.__version__, missing)


def enlarge_receive_buffer(sock: socket.socket) -> None:
    """Have the kernel receive up to a prefetch window of messages before they are read.

    A broker on the same machine whose TCP window is closed sends in the processor time of the consumer, whenever that
    reads: a quarter of what a message costs in Arrow batches, if it has 1 KiB.

    Raising SO_RCVLOWAT enlarges the buffer, up to half of the maximum in ``net.ipv4.tcp_rmem`` (3 MiB by default). In
    contrast to SO_RCVBUF, the kernel goes on to tune the size of the buffer, and ``net.core.rmem_max`` is no limit.

    Source: ``tcp_set_rcvlowat`` in Linux's net/ipv4/tcp.c.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            for octets in (_AHEAD, 1):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, octets)


class Transport(pika.SelectConnection):  # type: ignore[misc,unused-ignore]
    """A `pika.SelectConnection` that gives deliveries to sinks and can hold its writes together.

    Attributes
    ----------
    sinks : dict
        Sink per channel number; deliveries on other channels take pika's way.
    reading : bool
        Whether deliveries are being taken out of what was read, after which `after_read` is called.
    after_read : callable
        Called when all that one read brought was given to the sinks.

    Notes
    -----
    For the I/O thread alone, but for what `LentConnection` uses. Within ``with transport:`` frames are collected and
    leave as one write.

    pika offers no option for any of this, so ``_adapter_emit_data``, ``_on_data_available`` and ``_read_frame`` are
    overridden. Where a pika of the future has no such methods, or keeps its input differently, `shortcut` stays False:
    everything works as before, only slower, and as long as pika can decode the properties of every message.
    """

    sinks: dict[int, Sink]
    reading = False
    after_read: Callable[[], None] = staticmethod(lambda: None)
    _frame_buffer: bytes
    #: While pika has a part of a content: by channel, bytes of the body that were announced, if any, and that came.
    unfinished: dict[int, tuple[int | None, int]]
    _held: list[bytes] | None = None
    _shortcut = False
    _direct = False
    #: Bytes asked of the socket at once from `open_shortcut` on, where pika asks for 4 KiB: each call gives up the GIL,
    #: and getting it back from a handler that computes can take the interpreter's whole switch interval.
    receive = 64 * 1024

    def open_shortcut(self, fast: bool | None = None) -> None:
        """Take the short cut from now on, if this pika allows it; to be called once the connection is open.

        Parameters
        ----------
        fast : bool, optional
            None: the log says once what of pika is missing; True: that is an error; False: take pika's way.

        Raises
        ------
        ConfigurationError
            If this pika does not allow it, and `fast` is True.
        """
        self.sinks, self.unfinished = {}, {}
        missing = self._missing()
        if missing and fast:
            raise ConfigurationError(f"fast must be None or False with pika {pika.__version__} {missing}, got True")
        if missing and fast is None:
            _tell(missing)
        self._shortcut = not missing and fast is not False
        transport: Any = getattr(self, "_transport", None)
        if self._shortcut and hasattr(transport, "_MAX_RECV_BYTES"):
            transport._MAX_RECV_BYTES = self.receive
            # TLS keeps bytes back, and has states of its own: there pika reads until nothing comes, and writes.
            self._direct = type(transport).__name__ == "_AsyncPlaintextTransport" and hasattr(transport, "_sock")
            if self._direct:
                enlarge_receive_buffer(transport._sock)
                # One read each time that the socket is readable: pika's second finds nothing, and makes an exception.
                transport._MAX_CONSUME_BYTES = 1

    @property
    def descriptor(self) -> int | None:
        """The socket's, where others may read and write it while the I/O thread waits."""
        transport: Any = getattr(self, "_transport", None)
        return transport._sock.fileno() if self._direct and self.is_open and transport is not None else None

    @property
    def flowing(self) -> bool:
        """Whether everything written has left, on an open connection."""
        transport: Any = getattr(self, "_transport", None)
        return self.is_open and transport is not None and transport.get_write_buffer_size() == 0

    @property
    def whole(self) -> bool:
        """Whether pika has no part of a content, whose rest is for it too."""
        return not self.unfinished

    @property
    def incomplete(self) -> bytes:
        """What was read and is no whole frame yet; with it begins what is read next."""
        return self._frame_buffer

    @incomplete.setter
    def incomplete(self, octets: bytes) -> None:
        self._frame_buffer = octets

    @property
    def shortcut(self) -> bool:
        """Whether deliveries take the short cut."""
        return self._shortcut

    def _missing(self) -> str:
        """Say what of pika is not as the short cut needs it, if anything is."""
        names = [f"{name}()" for name in _METHODS if not callable(getattr(pika.SelectConnection, name, None))]
        names += [
            f"{name}: {kind.__name__}"
            for name, kind in _ATTRIBUTES.items()
            if not isinstance(getattr(self, name, None), kind)
        ]
        return "whose connections have no " + ", ".join(names) if names else ""

    def drop(self) -> None:
        """Close the socket at once, in whatever state: the broker takes back what it sent. For when the loop has ended.

        pika closes sockets by callbacks of the loop alone. While it connects, it is its connector that has the socket.
        """
        connector = getattr(getattr(self, "_connection_workflow", None), "_connector", None)
        for holder in (getattr(self, "_transport", None), connector):
            found = getattr(holder, "_sock", None)
            if found is not None:
                found.close()

    def _on_data_available(self, data_in: bytes) -> None:
        if not self._shortcut:
            super()._on_data_available(data_in)
            return
        self.reading = True
        try:
            self._take(data_in)
        finally:
            self.reading = False
        self.after_read()

    def _take(self, data_in: bytes) -> None:
        """Give deliveries to their sinks, and other frames to whom they are for."""
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        # While this runs, pika's own buffer is empty: what a callback does to the connection cannot touch our copy.
        self._frame_buffer = b""
        position = 0
        while True:
            start = position
            position, other, frames = self._take_known(buffer, start)
            self.bytes_received += position - start
            self.frames_received += frames
            end = self._pass_on_next(buffer, position) if other else position
            if end == position:
                break
            position = end
        self._frame_buffer = buffer[position:] if position else buffer

    def _take_known(self, buffer: bytes, start: int) -> tuple[int, bool, int]:
        """Take the frames at `start` that need no look from pika; return as `give_deliveries` does."""
        return give_deliveries(buffer, start, self.longest, self.sinks, self.unfinished)

    @property
    def longest(self) -> int:
        """Bytes of the longest body that comes in one frame."""
        longest: int = self.params.frame_max - _AROUND
        return longest

    def _pass_on_next(self, buffer: bytes, start: int) -> int:
        """Give the next frame to whom it is for, if it is all here; return where it ends, or `start`."""
        if len(buffer) - start < _AROUND:
            return start
        end: int = start + _FRAME.unpack_from(buffer, start)[2] + _AROUND
        if end > len(buffer):
            return start
        frame = buffer[start:end]
        self.bytes_received += end - start
        self._process_frame(decode_frame(frame)[1])
        self._account(frame)
        return end

    def _account(self, frame: bytes) -> None:
        """Note how far pika is with a channel's content: what comes on that channel must not overtake it."""
        kind, channel, size = _FRAME.unpack_from(frame)
        if kind == _METHOD:
            method = frame[_HEAD : _HEAD + 4]
            if method in _ANEW:
                self.unfinished.pop(channel, None)
            elif method in _WITH_CONTENT:
                self.unfinished.setdefault(channel, (None, 0))
        elif kind in (_HEADER, _BODY):
            announced, came = self.unfinished.pop(channel, (None, 0))
            if kind == _HEADER:
                announced = _BODY_SIZE.unpack_from(frame, _HEAD + 4)[0]
            else:
                came += size
            if announced != (0 if kind == _HEADER else came):
                self.unfinished[channel] = announced, came

    def _read_frame(self) -> tuple[int, Any]:
        found = getattr(self, "_frame_buffer", None)
        return decode_frame(found) if isinstance(found, bytes) else super()._read_frame()  # type: ignore[no-any-return,unused-ignore]

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._held is None:
            self._write(data)
        else:
            self._held.append(data)

    def _write(self, data: bytes) -> None:
        """Send as much as the socket takes at once; pika sends the rest when it takes more.

        pika alone would register for writing, send in the next turn of its loop, and register again.
        """
        transport: Any = getattr(self, "_transport", None)
        if self._direct and transport is not None and transport.get_write_buffer_size() == 0:
            # What is wrong with the socket, pika finds out, and reports.
            with contextlib.suppress(OSError, AttributeError):
                data = data[transport._sock.send(data) :]
        if data:
            super()._adapter_emit_data(data)

    def send_settlements(self, frames: bytes) -> None:
        """Send what `AckLedger.frames` says, on an open channel and where there is a `shortcut`.

        pika takes ten times as long for each frame.
        """
        if frames:
            self._adapter_emit_data(frames)
            self.frames_sent += len(frames) // _SETTLEMENT
            self.bytes_sent += len(frames)

    def count(self, received: int, frames_received: int, sent: int, frames_sent: int) -> None:
        """Count bytes and frames that others received and sent, as pika does: its heartbeats go by that."""
        self.bytes_received += received
        self.frames_received += frames_received
        self.bytes_sent += sent
        self.frames_sent += frames_sent

    def go_on(self, unsent: bytes) -> None:
        """Send, and read, what others left over."""
        if unsent:
            self._write(unsent)
        try:
            self._on_data_available(b"")
        except Exception as error:  # as pika does where it is it that reads
            _log.exception("reading failed, aborting the connection: %s", type(error).__name__)
            self._transport._initiate_abort(error)  # type: ignore[union-attr,unused-ignore]

    def __enter__(self) -> Transport:
        self._held = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held and self.is_open:
            self._write(b"".join(held))
