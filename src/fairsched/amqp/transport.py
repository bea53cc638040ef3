"""pika's connection with a short cut for deliveries, and with combined writes.

Everything except complete deliveries still runs through pika: handshake, tuning, heartbeats, opening and closing of
channels. The short cut takes a delivery whose frames are all in the buffer, slices the body out of it and leaves method
and properties undecoded until they are read (core/amqp/frames.pxd); an incomplete delivery waits for the next read.
pika spends about 15 us of CPU on the three frames of a small message, most of it on objects that handlers do not use.
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

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.properties import ReceivedProperties
from fairsched.delivery._delivery import ChannelDeliveries, give_deliveries
from fairsched.errors import ConfigurationError

_log = logging.getLogger(__name__)

_FRAME = Struct(">BHL")
#: Bytes of a frame in addition to its payload.
_AROUND = 8

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
#: Content header of class basic: its offset in a frame, its first octets, and its least length.
_HEAD, _BASIC, _LEAST = 7, b"\0\x3c", 14
_BODY_SIZE = Struct(">Q")
#: Class and method of the methods that have a content: basic.publish, return, deliver and get-ok.
_WITH_CONTENT = frozenset(bytes((0, 60, 0, method)) for method in (40, 50, 60, 71))
#: Methods after which a channel has no unfinished content: channel.open-ok, close and close-ok.
_ANEW = frozenset(bytes((0, 20, 0, method)) for method in (11, 40, 41))


#: Bytes that the kernel may receive before they are read: most prefetch windows are smaller.
_AHEAD = 4 << 20

#: Private parts of pika on which the short cut relies: methods of the connection, and attributes with their types.
_METHODS = ("_on_data_available", "_process_frame", "_adapter_emit_data")
_ATTRIBUTES = {
    "_frame_buffer": bytes, "bytes_received": int, "frames_received": int, "bytes_sent": int, "frames_sent": int
}  # fmt: skip

#: Receiver of a channel's deliveries; a function is called with delivery tag, redelivered flag, raw method, raw content
#: header and body.
Sink = ChannelDeliveries | Callable[[int, int, bytes, bytes, bytes], None]


def decode_frame(data: bytes) -> tuple[int, Any]:
    """Decode a frame as pika does, but leave the properties of a content header undecoded: pika fails at some.

    Parameters
    ----------
    data : bytes
        Bytes that begin with the frame.

    Returns
    -------
    end : int
        Offset of the frame's end; 0 if the frame is incomplete.
    frame : pika.frame.Frame or None
        The frame. The properties of a content header are `ReceivedProperties`.

    Raises
    ------
    Exception
        An exception of pika if the bytes are not a frame.
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
    """Log why the short cut is not taken; once, since it depends only on the version of pika."""
    _log.warning("deliveries take pika's way, which is slower: this is pika %s, %s", pika.__version__, missing)


def enlarge_receive_buffer(sock: socket.socket) -> None:
    """Have the kernel receive up to a prefetch window of messages before they are read.

    If the TCP window is closed, a broker on the same machine sends in the processor time of the consumer, at each read:
    a quarter of the cost of a message of 1 KiB in Arrow batches.

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
        Whether deliveries of the last read are being passed to sinks; `after_read` follows.
    after_read : callable
        Called when all deliveries of one read were passed to the sinks.

    Notes
    -----
    Only the I/O thread may use it, except for the methods that `LentConnection` calls. Within ``with transport:``,
    frames are collected and sent in one write.

    pika offers no option for any of this, so ``_adapter_emit_data``, ``_on_data_available`` and ``_read_frame`` are
    overridden. If a later version of pika has no such methods, or buffers its input differently, `shortcut` stays
    False: everything works, only slower, as long as pika can decode the properties of every message.
    """

    sinks: dict[int, Sink]
    reading = False
    after_read: Callable[[], None] = staticmethod(lambda: None)
    _frame_buffer: bytes
    #: Channels on which pika has an incomplete content: bytes of the body that were announced, if known, and received.
    unfinished: dict[int, tuple[int | None, int]]
    _held: list[bytes] | None = None
    #: How many blocks hold writes together, one in the other.
    _holding = 0
    _shortcut = False
    _direct = False
    #: Bytes per read of the socket after `open_shortcut`; pika reads 4 KiB. Each call releases the GIL, and taking it
    #: back from a handler that computes can take the interpreter's whole switch interval.
    receive = 64 * 1024

    def open_shortcut(self, fast: bool | None = None) -> None:
        """Take the short cut from now on, if this pika allows it. Call it once the connection is open.

        Parameters
        ----------
        fast : bool, optional
            If this pika lacks a part: None logs it once, True raises an error. False: do not take the short cut.

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
            # TLS buffers bytes and has its own states: there pika reads until nothing is left, and writes.
            self._direct = type(transport).__name__ == "_AsyncPlaintextTransport" and hasattr(transport, "_sock")
            if self._direct:
                enlarge_receive_buffer(transport._sock)
                # One read per event of the socket: pika's second read would find nothing and raise an exception.
                transport._MAX_CONSUME_BYTES = 1

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the socket, if other threads may read and write it while the I/O thread waits."""
        transport: Any = getattr(self, "_transport", None)
        return transport._sock.fileno() if self._direct and self.is_open and transport is not None else None

    @property
    def flowing(self) -> bool:
        """Whether the connection is open and its write buffer is empty."""
        transport: Any = getattr(self, "_transport", None)
        return self.is_open and transport is not None and transport.get_write_buffer_size() == 0

    @property
    def whole(self) -> bool:
        """Whether pika has no incomplete content, whose rest it must get too."""
        return not self.unfinished

    @property
    def incomplete(self) -> bytes:
        """Octets that were read and are no whole frame yet; the next read continues them."""
        return self._frame_buffer

    @incomplete.setter
    def incomplete(self, octets: bytes) -> None:
        self._frame_buffer = octets

    @property
    def shortcut(self) -> bool:
        """Whether deliveries take the short cut."""
        return self._shortcut

    def _missing(self) -> str:
        """Name the parts of pika that the short cut lacks; "" if it lacks none."""
        names = [f"{name}()" for name in _METHODS if not callable(getattr(pika.SelectConnection, name, None))]
        names += [
            f"{name}: {kind.__name__}"
            for name, kind in _ATTRIBUTES.items()
            if not isinstance(getattr(self, name, None), kind)
        ]
        return "whose connections have no " + ", ".join(names) if names else ""

    def drop(self) -> None:
        """Close the socket at once, in any state, after the loop has ended: the broker requeues unsettled messages.

        pika closes sockets only in callbacks of the loop. While it connects, its connector owns the socket.
        """
        connector = getattr(getattr(self, "_connection_workflow", None), "_connector", None)
        for holder in (getattr(self, "_transport", None), connector):
            found = getattr(holder, "_sock", None)
            if found is not None:
                found.close()

    def _on_data_available(self, data_in: bytes) -> None:
        # When many channels are opened or closed, one read brings many answers, each of which has a next request sent.
        with self:
            self._read_data(data_in)

    def _read_data(self, data_in: bytes) -> None:
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
        """Pass deliveries to their sinks, and other frames to pika."""
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        # Meanwhile pika's own buffer is empty, so that a callback that uses the connection cannot change this copy.
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
        """Take the frames at `start` that pika need not see; return as `give_deliveries` does."""
        return give_deliveries(buffer, start, self.longest, self.sinks, self.unfinished)

    @property
    def longest(self) -> int:
        """Length of the longest body in one frame, in bytes."""
        longest: int = self.params.frame_max - _AROUND
        return longest

    def _pass_on_next(self, buffer: bytes, start: int) -> int:
        """Pass the next frame to pika if it is complete; return its end, or `start`."""
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
        """Note the progress of a channel's content in pika: later frames of that channel must not overtake it."""
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
        """Send as much as the socket accepts at once; pika sends the rest when the socket is writable.

        pika alone would register for writing, send in the next turn of its loop, and register again.
        """
        transport: Any = getattr(self, "_transport", None)
        if self._direct and transport is not None and transport.get_write_buffer_size() == 0:
            # pika detects and reports an error of the socket itself.
            with contextlib.suppress(OSError, AttributeError):
                data = data[transport._sock.send(data) :]
        if data:
            super()._adapter_emit_data(data)

    def send_settlements(self, frames: bytes) -> None:
        """Send frames of `AckLedger.frames`, on an open channel and only if there is a `shortcut`.

        pika takes ten times as long for each frame.
        """
        if frames:
            self._adapter_emit_data(frames)
            self.frames_sent += len(frames) // AckLedger.FRAME_SIZE
            self.bytes_sent += len(frames)

    def count(self, received: int, frames_received: int, sent: int, frames_sent: int) -> None:
        """Count bytes and frames that other threads received and sent: pika's heartbeats depend on these counts."""
        self.bytes_received += received
        self.frames_received += frames_received
        self.bytes_sent += sent
        self.frames_sent += frames_sent

    def go_on(self, unsent: bytes) -> None:
        """Send the rest of a borrower's output, and process the rest of its input."""
        if unsent:
            self._write(unsent)
        try:
            self._on_data_available(b"")
        except Exception as error:  # as pika does after a failed read of its own
            _log.exception("reading failed, aborting the connection: %s", type(error).__name__)
            self._transport._initiate_abort(error)  # type: ignore[union-attr,unused-ignore]

    def __enter__(self) -> Transport:
        self._holding += 1
        if self._held is None:
            self._held = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holding -= 1
        if self._holding:
            return
        held, self._held = self._held, None
        if held and not self.is_closed:  # what opens or closes the connection is sent, too
            self._write(b"".join(held))
