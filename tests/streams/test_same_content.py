"""Messages over the stream protocol are, octet by octet, what RabbitMQ delivers of them over AMQP 0-9-1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.amqp10 import NESTED, PLAIN, Value, section
from support.rabbitmq import Node
from support.wiretables import Encoded, written

from fairsched.spark.broker import Broker
from fairsched.spark.source.streamrange import read_range
from fairsched.streams._records import StreamRecords, unpack_gzip
from fairsched.streams.connection import StreamConnection

pytestmark = [pytest.mark.rabbitmq("streams"), pytest.mark.integration]

#: Exchange, routing key, content header and body.
Content = tuple[str, str, bytes, bytes]
_names = itertools.count()
#: A failure says which message differs, so that there is nothing to shrink.
EXAMPLES = settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)


def texts(column: Any) -> list[bytes]:
    rows, _, (_, offsets, data) = column
    ends = memoryview(offsets).cast("i")
    return [data[ends[row] : ends[row + 1]] for row in range(rows)]


def contents(collected: Any) -> Iterator[tuple[bytes, ...]]:
    exchanges, keys = collected.paths()
    columns = (texts(exchanges), texts(keys), collected.content_headers(), texts(collected.bodies()))
    return zip(*columns, strict=True)


def over_amqp(node: Node, stream: str, count: int) -> list[tuple[bytes, ...]]:
    pieces = read_range(Broker((node.url,)), stream, 0, count, idle=30.0, strict=True, most=10_000, most_bytes=1 << 30)
    return [content for piece in pieces for content in contents(piece.deliveries)]


def over_streams(connection: StreamConnection, stream: str, count: int) -> list[tuple[bytes, ...]]:
    records = StreamRecords(stream, connection.old)
    records.want(count, 1 << 30)
    subscription = connection.subscribe(stream, "first")
    while records.count < count:
        chunk = connection.chunk(30)
        assert chunk is not None
        records.add_chunk(chunk.frame, chunk.at, 0, {1: unpack_gzip})
        connection.credit(subscription)
    connection.unsubscribe(subscription)
    return list(contents(records))


def published(connection: StreamConnection, stream: str, messages: Sequence[bytes]) -> None:
    """Publish messages in the format of AMQP 1.0."""
    connection.create(stream)
    publisher = connection.declare_publisher(stream)
    connection.confirmed.clear()
    connection.publish(publisher, enumerate(messages, 1))
    assert connection.wait_confirms(len(messages), 30)
    assert not connection.refused
    connection.delete_publisher(publisher)


def check_same(node: Node, connection: StreamConnection, stream: str, count: int) -> None:
    expected = over_amqp(node, stream, count)
    assert len(expected) == count
    for over, streamed in zip(expected, over_streams(connection, stream, count), strict=True):
        assert streamed == over


@pytest.fixture(scope="module")
def connection(broker: Node) -> Iterator[StreamConnection]:
    with StreamConnection(broker.stream_url) as opened:
        yield opened


# Published over AMQP 0-9-1 --------------------------------------------------------------------------------------------

_short = st.text(max_size=20)
_fields = st.one_of(
    st.tuples(st.sampled_from("S"), st.binary(max_size=9)),
    st.tuples(st.just("x"), st.binary(max_size=9)),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("V"), st.none()),
    st.tuples(st.just("T"), st.integers(0, 2**40)),
    st.tuples(st.just("f"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("d"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("b"), st.integers(-128, 127)),
    st.tuples(st.just("B"), st.integers(0, 255)),
    st.tuples(st.just("s"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("u"), st.integers(0, 2**16 - 1)),
    st.tuples(st.just("I"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("i"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("l"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("A"), st.just([("I", 1), ("S", b"two")])),
    st.tuples(st.just("F"), st.just([(b"inner", "t", True)])),
)
_keys = st.one_of(
    st.sampled_from([b"x-one", b"x-two", b"x-message-id", b"same"]),
    st.from_regex(rb"[a-z]{1,6}", fullmatch=True),
)
_headers = st.lists(st.tuples(_keys, _fields), max_size=5).map(
    lambda found: written([(name, kind, value) for name, (kind, value) in found])
)
_PROPERTIES: dict[str, st.SearchStrategy[Any]] = {
    "content_type": _short,
    "content_encoding": _short,
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "correlation_id": _short,
    "reply_to": _short,
    "expiration": st.sampled_from(["0", "60000", "4294967295", "007"]),
    "message_id": st.one_of(_short, st.uuids().map(lambda one: f"urn:uuid:{one}")),
    "timestamp": st.integers(0, 2**40),
    "type": _short,
    "user_id": st.just("guest"),
    "app_id": _short,
}
_properties = st.builds(
    lambda headers, others: Encoded(headers, **others),
    _headers,
    st.fixed_dictionaries({}, optional=_PROPERTIES),
)


@EXAMPLES
@given(st.lists(st.tuples(_properties, st.binary(max_size=300)), min_size=60, max_size=60))
def test_what_was_published_over_amqp(
    broker: Node, connection: StreamConnection, messages: list[tuple[Encoded, bytes]]
) -> None:
    stream = f"same-{next(_names)}"
    broker.declare(stream, arguments={"x-queue-type": "stream"})
    with broker.connect() as channel:
        channel.tx_select()
        channel.exchange_declare(f"to-{stream}")
        channel.queue_bind(stream, f"to-{stream}", "by this key")
        for number, (properties, body) in enumerate(messages):
            exchange, key = (f"to-{stream}", "by this key") if number % 2 else ("", stream)
            channel._impl.basic_publish(exchange, key, body, properties)
        channel.tx_commit()
    check_same(broker, connection, stream, len(messages))


def test_a_publisher_that_gives_offsets_of_its_own(broker: Node, connection: StreamConnection) -> None:
    stream = f"same-{next(_names)}"
    broker.declare(stream, arguments={"x-queue-type": "stream"})
    given = [("l", 7), ("S", b"mine")]
    with broker.connect() as channel:
        channel.tx_select()
        for kinds in itertools.product(given, repeat=2):
            headers = written([(b"x-stream-offset", kind, value) for kind, value in kinds])
            channel._impl.basic_publish("", stream, b"body", Encoded(headers))
        channel.tx_commit()
    check_same(broker, connection, stream, 4)


# Published over the stream protocol -----------------------------------------------------------------------------------


def values(node: Node) -> st.SearchStrategy[Value]:
    return NESTED if node.version >= (3, 13) else PLAIN


def messages_of(node: Node) -> st.SearchStrategy[bytes]:
    """Messages in the format of AMQP 1.0, as far as this RabbitMQ delivers them over AMQP 0-9-1."""
    later = node.version >= (3, 13)
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
    ids = st.one_of(
        st.tuples(st.just("utf8"), text),
        st.tuples(st.just("uuid"), st.integers(0, 2**128 - 1)),
        st.tuples(st.just("ulong"), st.integers(0, 2**64 - 1)),
        st.tuples(st.just("binary"), st.binary(max_size=40)),
        st.just(("null", None)),
    )
    maybe = st.just(("null", None))
    addresses = st.sampled_from(["", "queue", "/queues/a%20b%2F", "/queues/%zz", "/queues/%4", "é" * 127])
    properties = st.tuples(
        ids, st.one_of(maybe, st.tuples(st.just("binary"), st.sampled_from([b"guest", b"", b"a\xc3\xa9"]))),
        st.one_of(maybe, st.tuples(st.just("utf8"), text)), st.one_of(maybe, st.tuples(st.just("utf8"), text)),
        st.one_of(maybe, st.tuples(st.just("utf8"), addresses)), ids,
        st.one_of(maybe, st.tuples(st.just("symbol"), text)), st.one_of(maybe, st.tuples(st.just("symbol"), text)),
        maybe, st.one_of(maybe, st.tuples(st.just("timestamp"), st.integers(0, 2**50))),
        st.one_of(maybe, st.tuples(st.just("utf8"), text)),
    ).flatmap(lambda items: st.integers(0, len(items)).map(lambda count: ("list", list(items[:count]))))  # fmt: skip
    names = st.one_of(st.sampled_from(["same", "x-one"]), text)
    if not later:
        # Headers of these names must be lists, for which it has no place: it ends the connection.
        names = names.filter(lambda name: name not in ("CC", "BCC"))
    application = st.lists(st.tuples(st.tuples(st.just("utf8"), names), values(node)), max_size=5)
    symbols = st.sampled_from(["x-one", "x-two", "x-stream-offset", "x-opt-rabbitmq-received-time"])
    known = [
        st.tuples(st.just(("symbol", "x-exchange")), st.just(("utf8", "some"))),
        st.tuples(st.just(("symbol", "x-routing-key")), st.just(("utf8", "key"))),
        st.tuples(st.just(("symbol", "x-basic-priority")), st.just(("ubyte", 4))),
        st.tuples(st.just(("symbol", "x-basic-delivery-mode")), st.just(("ubyte", 1))),
        st.tuples(st.just(("symbol", "x-basic-expiration")), st.sampled_from([("utf8", "0"), ("utf8", "0070")])),
    ]
    others = st.tuples(st.tuples(st.just("symbol"), symbols), values(node))
    copies = st.tuples(st.just(("symbol", "x-cc")), st.just(("list", [("utf8", "carbon"), ("utf8", "copy")])))
    annotations = st.lists(st.one_of(others, *known, *([copies] if later else [])), max_size=5)
    header = st.tuples(
        st.sampled_from([("boolean", True), ("boolean", False), ("null", None)]),
        st.sampled_from([("ubyte", 9), ("null", None)]),
        st.sampled_from([("uint", 0), ("uint", 70_000), ("null", None)]),
    ).map(lambda items: section("header", ("list", list(items))))  # fmt: skip
    body = st.binary(max_size=300).map(lambda octets: section("data", ("binary", octets)))
    if later:
        footer = section("footer", ("map", [(("symbol", "x-sum"), ("int", 7))]))
        bodies = st.one_of(
            st.lists(body, min_size=1, max_size=3).map(b"".join),
            body.map(lambda octets: octets + footer),
            values(node).map(lambda value: section("value", value)),
            values(node).map(lambda value: section("sequence", ("list", [value]))),
        )
    else:
        header, bodies = st.just(b""), body

    def optional(name: str, found: st.SearchStrategy[Value]) -> st.SearchStrategy[bytes]:
        return st.one_of(st.just(b""), found.map(lambda value: section(name, value)))

    return st.tuples(
        st.one_of(st.just(b""), header),
        optional("annotations", annotations.map(lambda found: ("map", found))),
        optional("properties", properties),
        optional("application", application.map(lambda found: ("map", found))),
        bodies,
    ).map(b"".join)


@EXAMPLES
@given(st.data())
def test_what_was_published_over_streams(broker: Node, connection: StreamConnection, data: st.DataObject) -> None:
    messages = data.draw(st.lists(messages_of(broker), min_size=100, max_size=100))
    stream = f"same-{next(_names)}"
    published(connection, stream, messages)
    check_same(broker, connection, stream, len(messages))


def test_a_dead_letter_in_a_stream(broker: Node, connection: StreamConnection) -> None:
    stream = f"same-{next(_names)}"
    broker.declare(stream, arguments={"x-queue-type": "stream"})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream}
    with broker.connect() as channel:
        channel.queue_declare(f"dying-{stream}", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for expiration in ("0", None):
            properties = pika.BasicProperties(expiration=expiration, headers={"CC": ["none"]})
            channel.basic_publish("", f"dying-{stream}", b"dies", properties)
        method, _, _ = channel.basic_get(f"dying-{stream}")
        channel.basic_nack(method.delivery_tag, requeue=False)
        # Its queue answers after it has passed on both.
        channel.queue_declare(f"dying-{stream}", passive=True)
        channel.basic_publish("", stream, b"lives")
    # Before 3.12, RabbitMQ drops what is dead-lettered into a stream.
    letters = [b"dies"] * 2 if broker.version >= (3, 12) else []
    assert [content[-1] for content in over_amqp(broker, stream, len(letters) + 1)] == [*letters, b"lives"]
    check_same(broker, connection, stream, len(letters) + 1)
