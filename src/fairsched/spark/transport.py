"""Deliveries by the read: whole messages of one channel go straight from the socket's bytes into a list."""

from __future__ import annotations

import time

from fairsched._amqp import take_deliveries
from fairsched.amqp.transport import Transport

#: One message as it came: method, content header, both undecoded, body, and when, in nanoseconds since 1970.
Delivery = tuple[bytes, bytes, bytes, int]

#: More than there ever is.
ENDLESS = 2**62

#: A read costs as much as fifty messages. After one of fewer bytes the broker is given so many seconds to send more.
_SMALL, _PAUSE = 131_072, 0.002

#: Octets before a frame's payload: type, channel, length.
_HEAD = 7
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_DELIVER = b"\0\x3c\0\x3c"


class DeliveryBuffer:
    """Deliveries of one channel in the order of arrival, until there are as many as are wanted.

    Parameters
    ----------
    number : int
        Of the channel.
    wanted : int
        Messages.
    most_bytes : int or None
        Bytes of bodies; the message that reaches them is the last one.
    """

    def __init__(self, number: int, wanted: int, most_bytes: int | None) -> None:
        self.number = number
        self.deliveries: list[Delivery] = []
        self.full = wanted == 0
        #: Messages, and bytes of bodies, that are still wanted.
        self.room, self.space = wanted, ENDLESS if most_bytes is None else most_bytes

    def took(self, room: int, space: int) -> None:
        """Note what is still wanted."""
        self.room, self.space = room, space
        if room <= 0 or space <= 0:
            self.full = True

    def take(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a delivery that came among other frames, or in more than three."""
        if self.full:
            return  # Nobody asked for it: the broker takes it back with the channel.
        self.deliveries.append((method, header, body, time.time_ns()))
        self.took(self.room - 1, self.space - len(body))


class BulkTransport(Transport):
    """A `Transport` that can give all deliveries of a read to a `DeliveryBuffer`.

    Attributes
    ----------
    target : DeliveryBuffer or None
        Takes the deliveries of its channel while it is not full.
    holds : bool
        Whether everything that comes while the target is full waits until `resume`; else it takes pika's way.

    Notes
    -----
    For one thread. No call is made for a message. What is no whole delivery of the target's channel takes pika's way, a
    frame at a time; a delivery that is not all here waits for the next read, and one whose body comes in several frames
    is gathered here: pika would decode its properties, and fail at some.
    """

    target: DeliveryBuffer | None = None
    holds = False
    #: Method, content header and body so far of a delivery in several frames, and octets of the body that are missing.
    _pieces: list[bytes] | None = None
    _left = 0
    _receive = 256 * 1024

    def _on_data_available(self, data_in: bytes) -> None:
        target = self.target
        if target is None or not self._shortcut or (target.full and not self.holds):
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
        if rest and (self.target is not target or target.full) and not self.holds:
            super()._on_data_available(rest)
            return
        self._frame_buffer = rest
        if position and len(buffer) < _SMALL:
            time.sleep(_PAUSE)

    def resume(self) -> None:
        """Take what waited for the target to have room again."""
        self._on_data_available(b"")

    def _scan(self, buffer: bytes, start: int, target: DeliveryBuffer) -> tuple[int, bool]:
        """Take deliveries; return where they end, and whether what follows is something else."""
        position, other, room, space = take_deliveries(
            buffer, start, target.number, self._longest(), target.room, target.space, target.deliveries, time.time_ns()
        )
        self.bytes_received += position - start
        target.took(room, space)
        return position, other

    def _gather(self, frame: bytes) -> bool:
        """Take a frame of a delivery on the target's channel; False: it is of none."""
        target = self.target
        if target is None or int.from_bytes(frame[1:3]) != target.number or frame[-1] != _END:
            return False
        kind, payload = frame[0], frame[_HEAD:-1]
        if kind == _METHOD and payload.startswith(_DELIVER):
            self._pieces = [payload]
            return True
        pieces = self._pieces
        if pieces is None or kind != (_HEADER if len(pieces) == 1 else _BODY):
            return False
        pieces.append(payload)
        if kind == _HEADER:
            self._left = int.from_bytes(payload[4:12])
        else:
            self._left -= len(payload)
        if self._left <= 0:
            self._pieces = None
            target.take(pieces[0], pieces[1], b"".join(pieces[2:]))
        return True
