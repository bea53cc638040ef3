"""A connection that is lent, between a broker in memory and other threads: pika's loop, and a socket pair."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.base_connection import _StreamingProtocolShim
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.io_services_utils import _AsyncPlaintextTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.frame import Heartbeat, Method
from pika.spec import Connection
from support.deliveries import Broker, Channel, Source
from support.waiting import SOON

from fairsched.amqp.polling import lending
from fairsched.amqp.polling.pacing import Pace
from fairsched.amqp.transport import Transport
from fairsched.delivery._ackpolicy import PERIOD
from fairsched.delivery._delivery import HeaderKey

FRAME_MAX = 131072
HEARTBEAT: bytes = Heartbeat().marshal()
_HANDSHAKE = b"".join(
    Method(0, method).marshal()
    for method in (
        Connection.Start(server_properties={"product": "none"}, mechanisms="PLAIN", locales="en_US"),
        Connection.Tune(2047, FRAME_MAX, 0),
        Connection.OpenOk(),
    )
)


class Wire(Transport):
    """An open connection over a socket.

    `others` are the frames that pika got, each with how much was delivered before it on each channel; `borrowed` are
    the bytes that were received by others than the I/O thread.
    """

    def __init__(self, loop: IOLoop, sock: socket.socket, closed: Callable[[], object]) -> None:
        self.others: list[tuple[str, list[int]]] = []
        self.borrowed = 0
        self.sinks = {}
        sock.setblocking(False)
        super().__init__(
            pika.ConnectionParameters(heartbeat=0, frame_max=FRAME_MAX),
            on_close_callback=lambda *_: closed(),
            custom_ioloop=loop,
            internal_connection_workflow=False,
        )
        shim: Any = _StreamingProtocolShim(self)
        stream = _AsyncPlaintextTransport(sock, shim, SelectorIOServicesAdapter(loop))
        shim.connection_made(stream)
        self._proto_data_received(_HANDSHAKE)
        assert self.is_open
        stream._on_socket_writable()  # our part of the handshake
        self.others.clear()
        self.open_shortcut(True)

    def _process_frame(self, found: Any) -> None:
        self.others.append((found.NAME, [channel.ledger.delivered for channel in self.sinks.values()]))
        super()._process_frame(found)

    def count(self, received: int, frames_received: int, sent: int, frames_sent: int) -> None:
        self.borrowed += received
        super().count(received, frames_received, sent, frames_sent)


class LentSource(Source):
    """A `Source` whose I/O thread runs pika's loop. What its broker sends and reads is for `Peer`, or for a test.

    Attributes
    ----------
    wire : Wire
        The present connection.
    lost : callable
        Called in the I/O thread when a connection is lost.
    quick : bool
        Whether others may read.
    """

    def __init__(self, bodies: list[bytes], channels: int = 1, window: int = 100, key: HeaderKey | None = None) -> None:
        self.loop = IOLoop()
        self.pace = Pace(lambda: (0, 0))
        self.lost: Callable[[], object] = lambda: None
        self.quick = True
        self.connections = 0
        self.wires: list[Wire] = []
        super().__init__(bodies, channels, window, key)
        self.on_wake = self.wake
        self.wakes = 0
        self.asked = lambda: self.loop.add_callback_threadsafe(self.send)
        lending.lend(self.loop, self.lent, lambda: (self.wire.flowing, self.quick and self.wire.whole), self.pace)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    @property
    def running(self) -> bool:
        """Whether the I/O thread runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        self.wakes += 1
        self.loop.add_callback_threadsafe(lambda: None)

    def open(self) -> socket.socket:
        """Make a connection, in the I/O thread or before there is one; return the broker's end of it."""
        ours, theirs = socket.socketpair()
        self.connections += 1
        self.wires.append(Wire(self.loop, ours, self._on_lost))
        theirs.recv(1 << 16)
        for channel in self.sinks.values():
            channel.alive = False
        for number in self.numbers:
            channel = Channel(f"{self.broker.connection}.{number}", self.settlements, self.broker, number)
            channel.set_window(self.window, self.window - 1)
            self.sinks[number] = self.wire.sinks[number] = channel
        self.wire.after_read = self.intake.drain
        if self.connections > 1:
            lending.connect(self.loop, self.lent, self.wire)
        return theirs

    def _on_lost(self) -> None:
        self.lost()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the I/O thread."""
        self.loop.add_callback_threadsafe(self.loop.stop)
        self._thread.join(SOON)
        assert not self._thread.is_alive()
        for wire in self.wires:
            wire.drop()
        self.loop.close()

    def _run(self) -> None:
        self.loop.add_callback_threadsafe(lambda: lending.connect(self.loop, self.lent, self.wire))
        self._tick()
        self.loop.start()

    def _tick(self) -> None:
        self.send()
        self.loop.call_later(PERIOD, self._tick)

    def on_delivery(self) -> None:
        if not self.wire.reading:
            self.loop.call_later(0, self.intake.drain)

    def send(self) -> None:
        self.settlements.flush_requested = False
        self.policy.sending()
        with self.wire:
            for channel in self.settlements.take_unsent():
                if channel.alive:
                    self.wire.send_settlements(channel.ledger.frames(channel.number))


class Peer:
    """The broker's end of a connection: delivers, in pieces, with a heartbeat now and then, and reads settlements."""

    def __init__(self, broker: Broker, sock: socket.socket, numbers: range, window: int, seed: int) -> None:
        self.broker, self.sock, self.numbers, self.window = broker, sock, numbers, window
        self.chance = random.Random(seed)
        self.heartbeats = 0
        self._read = b""

    def run(self, enough: Callable[[], bool]) -> None:
        """Go on until there is enough, or nothing left to do; then close."""
        while not enough() and (self.broker.ready or any(self.broker.out.values())):
            self._write()
            self.sock.settimeout(0.001)
            try:
                self._read += self.sock.recv(1 << 16)
            except TimeoutError:
                continue
            whole = len(self._read) // 21 * 21
            self.broker.read(self._read[:whole])
            self._read = self._read[whole:]
        self.sock.close()

    def _write(self) -> None:
        made = []
        for number in self.numbers:
            made.append(self.broker.frames(number, self.window))
            if self.chance.random() < 0.02:
                made.append(HEARTBEAT)
                self.heartbeats += 1
        data = b"".join(made)
        self.sock.settimeout(SOON)
        while data:
            size = self.chance.choice((7, 300, 70_000))
            self.sock.sendall(data[:size])
            data = data[size:]
