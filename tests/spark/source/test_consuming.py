"""Deliveries are collected whole in whatever pieces the bytes come, and everything else is left to pika."""

from __future__ import annotations

from typing import Any

import numpy as np
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.channel import ContentFrameAssembler

from fairsched.amqp.transport import Transport
from fairsched.delivery._collected import CollectedDeliveries
from fairsched.spark.source.columns import COLUMNS, Decoder
from fairsched.spark.source.consuming import ConsumingChannel

FRAME_MAX = 4096
OURS = 3


class Wire(Transport):
    """A transport without a connection, and the session and the channel that a `ConsumingChannel` asks for."""

    channel_number = OURS
    is_open = True

    def __init__(self, room: int, space: int, *, surplus: bool = False, shortcut: bool = True) -> None:
        self.params = pika.ConnectionParameters(frame_max=FRAME_MAX)
        self.sinks, self.unfinished, self._shortcut = {}, {}, shortcut
        self._frame_buffer, self.bytes_received, self.frames_received = b"", 0, 0
        self.transport, self.stops, self.others = self, 0, 0
        self._assembler = ContentFrameAssembler()
        self.consuming = ConsumingChannel(self, room, space, surplus=surplus)
        self.consuming.consume({"q": 10}, {})

    # What a session does.

    def channel(self) -> Any:
        return self

    def call(self, requests: list[Any], _what: str) -> None:
        for request in requests:
            request(callback=None)

    def stop(self) -> None:
        self.stops += 1

    # What a channel does.

    def basic_qos(self, **_options: Any) -> None:
        pass

    def basic_consume(self, _queue: str, on_message: Any, **_options: Any) -> None:
        self._on_message = on_message

    def _process_frame(self, found: Any) -> None:
        self.frames_received += 1
        if found.channel_number != OURS:
            self.others += 1
            return
        done = self._assembler.process(found)
        if done:
            method, header, body = done
            self._on_message(self, method.method, header.properties, body)

    @property
    def bodies(self) -> list[bytes]:
        return Decoder(["body"]).batch(self.consuming.deliveries, {}).column("body").to_pylist()

    def rows(self) -> list[dict[str, Any]]:
        decoder = Decoder(["body", "queue", "routing_key", "exchange", "message_id", "redelivered", "headers"])
        deliveries = self.consuming.deliveries
        return decoder.batch(deliveries, decoder.look(deliveries, self.consuming.queues)).to_pylist()


def delivery(tag: int, body: bytes, channel: int = OURS) -> bytes:
    """The frames of one message."""
    method = pika.spec.Basic.Deliver("fairsched-0", tag, tag % 2 == 0, "ex", "key")
    properties = pika.BasicProperties(message_id=str(tag), headers={"a": tag})
    header = pika.frame.Header(channel, len(body), properties)
    pieces = [body[start : start + FRAME_MAX - 8] for start in range(0, len(body), FRAME_MAX - 8)]
    return b"".join(one.marshal() for one in (method_frame(method, channel), header, *pieces_of(pieces, channel)))


def method_frame(method: Any, channel: int) -> Any:
    return pika.frame.Method(channel, method)


def pieces_of(pieces: list[bytes], channel: int) -> list[Any]:
    return [pika.frame.Body(channel, one) for one in pieces]


kinds = st.lists(
    st.one_of(st.integers(0, 300), st.sampled_from([5000, 20_000, "heartbeat", "other channel"])), max_size=20
)


@pytest.mark.parametrize("shortcut", [True, False])
@given(kinds=kinds, step=st.integers(1, 400))
def test_messages_are_found_in_any_pieces(shortcut, kinds, step):
    wire = Wire(100, 10**6, shortcut=shortcut)
    data, expected, others = b"", [], 0
    for kind in kinds:
        if kind == "heartbeat":
            data += pika.frame.Heartbeat().marshal()
            others += 1
        elif kind == "other channel":
            data += delivery(1, b"x", 4)
            others += 3
        else:
            tag = len(expected) + 1
            body = bytes([tag]) * kind
            data += delivery(tag, body)
            expected.append(
                {"body": body, "queue": "q", "routing_key": "key", "exchange": "ex", "message_id": str(tag),
                 "redelivered": tag % 2 == 0, "headers": [("a", str(tag))]}
            )  # fmt: skip
    for start in range(0, len(data), step):
        wire._on_data_available(data[start : start + step])
    assert wire.rows() == expected
    assert wire.others == others
    assert wire._frame_buffer == b""
    assert wire.bytes_received == len(data)


@given(st.integers(1, 20), st.integers(1, 400), st.booleans())
def test_no_more_is_taken_than_was_wanted_and_the_surplus_is_for_the_next_part(room, step, surplus):
    wire = Wire(room, 10**6, surplus=surplus)
    bodies = [bytes([number]) * number for number in range(20)]
    data = b"".join(delivery(number, body) for number, body in enumerate(bodies, 1))
    for start in range(0, len(data), step):
        wire._on_data_available(data[start : start + step])
    assert wire.bodies == bodies[:room]
    assert wire.consuming.full == (room <= 20)
    assert (wire.stops > 0) == wire.consuming.full
    deliveries, rest = wire.consuming.deliveries, bodies[room:] if surplus else []
    assert deliveries.came == (20 if surplus else min(20, room))
    while rest:
        deliveries.want(3, 10**6)
        assert wire.bodies == rest[:3]
        assert deliveries.full == (len(rest) >= 3)
        rest = rest[3:]
    if surplus:
        deliveries.want(3, 10**6)
        assert wire.bodies == []
        wire._on_data_available(delivery(21, b"later"))
        assert wire.bodies == [b"later"]


def test_bytes_bound_what_is_taken() -> None:
    """Of whole messages, as they were sent: names, properties and headers, too."""
    data = [delivery(number, b"x" * 10) for number in range(1, 9)]
    size = len(data[0]) - 8
    wire = Wire(100, 2 * size + 1, surplus=True)
    wire._on_data_available(b"".join(data))
    assert len(wire.bodies) == 3
    assert set(np.frombuffer(wire.consuming.deliveries.sizes(), np.int64)) == {size}
    assert wire.consuming.full
    wire.consuming.deliveries.want(100, 5)
    assert len(wire.bodies) == 1
    wire.consuming.deliveries.want(100, 4 * size + 1)
    assert len(wire.bodies) == 4
    assert not wire.consuming.full


def test_nothing_is_taken_after_the_end() -> None:
    wire = Wire(100, 10**6, surplus=True)
    wire._on_data_available(delivery(1, b"first"))
    wire.consuming.deliveries.close()
    wire._on_data_available(delivery(2, b"second"))
    assert wire.bodies == [b"first"]


def test_a_delivery_out_of_turn_is_refused() -> None:
    """Acknowledgements name the last of several: a number that was left out would be among them."""
    with pytest.raises(ValueError, match="delivery tag must be 1, the one after the last, got 2"):
        Wire(100, 10**6)._on_data_available(delivery(2, b"x"))


@pytest.mark.parametrize("method", [b"", b"\0\x3c\0\x3c\x01t" + bytes(9), b"\0\x3c\0\x3c\xff" + bytes(30)])
def test_what_is_no_method_is_refused(method: bytes) -> None:
    deliveries = CollectedDeliveries()
    deliveries.want(1, 1)
    with pytest.raises(ValueError, match=r"method must be a basic\.deliver"):
        deliveries.deliver(method, b"", b"")


@given(st.binary(max_size=40), st.binary(max_size=60), st.binary(max_size=9))
def test_any_bytes_are_decoded_or_refused(names: bytes, header: bytes, body: bytes) -> None:
    """A method whose consumer tag is "t" and whose tag is 1, with anything behind it."""
    deliveries = CollectedDeliveries()
    deliveries.want(1, 1)
    try:
        deliveries.deliver(b"\0\x3c\0\x3c\x01t" + (1).to_bytes(8, "big") + names, header, body)
    except ValueError:
        first = names[1] if len(names) > 1 else 0
        assert len(names) < 3 + first or len(names) != 3 + first + names[2 + first]
        return
    decoder = Decoder([name for name in COLUMNS if name not in ("key", "shed")], "header:a", "b", timed=True)
    rows = decoder.batch(deliveries, decoder.look(deliveries, {b"t": "q"}))
    rows.validate(full=True)
    [row] = rows.to_pylist()
    first = names[1]
    assert row["redelivered"] == bool(names[0] & 1)
    assert row["exchange"] == names[2 : 2 + first].decode("utf-8", "replace")
    assert row["routing_key"] == names[3 + first :].decode("utf-8", "replace")
    assert row["body"] == body


def test_deliveries_that_change_while_columns_are_made_are_an_error() -> None:
    deliveries = CollectedDeliveries()

    def begin() -> None:
        deliveries.want(0, 0)
        deliveries.want(deliveries.came + 3, 10**6)
        header = pika.frame.Header(1, 0, pika.BasicProperties(headers={"t": {}})).marshal()[7:-1]
        for tag in range(deliveries.came + 1, deliveries.came + 4):
            deliveries.deliver(b"\0\x3c\0\x3c\x01t" + tag.to_bytes(8, "big") + bytes(3), header, b"x")

    def forget(_header: bytes) -> Any:
        deliveries.want(1, 1)
        return [None]

    for make in (
        lambda: deliveries.properties((), [b"a"], forget, 0),
        lambda: deliveries.numbers(b"a", lambda header: forget(header)[0]),
    ):
        begin()
        with pytest.raises(RuntimeError, match="changed while columns were made"):
            make()
        assert deliveries.count == 0
