"""Deliveries are found whole in whatever pieces the bytes come, and everything else is left to pika."""

from __future__ import annotations

from typing import Any

import pika
from hypothesis import given
from hypothesis import strategies as st

from fairsched.spark.transport import BulkTransport

FRAME_MAX = 4096


class Target:
    """What a `ConsumingChannel` is to the transport."""

    def __init__(self, room: int, space: int) -> None:
        self.deliveries: list[tuple[bytes, bytes, bytes, int]] = []
        self.number, self.room, self.space, self.full = 3, room, space, False

    def took(self, room: int, space: int) -> None:
        self.room, self.space = room, space
        self.full = room <= 0 or space <= 0

    def take(self, method: bytes, header: bytes, body: bytes) -> None:
        if self.full:
            return
        self.deliveries.append((method, header, body, 0))
        self.took(self.room - 1, self.space - len(body))


def transport(target: Target) -> tuple[BulkTransport, list[Any]]:
    """A transport without a connection, and the frames that it gives to pika."""
    found = BulkTransport.__new__(BulkTransport)
    frames: list[Any] = []
    found.params = pika.ConnectionParameters(frame_max=FRAME_MAX)
    found.sinks, found._unfinished, found.target, found._shortcut = {}, {}, target, True
    found._frame_buffer, found.bytes_received, found.frames_received = b"", 0, 0
    found._process_frame = frames.append
    return found, frames


def delivery(tag: int, body: bytes, channel: int = 3) -> bytes:
    """The frames of one message."""
    method = pika.frame.Method(channel, pika.spec.Basic.Deliver("t", tag, False, "", "key"))
    header = pika.frame.Header(channel, len(body), pika.BasicProperties(message_id=str(tag)))
    pieces = [body[start : start + FRAME_MAX - 8] for start in range(0, len(body), FRAME_MAX - 8)]
    return b"".join(one.marshal() for one in (method, header, *(pika.frame.Body(channel, one) for one in pieces)))


kinds = st.lists(
    st.one_of(st.integers(0, 300), st.sampled_from([5000, 20_000, "heartbeat", "other channel"])), max_size=20
)


@given(kinds, st.integers(1, 400))
def test_messages_are_found_in_any_pieces(kinds, step):
    target = Target(100, 10**6)
    found, frames = transport(target)
    data, bodies, others = b"", [], 0
    for number, kind in enumerate(kinds, 1):
        if kind == "heartbeat":
            data += pika.frame.Heartbeat().marshal()
            others += 1
        elif kind == "other channel":
            data += delivery(number, b"x", 4)
            others += 3
        else:
            body = bytes([number]) * kind
            data += delivery(number, body)
            bodies.append(body)
    for start in range(0, len(data), step):
        found._on_data_available(data[start : start + step])
    assert [one[2] for one in target.deliveries] == bodies
    assert len(frames) == others
    assert found._frame_buffer == b""
    assert found.bytes_received == len(data)


@given(st.integers(1, 20), st.integers(1, 400))
def test_messages_alone_never_take_pikas_way(room, step):
    target = Target(room, 10**6)
    found, frames = transport(target)
    bodies = [bytes([number]) * number for number in range(20)]
    data = b"".join(delivery(number, body) for number, body in enumerate(bodies, 1))
    for start in range(0, len(data), step):
        if not target.full:
            assert frames == []
        found._on_data_available(data[start : start + step])
    assert [one[2] for one in target.deliveries] == bodies[:room]
    assert target.full == (room <= 20)


def test_bytes_bound_what_is_taken():
    target = Target(100, 25)
    found, _ = transport(target)
    found._on_data_available(b"".join(delivery(number, b"x" * 10) for number in range(1, 9)))
    assert len(target.deliveries) == 3
    assert target.full
