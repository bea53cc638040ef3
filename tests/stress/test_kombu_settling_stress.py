"""Settlements of kombu's transport that wait, while several threads settle, publish, write and flush."""

from __future__ import annotations

import gc
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from support.threads import result_of, start
from support.waiting import SOON, eventually

from fairsched.integrations._kombulink import Link, Settlements
from fairsched.integrations.kombu_timer import TIMER

pytestmark = pytest.mark.stress

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Peer:
    """The other end of a link: reads frames, and keeps which tags of which channel are acknowledged."""

    def __init__(self, sock: socket.socket) -> None:
        self.acked: dict[int, Counter[int]] = {}
        self.bodies: list[bytes] = []
        self.heartbeats = 0
        self._multiple: Counter[int] = Counter()
        self._sock = sock
        self._left = b""

    def read(self) -> None:
        """Read until the end."""
        while data := self._sock.recv(4096):
            self._left += data
            while len(self._left) >= 8 and len(self._left) >= (whole := 8 + struct.unpack_from(">I", self._left, 3)[0]):
                frame, self._left = self._left[:whole], self._left[whole:]
                assert frame[-1] == 0xCE
                self._handle(frame[0], struct.unpack_from(">H", frame, 1)[0], frame[7:-1])
        assert not self._left

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 8:
            self.heartbeats += 1
        elif kind == 3:
            self.bodies.append(payload)
        elif payload.startswith(b"\x00\x3c\x00\x50"):
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            self._acknowledge(self.acked.setdefault(channel, Counter()), channel, tag, multiple)

    def _acknowledge(self, acked: Counter[int], channel: int, tag: int, multiple: int) -> None:
        if not multiple:
            acked[tag] += 1
            return
        for one in range(self._multiple[channel] + 1, tag + 1):
            acked[one] += one not in acked
        self._multiple[channel] = tag


@contextmanager
def linked(size: int = 4096) -> Iterator[tuple[Link, Peer, socket.socket]]:
    """Yield a link of a socket with a small buffer, and what reads the other end."""
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    link = Link(SimpleNamespace(sock=here, write=here.sendall), here.fileno(), threading.RLock(), TIMER.wake,
                (amqp.Message,))  # fmt: skip
    TIMER.add(link)
    peer = Peer(there)
    with here, there:
        yield link, peer, here


def channel_of(link: Link, number: int, deliveries: int, window: int) -> Settlements:
    """Return an open channel that has delivered messages."""
    py_amqp = SimpleNamespace(callbacks={}, _pending={}, is_closing=False, auto_decode=True, events={})
    settlements = Settlements(link, py_amqp, number, lambda delivery: delivery)
    settlements.window = window
    for tag in range(1, deliveries + 1):
        settlements.deliver(tag, "consumer")
    return settlements


class Leftover:
    """Acknowledges when the collector finds it."""

    def __init__(self, settlements: Settlements, tag: int) -> None:
        self._settlements, self._tag, self._self = settlements, tag, self

    def __del__(self) -> None:
        assert self._settlements.ack(self._tag)


def settle(channels: list[Settlements], tags: list[int], seed: int) -> None:
    """Acknowledge, a few of them in a destructor that the collector calls."""
    rnd = random.Random(seed)
    order = [(channel, tag) for channel in channels for tag in tags]
    rnd.shuffle(order)
    for number, (channel, tag) in enumerate(order):
        if number % 25 == 0:
            Leftover(channel, tag)
        else:
            assert channel.ack(tag)


@pytest.mark.parametrize("window", [0, 8, 400])
def test_each_settlement_leaves_once(window: int) -> None:
    """None is left behind, and no message that was not settled is acknowledged."""
    deliveries, threads, messages = 2000, 4, 300
    before = gc.get_threshold()
    with linked() as (link, peer, here):
        reading = start(peer.read)
        channels = [channel_of(link, number, deliveries, window) for number in (1, 2, 3)]

        def write() -> None:
            for number in range(messages):
                link.publish(1, amqp.Message(b"%d" % number), "", "q", False)
                link.write(here.sendall, HEARTBEAT)

        tags = [tag for tag in range(1, deliveries + 1) if tag % 10]
        gc.set_threshold(20)
        try:
            running = [start(lambda seed=seed: settle(channels, tags[seed::threads], seed)) for seed in range(threads)]
            for one in (start(write), *running):
                assert result_of(one) is None
            gc.collect()
        finally:
            gc.set_threshold(*before)
        eventually(lambda: not link.waits and not any(channel.pending for channel in channels))
        here.shutdown(socket.SHUT_WR)
        assert result_of(reading) is None
    assert peer.acked == {number: Counter(tags) for number in (1, 2, 3)}
    assert peer.bodies == [b"%d" % number for number in range(messages)]
    assert peer.heartbeats == messages


def test_a_link_whose_writer_waits_does_not_hold_up_another() -> None:
    """The timer sends settlements of one link while a thread writes to another, and who settles goes on."""
    frame = b"\x03\x00\x01" + struct.pack(">I", 1 << 22) + bytes(1 << 22) + b"\xce"
    begun = threading.Event()

    def write() -> None:
        begun.set()
        here.sendall(frame)

    with linked() as (slow, slow_peer, here), linked() as (link, peer, other):
        stuck, free = channel_of(slow, 1, 100, 4), channel_of(link, 1, 1, 0)
        writing = start(lambda: slow.write(write))
        assert begun.wait(SOON)
        settling: Any = start(lambda: [stuck.ack(tag) for tag in range(1, 101)])
        assert result_of(settling) == [True] * 100
        assert stuck.pending
        assert free.ack(1)
        eventually(lambda: not link.waits)
        reading = [start(one.read) for one in (slow_peer, peer)]
        result_of(writing)
        eventually(lambda: not slow.waits)
        for one in here, other:
            one.shutdown(socket.SHUT_WR)
        assert [result_of(one) for one in reading] == [None, None]
    assert (slow_peer.acked, peer.acked) == ({1: Counter(range(1, 101))}, {1: Counter([1])})
