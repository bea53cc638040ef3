"""Handshake, tuning, heartbeats, and what ends a connection: the same on both brokers."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from pamqp import body, frame, header, heartbeat
from pamqp.commands import Basic, Channel, Connection, Queue
from support.waiting import eventually
from support.wireclient import CAPABILITIES, Dial, Name, Refused, WireChannel, WireClient, raw_frame, raw_method

# Start ------------------------------------------------------------------------------------------------------------


def test_it_starts_with_version_mechanisms_and_capabilities(dial: Dial) -> None:
    start = dial().greet()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(str(start.mechanisms).split())
    assert "en_US" in str(start.locales).split()
    wanted = [
        "authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
        "consumer_priorities", "direct_reply_to", "exchange_exchange_bindings", "per_consumer_qos",
        "publisher_confirms",
    ]  # fmt: skip
    capabilities = start.server_properties["capabilities"]
    assert [one for one in wanted if capabilities.get(one) is not True] == []
    assert {"product", "version", "platform", "copyright", "information"} <= start.server_properties.keys()


@pytest.mark.parametrize(
    "greeting",
    [
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x00\x02\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        pytest.param(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", id="TLS"),
    ],
)
def test_another_protocol_is_told_which_one_is_spoken(dial: Dial, greeting: bytes) -> None:
    client = dial()
    client.send_bytes(greeting)
    assert client.read_bytes(8) == b"AMQP\x00\x00\x09\x01"
    client.wait_for_end()


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_both_mechanisms(dial: Dial, mechanism: str) -> None:
    client = dial()
    client.greet()
    login = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest".decode()
    client.authenticate(mechanism=mechanism, response=login if mechanism == "AMQPLAIN" else None)
    client.take(0, Connection.Tune)


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("guest", "")])
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_a_wrong_login_is_told_and_closed(dial: Dial, mechanism: str, user: str, password: str) -> None:
    client = dial()
    client.greet()
    response = f"\0{user}\0{password}"
    if mechanism == "AMQPLAIN":
        parts = [(b"LOGIN", user), (b"PASSWORD", password)]
        response = b"".join(
            bytes([len(key)]) + key + b"S" + struct.pack(">I", len(value)) + value.encode() for key, value in parts
        ).decode()
    client.authenticate(mechanism=mechanism, response=response)
    code, text = client.ended()
    assert code == 403
    assert text.startswith(f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}.")


def test_a_client_that_does_not_know_of_it_is_just_closed(dial: Dial) -> None:
    client = dial()
    client.greet()
    client.authenticate(password="wrong", capabilities={**CAPABILITIES, "authentication_failure_close": False})
    with pytest.raises(EOFError):
        client.take(0, Connection.Close, Connection.Tune)


def test_an_unknown_mechanism(dial: Dial) -> None:
    client = dial()
    client.greet()
    client.authenticate(mechanism="NONSENSE")
    refusal = client.dropped()
    assert refusal is None or refusal.code in {403, 503}


# Tune and open ----------------------------------------------------------------------------------------------------


def test_what_it_proposes(client: WireClient) -> None:
    tune = client.tune
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_what_cannot_be_negotiated(dial: Dial) -> None:
    wrong = [(2048, 131072), (0, 131072), (2047, 131073), (2047, 0), (2047, 4095)]
    clients = [dial() for _ in wrong]
    for client, (channel_max, frame_max) in zip(clients, wrong, strict=True):
        client.greet()
        client.authenticate()
        client.take(0, Connection.Tune)
        client.send(Connection.TuneOk(channel_max, frame_max, 0))
        client.send(Connection.Open())
    for client in clients:
        # RabbitMQ says nothing, after a pause against guesses of passwords.
        refusal = client.dropped()
        assert refusal is None or (refusal.code, refusal.text[:25]) == (530, "NOT_ALLOWED - negotiated ")


def test_an_unknown_virtual_host(dial: Dial) -> None:
    client = dial()
    with pytest.raises(Refused, match="530 NOT_ALLOWED - vhost nowhere not found"):
        client.open(vhost="nowhere")


def test_the_smallest_frames(dial: Dial, name: Name) -> None:
    small = dial().open(frame_max=4096).channel()
    queue = small.declare(name())
    content = bytes(range(256)) * 100
    small.publish(content, queue)
    assert small.get(queue).body == content  # WireClient checks each frame


def test_goodbye_is_answered_before_the_socket_is_closed(dial: Dial) -> None:
    dial().open().close()


def test_goodbye_is_answered_though_messages_follow_it(client: WireClient, name: Name) -> None:
    """As amqplib sends them."""
    queue = client.channel().declare(name())
    content = [header.ContentHeader(0, 1000, Basic.Properties()), body.ContentBody(bytes(1000))]
    message = b"".join(frame.marshal(one, 1) for one in [Basic.Publish(routing_key=queue), *content])
    client.send(Connection.Close(200, "", 0, 0))
    client.send_bytes(message * 5000)
    client.take(0, Connection.CloseOk)


def test_an_exclusive_queue_goes_with_its_connection(dial: Dial, other: WireChannel, name: Name) -> None:
    for leave in (WireClient.close, WireClient.abort):
        client = dial().open()
        queue = client.channel().declare(name(), exclusive=True)
        leave(client)
        eventually(lambda queue=queue: other.refused(Queue.Declare(queue=queue, passive=True)).code == 404)


# Heartbeats -------------------------------------------------------------------------------------------------------


def test_heartbeats_come_and_silence_is_ended(dial: Dial) -> None:
    talking, silent = dial(), dial()
    talking.open(heartbeat=1)
    silent.open(heartbeat=1)
    for _ in range(2):
        channel, found = talking.read()
        assert (channel, type(found)) == (0, heartbeat.Heartbeat)
        talking.send(heartbeat.Heartbeat())
    # The one that sends nothing is closed without a method, after two or three intervals.
    silent.wait_for_end()
    talking.channel().close()


def test_a_client_may_send_heartbeats_that_were_not_agreed(client: WireClient) -> None:
    client.send(heartbeat.Heartbeat())
    client.channel().close()


# What ends a connection -------------------------------------------------------------------------------------------


TOO_MANY_CHANNELS = (
    530,
    "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
)


def test_more_channels_than_agreed(dial: Dial) -> None:
    client = dial().open(channel_max=2)
    for number in (1, 2, 3, 65535):
        client.channel(number).close()  # one that is closed counts no more
    client.channel(1)
    client.channel(65535)
    client.send(Channel.Open(), 2)
    assert client.ended() == TOO_MANY_CHANNELS


def test_a_channel_that_was_refused_counts_until_the_client_has_closed_it(dial: Dial) -> None:
    for answered in (True, False):
        client = dial().open(channel_max=2)
        client.channel(1)
        bad = client.channel(2)
        bad.cast(Queue.Declare(queue="missing-queue", passive=True))
        bad.take(Channel.Close)
        if answered:
            bad.cast(Channel.CloseOk())
            client.channel(3).close()
        else:
            client.send(Channel.Open(), 3)
            assert client.ended() == TOO_MANY_CHANNELS


@pytest.mark.parametrize(("size", "heard"), [(4000, True), (5000, False)])
def test_a_frame_before_there_is_an_agreement(dial: Dial, size: int, heard: bool) -> None:
    client = dial()
    client.greet()
    client.send(Connection.StartOk({"product": "x" * size}, "PLAIN", "\0guest\0guest", "en_US"))
    if heard:
        client.take(0, Connection.Tune)
    else:
        assert client.dropped() is None


def test_a_frame_larger_than_agreed(dial: Dial) -> None:
    client = dial().open(frame_max=4096)
    client.channel()
    client.send_bytes(raw_frame(3, 1, b"x" * 4097))
    code, text = client.ended()
    assert (code, text[:14]) == (501, "FRAME_ERROR - ")


def test_the_rest_of_a_refused_frame_does_not_end_the_connection(dial: Dial) -> None:
    """A client that is still sending gets the time to read why: a reset socket would fail its next send instead."""
    client = dial().open(frame_max=4096)
    client.channel()
    first, rest = b"\x03\0\x01" + struct.pack(">I", 100_000) + b"x", b"x" * 99_999 + b"\xce"
    client.send_bytes(first)
    assert client.take(0, Connection.Close).reply_code == 501
    begin = time.monotonic()
    client.send_bytes(rest)
    with suppress(ConnectionError):
        client.wait_for_end()
    assert time.monotonic() - begin > 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(raw_frame(1, 1, struct.pack(">HH", 20, 40) + b"\0\0\0\0\0\0\0", end=b"\0"), id="bad end"),
        pytest.param(raw_frame(7, 1, b"what"), id="unknown type"),
        pytest.param(raw_frame(1, 1, b"\0"), id="no method id"),
    ],
)
def test_a_broken_frame(client: WireClient, data: bytes) -> None:
    client.channel()
    client.send_bytes(data)
    code, _text = client.ended()
    assert code in {501, 502, 503, 505}


def test_a_method_that_is_cut_short(client: WireClient) -> None:
    client.channel()
    client.send_bytes(raw_method(50, 10, b"\0\0\x20short"))
    code, _text = client.ended()
    assert code in {501, 502, 541}


@pytest.mark.parametrize("ids", [(50, 99), (60, 1000), (999, 10)])
def test_a_method_that_does_not_exist(client: WireClient, ids: tuple[int, int]) -> None:
    client.channel()
    client.send_bytes(raw_method(*ids))
    refusal = client.dropped()
    assert refusal is None or refusal.code in {503, 540}


def test_a_method_on_a_channel_that_is_not_open(client: WireClient) -> None:
    client.send(Queue.Declare(queue="q", passive=True), 5)
    assert client.ended() == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_a_channel_that_is_opened_twice(client: WireClient) -> None:
    channel = client.channel()
    channel.cast(Channel.Open())
    assert client.ended() == (504, "CHANNEL_ERROR - second 'channel.open' seen")


@pytest.mark.parametrize(
    "method", [Channel.Open(), Queue.Declare(queue="q", passive=True), Basic.Publish()], ids=lambda method: method.name
)
def test_a_method_of_a_channel_on_channel_0(client: WireClient, method: Any) -> None:
    client.send(method, 0)
    code, _text = client.ended()
    assert code in {503, 504, 505}


def test_a_method_of_the_connection_on_a_channel(client: WireClient) -> None:
    channel = client.channel()
    channel.cast(Connection.Open())
    code, _text = client.ended()
    assert code in {503, 504, 540}


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([body.ContentBody(b"x")], id="body first"),
        pytest.param([header.ContentHeader(body_size=1, properties=Basic.Properties())], id="header first"),
        pytest.param([Basic.Publish(routing_key="q"), body.ContentBody(b"x")], id="body without header"),
        pytest.param(
            [Basic.Publish(routing_key="q"), Queue.Declare(queue="q", passive=True)], id="method before header"
        ),
    ],
)
def test_frames_out_of_order(client: WireClient, frames: list[Any]) -> None:
    channel = client.channel()
    for one in frames:
        channel.cast(one)
    code, text = client.ended()
    assert (code, text[:19]) == (505, "UNEXPECTED_FRAME - ")


def test_a_content_of_another_class(client: WireClient) -> None:
    channel = client.channel()
    channel.cast(Basic.Publish(routing_key="q"))
    client.send_bytes(raw_frame(2, 1, struct.pack(">HHQH", 50, 0, 0, 0)))
    code, text = client.ended()
    assert (code, text[:19]) == (505, "UNEXPECTED_FRAME - ")


def test_other_connections_do_not_notice(client: WireClient, other: WireChannel, name: Name) -> None:
    queue = other.declare(name())
    client.channel()
    client.send_bytes(raw_frame(7, 1, b"what"))
    client.ended()
    other.published(b"1", routing_key=queue)
    assert other.ready(queue) == 1


def test_what_is_not_implemented(dial: Dial, name: Name) -> None:
    for method in [
        Basic.Qos(prefetch_size=1),
        Basic.Recover(requeue=False),
        Channel.Flow(active=False),
    ]:
        client = dial().open()
        client.channel().cast(method)
        code, text = client.ended()
        assert (code, text[:18]) == (540, "NOT_IMPLEMENTED - "), method.name
    client = dial().open()
    client.channel().publish(b"x", name(), immediate=True)
    assert client.ended() == (540, "NOT_IMPLEMENTED - immediate=true")


def test_after_a_close_nothing_else_is_answered(client: WireClient) -> None:
    client.channel()
    client.send(Channel.Open(), 1)  # an error
    assert client.take(0, Connection.Close).reply_code == 504
    # Not before: RabbitMQ's channels are processes, of which the second may answer before the first has failed.
    client.send(Channel.Open(), 2)
    client.send(Queue.Declare(queue="q", passive=True), 1)
    client.send(Connection.CloseOk())
    with suppress(EOFError, ConnectionError):
        while True:
            client.sort(10)
    assert [client.waiting(number) for number in (1, 2)] == [[], []]
