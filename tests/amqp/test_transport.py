"""The short cut for deliveries against pika's own decoder, over streams cut into arbitrary pieces."""

from __future__ import annotations

import select
import socket
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import ConnectionParameters, exceptions, frame
from pika.channel import ContentFrameAssembler
from pika.spec import Basic, BasicProperties

from fairsched.amqp.transport import Transport, enlarge_receive_buffer
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel

OURS, THEIRS = 1, 2
FRAME_MAX = 4096
Content = tuple[int, int, bool, str, object, bytes]


class Wire(Transport):
    """A transport without a network: what it is fed goes to the sink of channel 1 or to pika's way."""

    def __init__(self, shortcut: bool = True) -> None:
        # Only what decoding touches; SelectConnection would open sockets.
        self._frame_buffer = b""
        self._shortcut = shortcut
        self.params = ConnectionParameters(frame_max=FRAME_MAX)
        self.bytes_received = self.frames_received = 0
        self.got: list[Content] = []
        self.others: list[str] = []
        self.shortcuts = 0
        self.sinks, self.unfinished = {OURS: self._sink}, {}
        self._assemblers = {OURS: ContentFrameAssembler(), THEIRS: ContentFrameAssembler()}

    def _sink(self, tag: int, redelivered: int, delivery: bytes, properties: bytes, body: bytes) -> None:
        message = Message(body, tag, bool(redelivered), delivery, properties, FakeChannel("q"))
        self.shortcuts += 1
        self.got.append((OURS, tag, message.redelivered, message.routing_key, message.properties.headers, body))

    def _process_frame(self, value: Any) -> None:
        self.frames_received += 1
        if value.channel_number not in self._assemblers or isinstance(value, frame.Heartbeat):
            self.others.append(value.NAME)
            return
        done = self._assemblers[value.channel_number].process(value)
        if done:
            method, header, body = done
            deliver = method.method
            self.got.append(
                (value.channel_number, deliver.delivery_tag, deliver.redelivered, deliver.routing_key,
                 header.properties.headers, body)
            )  # fmt: skip


def encoded(channel: int, tag: int, redelivered: bool, key: str, headers: object, body: bytes, limit: int) -> bytes:
    """Return a delivery as the broker sends it, with body frames of at most `limit` bytes."""
    frames = [
        frame.Method(channel, Basic.Deliver("consumer", tag, redelivered, "", key)),
        frame.Header(channel, len(body), BasicProperties(headers=headers)),
        *(frame.Body(channel, body[start : start + limit]) for start in range(0, len(body), limit)),
    ]
    return b"".join(one.marshal() for one in frames)


deliveries = st.tuples(
    st.sampled_from([OURS, OURS, OURS, THEIRS]),
    st.integers(1, 2**63),
    st.booleans(),
    st.text("abc", max_size=10),
    st.none() | st.dictionaries(st.text("xyz", min_size=1, max_size=4), st.integers(0, 9), max_size=3),
    st.binary(max_size=60),
)
wholes = st.lists(st.none() | deliveries, max_size=12)


@given(wholes, st.lists(st.integers(1, 90), min_size=1, max_size=40), st.sampled_from([7, 1000]))
def test_any_cutting_of_the_stream_gives_the_same_messages(
    contents: list[Content | None], cuts: list[int], limit: int
) -> None:
    stream = b"".join(frame.Heartbeat().marshal() if one is None else encoded(*one, limit) for one in contents)
    wire = Wire()
    position = 0
    number = 0
    while position < len(stream):
        size = cuts[number % len(cuts)]
        wire._on_data_available(stream[position : position + size])
        position += size
        number += 1
    expected = [(*one[:4], one[4] or None, one[5]) for one in contents if one is not None]
    assert [(*one[:4], one[4] or None, one[5]) for one in wire.got] == expected
    assert wire.others == [frame.Heartbeat.NAME] * contents.count(None)
    assert wire.bytes_received == len(stream)
    assert wire._frame_buffer == b""


def ends(stream: bytes | bytearray) -> list[int]:
    """Return where each frame of a stream ends."""
    found = [0]
    while found[-1] < len(stream):
        found.append(found[-1] + int.from_bytes(stream[found[-1] + 3 : found[-1] + 7], "big") + 8)
    return found[1:]


def outcome(wire: Wire, stream: bytes, step: int) -> tuple[list[Any], str]:
    """Return what arrived, and the error that ended it, if one did."""
    try:
        for start in range(0, len(stream), step):
            wire._on_data_available(stream[start : start + step])
    except Exception as error:
        return wire.got, type(error).__name__
    return wire.got, ""


@given(st.lists(deliveries, max_size=4), deliveries, st.integers(1, 200), st.sampled_from([7, 1000]), st.data())
def test_a_wrong_octet_is_what_it_is_to_pika(
    contents: list[Content], wrong: Content, step: int, limit: int, data: st.DataObject
) -> None:
    """In the last delivery: in a frame's type, channel, length or end, in a class or method, or in a body's length."""
    before = b"".join(encoded(*one, limit) for one in contents)
    frames = bytearray(encoded(*wrong, limit))
    starts = [0, *ends(frames)]
    number = data.draw(st.integers(0, len(starts) - 2))
    start, end = starts[number], starts[number + 1]
    places = [*range(start, start + {1: 11, 2: 19}.get(frames[start], 7)), end - 1]
    place, octet = data.draw(st.sampled_from(places)), data.draw(st.integers(0, 255))
    frames[place] = octet
    stream = before + bytes(frames)
    assert outcome(Wire(), stream, step) == outcome(Wire(shortcut=False), stream, step)


def test_complete_deliveries_take_the_short_cut() -> None:
    wire = Wire()
    stream = b"".join(encoded(OURS, tag, False, "key", None, b"x" * 50, 1000) for tag in range(1, 101))
    wire._on_data_available(stream + stream[:30])
    assert wire.shortcuts == 100
    assert wire._frame_buffer == stream[:30]
    assert wire.frames_received == 300


def test_a_channel_without_a_sink_takes_pikas_way() -> None:
    wire = Wire()
    wire._on_data_available(encoded(THEIRS, 1, False, "key", None, b"x", 1000))
    assert wire.shortcuts == 0
    assert len(wire.got) == 1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_broken_frame_end_is_pikas_error(which: int) -> None:
    stream = bytearray(encoded(OURS, 1, False, "key", None, b"body", 1000))
    stream[ends(stream)[which] - 1] = 0
    with pytest.raises(exceptions.InvalidFrameError):
        Wire()._on_data_available(bytes(stream))


def test_writes_are_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr("pika.SelectConnection._adapter_emit_data", lambda self, data: sent.append(data))
    monkeypatch.setattr("pika.SelectConnection.is_closed", False)
    wire = Wire()
    wire._adapter_emit_data(b"a")
    with wire:
        wire._adapter_emit_data(b"b")
        with wire:
            wire._adapter_emit_data(b"c")
        assert sent == [b"a"]
    with wire:
        pass
    assert sent == [b"a", b"bc"]


def test_what_one_read_has_sent_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr("pika.SelectConnection._adapter_emit_data", lambda self, data: sent.append(data))
    monkeypatch.setattr("pika.SelectConnection.is_closed", False)
    wire = Wire()
    monkeypatch.setattr(wire, "_process_frame", lambda _frame: wire._adapter_emit_data(b"answer"))
    wire._on_data_available(frame.Heartbeat().marshal() * 3)
    assert sent == [b"answer" * 3]


def test_the_receive_buffer_takes_a_window_of_messages_and_one_octet_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        received, sent = socket.create_connection(server.getsockname()), server.accept()[0]
    with received, sent:
        before = received.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        sent.sendall(b"1")
        enlarge_receive_buffer(received)
        grown = received.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 2 * before
        assert grown == (sys.platform == "linux")
        assert received.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        for _ in range(2):
            assert select.select([received], [], [], 30)[0]
            assert received.recv(10) == b"1"
            sent.sendall(b"1")
    enlarge_receive_buffer(received)  # closed: as it was
