"""A connection of the stream protocol to a real broker, and to peers that lie."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from support.chunks import of_bodies
from support.ports import free_ports
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound, RequestRefused
from fairsched.streams import StreamConnection, StreamRecords, data_message, stream_url
from fairsched.streams.commands import RESPONSE, Key, frame, string
from fairsched.streams.placing import connect_to

on_broker = pytest.mark.rabbitmq("streams")
_names = itertools.count()


def bodies(found: StreamRecords) -> list[bytes]:
    rows, _, (_, offsets, data) = found.bodies()
    ends = memoryview(offsets).cast("i")
    return [data[ends[row] : ends[row + 1]] for row in range(rows)]


def publish(connection: StreamConnection, stream: str, messages: list[bytes], name: str = "", first: int = 1) -> None:
    """Publish bodies and return when the broker has them."""
    publisher = connection.declare_publisher(stream, name)
    connection.confirmed.clear()
    connection.publish(publisher, ((number, data_message(body)) for number, body in enumerate(messages, first)))
    assert connection.wait_confirms(len(messages), 30)
    assert not connection.refused
    connection.delete_publisher(publisher)


def read(connection: StreamConnection, stream: str, offset: str | int | datetime, count: int) -> StreamRecords:
    """Read so many records, or more."""
    found = StreamRecords(stream, connection.old)
    found.want(1 << 30, 1 << 30)
    subscription = connection.subscribe(stream, offset, 2)
    while found.count < count:
        chunk = connection.chunk(30)
        assert chunk is not None
        found.add_chunk(chunk.frame, chunk.at, offset if isinstance(offset, int) else 0, {})
        connection.credit(chunk.subscription)
    connection.unsubscribe(subscription)
    return found


@pytest.fixture
def connection(broker: Node) -> Iterator[StreamConnection]:
    with StreamConnection(broker.stream_url) as opened:
        yield opened


@pytest.fixture
def stream(connection: StreamConnection) -> str:
    name = f"streamed-{next(_names)}"
    connection.create(name, {"max-age": "1D"})
    return name


@on_broker
def test_what_is_published_is_read(broker: Node, connection: StreamConnection, stream: str) -> None:
    assert connection.version == broker.version
    assert connection.metadata([stream, "nowhere"]).keys() == {stream}
    sent = [b"%d" % number for number in range(5000)]
    publish(connection, stream, sent)
    assert bodies(read(connection, stream, "first", len(sent))) == sent
    found = read(connection, stream, 4321, len(sent) - 4321)
    assert (bodies(found), found.last_offset()) == (sent[4321:], 4999)
    assert bodies(read(connection, stream, datetime.fromtimestamp(0, UTC), 1))[0] == b"0"
    assert bodies(read(connection, stream, "last", 1))[-1] == b"4999"
    subscription = connection.subscribe(stream, "next")
    assert connection.chunk(0.05) is None
    publish(connection, stream, [b"new"])
    assert connection.chunk(30) is not None
    connection.unsubscribe(subscription)


@on_broker
def test_a_named_publisher_repeats_nothing(connection: StreamConnection, stream: str) -> None:
    assert connection.query_publisher_sequence("billing", stream) == 0
    publish(connection, stream, [b"1", b"2", b"3"], "billing")
    assert connection.query_publisher_sequence("billing", stream) == 3
    publish(connection, stream, [b"2 again", b"3 again", b"4"], "billing", first=2)
    assert bodies(read(connection, stream, "first", 4)) == [b"1", b"2", b"3", b"4"]


@on_broker
def test_offsets_are_stored_by_name(connection: StreamConnection, stream: str) -> None:
    publish(connection, stream, [b"1", b"2"])
    assert connection.query_offset("billing", stream) is None
    connection.store_offset("billing", stream, 1)
    # The broker does not say when it is stored.
    eventually(lambda: connection.query_offset("billing", stream) == 1)


@on_broker
def test_refusals_name_what_was_asked_for(broker: Node, connection: StreamConnection, stream: str) -> None:
    with pytest.raises(QueueNotFound, match="stream 'nowhere': there is no such stream"):
        connection.subscribe("nowhere", "first")
    with pytest.raises(QueueNotFound, match="no stream 'nowhere'"):
        connect_to(broker.stream_url, "nowhere")
    connection.create(stream, {"max-age": "1D"})
    with pytest.raises(RequestRefused, match=r"with arguments \{'max-age': '2D'\}: precondition failed"):
        connection.create(stream, {"max-age": "2D"})
    with pytest.raises(RequestRefused, match="login: the login was refused") as refused:
        StreamConnection(broker.stream_url.replace("guest:guest", "guest:hush-hush")).open()
    assert "hush" not in str(refused.value)
    with pytest.raises(RequestRefused, match="virtual host 'elsewhere'"):
        StreamConnection(broker.stream_url.replace("%2F", "elsewhere")).open()
    with pytest.raises(RequestRefused, match=r"offers the SASL mechanisms .*PLAIN.*, not EXTERNAL"):
        StreamConnection(broker.stream_url, mechanism="EXTERNAL").open()
    with pytest.raises(ConfigurationError, match="first, last, next, a number"):
        connection.subscribe(stream, "middle")
    with pytest.raises(ConfigurationError, match="at most 255 bytes, got 300"):
        connection.query_offset("x" * 300, stream)
    with pytest.raises(ConfigurationError, match=r"at most \d+ bytes .*, got 3000000"):
        connection.publish(connection.declare_publisher(stream), [(1, data_message(b"x" * 2_999_992))])


@on_broker
def test_a_stream_that_is_deleted_ends_its_readers(broker: Node, connection: StreamConnection, stream: str) -> None:
    connection.subscribe(stream, "first")
    with StreamConnection(broker.stream_url) as other:
        other.delete(stream)
    with pytest.raises(ConnectionFailed, match=f"stream '{stream}'"):
        connection.chunk(30)


@on_broker
def test_a_node_is_found_by_its_advertised_address_or_by_the_url(broker: Node, stream: str) -> None:
    with connect_to(broker.stream_url, stream, leader=True) as found:
        assert found.metadata([stream])[stream].leader == found.advertised


@on_broker
def test_over_tls() -> None:
    with Node(tls=True, streams=True) as node:
        trusted = f'?ssl_options={{"cafile":"{node.certificate}"}}'.replace('"', "%22").replace("/", "%2F")
        url = node.stream_tls_url
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            StreamConnection(url).open()
        with StreamConnection(url + trusted) as opened:
            opened.create("secret")
            publish(opened, "secret", [b"x" * 1000] * 2000)
            assert bodies(read(opened, "secret", "first", 2000)) == [b"x" * 1000] * 2000


# Peers that lie -------------------------------------------------------------------------------------------------------


@pytest.fixture
def peer() -> Iterator[Callable[[Callable[[bytes], bytes]], StreamConnection]]:
    """Makes a peer that answers each frame with what a function returns, and a connection to it that is not open."""
    listeners: list[socket.socket] = []

    def serve(listener: socket.socket, answer: Callable[[bytes], bytes]) -> None:
        try:
            link, _ = listener.accept()
            with link, link.makefile("rb") as file:
                while len(head := file.read(4)) == 4:
                    link.sendall(answer(file.read(int.from_bytes(head, "big"))))
        except OSError:
            pass

    def make(answer: Callable[[bytes], bytes]) -> StreamConnection:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        return StreamConnection(f"rabbitmq-stream://g:g@127.0.0.1:{listener.getsockname()[1]}/%2F", timeout=5)

    yield make
    for listener in listeners:
        listener.close()


def honest(asked: bytes, then: bytes = b"") -> bytes:
    """Answer the handshake as a broker does."""
    key, _, number = struct.unpack_from(">HHI", asked + bytes(8))
    ok = struct.pack(">IH", number, 1)
    if key == Key.SASL_HANDSHAKE:
        return frame(RESPONSE | key, ok, struct.pack(">I", 1), string("PLAIN"))
    if key == Key.SASL_AUTHENTICATE:
        return frame(RESPONSE | key, ok) + frame(Key.TUNE, struct.pack(">II", 1 << 20, 60))
    if key in (Key.PEER_PROPERTIES, Key.OPEN):
        return frame(RESPONSE | key, ok, bytes(4))
    return frame(RESPONSE | key, ok) + then if key in (Key.SUBSCRIBE, Key.CLOSE) else b""


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">IHH", 0xFFFFFFFF, 0x8011, 1),  # a frame of 4 GiB
        struct.pack(">I", 2) + b"\x80\x11",
        frame(RESPONSE | Key.PEER_PROPERTIES, struct.pack(">IHI", 1, 1, 0xFFFFFFFF)),
        frame(RESPONSE | Key.PEER_PROPERTIES, struct.pack(">IHIH", 1, 1, 1, 500)),
        frame(77, b"what is it"),
        frame(Key.PUBLISH_CONFIRM, struct.pack(">BI", 1, 0x7FFFFFFF)),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["huge", "short", "long array", "long string", "unknown key", "long confirm", "http"],
)
def test_nonsense_in_place_of_an_answer(
    answer: bytes, peer: Callable[[Callable[[bytes], bytes]], StreamConnection]
) -> None:
    opened = peer(lambda _: answer)
    opened._timeout = 0.5
    with pytest.raises(ConnectionFailed, match=r"malformed frame|did not answer"):
        opened.open()


def test_chunks_of_a_liar_end_with_an_error(peer: Callable[[Callable[[bytes], bytes]], StreamConnection]) -> None:
    chunk = of_bodies(0, [b"body"])
    delivered = [
        frame(Key.DELIVER, b"\0", chunk),
        frame(Key.DELIVER, b"\7", chunk),  # of no subscription
        frame(Key.DELIVER, b"\0" + bytes(8), chunk, version=2),
        frame(Key.DELIVER, b"\0", chunk[:-1] + b"x"),
        frame(Key.DELIVER, b"\0", chunk[:30]),
        frame(Key.DELIVER, b"\0"),
        frame(Key.DELIVER, b"\0", chunk, version=3),
    ]
    opened = peer(lambda asked: honest(asked, b"".join(delivered))).open()
    opened.subscribe("s", "first")
    found = StreamRecords("s")
    found.want(100, 1 << 20)
    for _ in range(2):
        came = opened.chunk(5)
        assert came is not None
        found.add_chunk(came.frame, came.at, 0, {})
    assert bodies(found) == [b"body"] * 2
    for complaint in ("CRC-32", "cut short", "cut short"):
        came = opened.chunk(5)
        assert came is not None
        with pytest.raises(ValueError, match=complaint):
            found.add_chunk(came.frame, came.at, 0, {})
    with pytest.raises(ConnectionFailed, match="malformed frame: deliver must have version 1 or 2, got 3"):
        opened.chunk(5)
    with pytest.raises(ConnectionFailed, match="the connection is closed"):
        opened.chunk(5)


def test_nobody_listens() -> None:
    [port] = free_ports(1)
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}: ConnectionRefusedError"):
        StreamConnection(f"rabbitmq-stream://127.0.0.1:{port}").open()


@pytest.mark.parametrize(
    ("url", "port", "found"),
    [
        ("amqp://u:p@h/v", None, "rabbitmq-stream://u:p@h:5552/v"),
        ("amqp://h:5672", 7, "rabbitmq-stream://h:7"),
        ("amqps://u:p@[::1]:5671/%2F?ssl_options=x", None, "rabbitmq-stream+tls://u:p@[::1]:5551/%2F?ssl_options=x"),
    ],
)
def test_the_url_of_the_stream_port(url: str, port: int | None, found: str) -> None:
    assert stream_url(url, port) == found


def test_urls_are_checked_and_show_no_password() -> None:
    assert StreamConnection("rabbitmq-stream://u:p@h").address == "h:5552"
    assert StreamConnection("rabbitmq-stream+tls://u:p@h/v").address == "h:5551"
    with pytest.raises(ConfigurationError, match="starts with rabbitmq-stream://") as refused:
        StreamConnection("amqp://u:hush@h")
    assert "hush" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="mechanism must be PLAIN or EXTERNAL, got 'GSSAPI'"):
        StreamConnection("rabbitmq-stream://h", mechanism="GSSAPI")
