"""A client's operations on queues and messages, through pika."""

from __future__ import annotations

import socket
import ssl

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from support.waiting import eventually

import fairsched


def bodies(channel, queue):
    found = []
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(message[2])
    return found


def collect(channel, queue, count, **options):
    found = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=5, **options):
        assert method is not None, f"only {len(found)} of {count}"
        found.append((method, properties, body))
        if len(found) == count:
            break
    return found


def closed_with(code):
    return pytest.raises(ChannelClosedByBroker, match=str(code))


def test_a_server_named_queue_is_named_and_remembered(channel):
    name = channel.queue_declare("").method.queue
    assert name.startswith("amq.gen-")
    channel.basic_publish("", name, b"x")
    assert channel.basic_get("", auto_ack=True)[2] == b"x"


def test_properties_and_headers_come_through(channel):
    properties = pika.BasicProperties(
        content_type="text/plain",
        headers={"a": 1, "b": ["x", {"c": None}]},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=17,
        type="t",
        app_id="app",
    )
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"", properties)
    method, received, _ = channel.basic_get("q")
    assert received == properties
    assert (method.routing_key, method.exchange, method.message_count) == ("q", "", 0)


def test_prefetch_holds_back_until_something_is_acknowledged(connect):
    publisher, consumer = connect().channel(), connect().channel()
    publisher.queue_declare("q")
    for number in range(10):
        publisher.basic_publish("", "q", str(number))
    consumer.basic_qos(prefetch_count=3)
    seen = []
    consumer.basic_consume("q", lambda ch, method, properties, body: seen.append(method.delivery_tag))
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(seen) == 3)
    consumer.connection.process_data_events(0.05)
    assert seen == [1, 2, 3]
    consumer.basic_ack(2, multiple=True)
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(seen) == 5)


def test_prefetch_of_a_channel_counts_all_consumers(connect):
    publisher, consumer = connect().channel(), connect().channel()
    seen = []
    consumer.basic_qos(prefetch_count=3, global_qos=True)
    for queue in ("a", "b"):
        publisher.queue_declare(queue)
        for number in range(5):
            publisher.basic_publish("", queue, str(number))
        consumer.basic_consume(queue, lambda ch, method, properties, body: seen.append(method.delivery_tag))
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(seen) == 3)
    consumer.connection.process_data_events(0.05)
    assert seen == [1, 2, 3]
    consumer.basic_ack(1)
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(seen) == 4)


def test_what_is_not_acknowledged_comes_back_in_its_place(connect):
    publisher = connect().channel()
    publisher.queue_declare("q")
    for number in range(5):
        publisher.basic_publish("", "q", str(number))
    consumer = connect()
    channel = consumer.channel()
    got = collect(channel, "q", 3)
    channel.basic_ack(got[1][0].delivery_tag)
    consumer.close()
    again = [publisher.basic_get("q", auto_ack=True) for _ in range(4)]
    assert [(body, method.redelivered) for method, _, body in again] == [
        (b"0", True),
        (b"2", True),
        (b"3", True),
        (b"4", True),
    ]


def test_messages_are_shared_out_in_turn(connect):
    publisher = connect().channel()
    publisher.queue_declare("q")
    seen = {"a": [], "b": []}
    channels = []
    for got in seen.values():
        channels.append(connect().channel())
        channels[-1].basic_consume("q", lambda ch, method, properties, body, got=got: got.append(body), auto_ack=True)
    publisher.tx_select()
    for number in range(20):
        publisher.basic_publish("", "q", str(number))
    publisher.tx_commit()  # all at once: a consumer that takes the last one before the next is there may have that, too

    def all_there():
        for channel in channels:
            channel.connection.process_data_events(0.01)
        return sum(map(len, seen.values())) == 20

    eventually(all_there)
    assert {name: len(got) for name, got in seen.items()} == {"a": 10, "b": 10}


def test_a_higher_priority_is_served_while_it_takes(connect):
    publisher = connect().channel()
    publisher.queue_declare("q")
    seen = []
    channels = [connect().channel(), connect().channel()]
    for channel, priority in zip(channels, (0, 10), strict=True):
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume(
            "q",
            lambda ch, method, properties, body, priority=priority: seen.append(priority),
            arguments={"x-priority": priority},
        )
    for number in range(3):
        publisher.basic_publish("", "q", str(number))

    def all_there():
        for channel in channels:
            channel.connection.process_data_events(0.01)
        return len(seen) == 3

    eventually(all_there)
    assert sorted(seen) == [0, 10, 10]


def test_nack_and_reject_requeue_or_drop(channel):
    channel.queue_declare("q")
    for number in range(4):
        channel.basic_publish("", "q", str(number))
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(4)]
    channel.basic_nack(tags[1], multiple=True, requeue=True)
    channel.basic_reject(tags[2], requeue=True)
    channel.basic_reject(tags[3], requeue=False)
    assert bodies(channel, "q") == [b"0", b"1", b"2"]


def test_transactions(channel):
    channel.queue_declare("q")
    channel.tx_select()
    channel.basic_publish("", "q", b"1")
    assert channel.queue_declare("q", passive=True).method.message_count == 0
    channel.tx_rollback()
    channel.basic_publish("", "q", b"2")
    channel.tx_commit()
    method, _, body = channel.basic_get("q")
    assert body == b"2"
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    channel.basic_recover(requeue=True)
    assert channel.basic_get("q")[0] is None


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        (404, "NOT_FOUND - no queue 'none' in vhost '/'", lambda ch: ch.basic_get("none")),
        (
            404,
            "NOT_FOUND - no exchange 'none' in vhost '/'",
            lambda ch: (ch.basic_publish("none", "", b""), ch.queue_declare("other")),
        ),
        (406, "PRECONDITION_FAILED - unknown delivery tag 7", lambda ch: (ch.basic_ack(7), ch.queue_declare("other"))),
        (
            403,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
            lambda ch: ch.queue_declare("amq.mine"),
        ),
        (
            406,
            (
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but "
                "current is 'false'"
            ),
            lambda ch: ch.queue_declare("q", durable=True),
        ),
        (
            406,
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value "
                "'1' of type 'signedint' but current is none"
            ),
            lambda ch: ch.queue_declare("q", arguments={"x-max-length": 1}),
        ),
        (
            406,
            "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'p' in vhost '/': {value_negative,-1}",
            lambda ch: ch.queue_declare("p", arguments={"x-max-length": -1}),
        ),
        (406, "PRECONDITION_FAILED - channel is not transactional", lambda ch: ch.tx_commit()),
    ],
)
def test_errors_of_a_channel(connect, code, text, action):
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("q")
    with pytest.raises(ChannelClosedByBroker) as raised:
        action(channel)
    assert (raised.value.reply_code, raised.value.reply_text) == (code, text)
    assert connection.channel().queue_declare("q", passive=True).method.queue == "q"


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (
            530,
            lambda ch: (
                ch.basic_consume("q", print, consumer_tag="t"),
                ch._impl._consumers.clear(),
                ch._impl.basic_consume("q", print, consumer_tag="t"),
                ch.queue_declare("other"),
            ),
        ),
        (540, lambda ch: ch.basic_qos(prefetch_size=10)),
        (540, lambda ch: ch.basic_recover(requeue=False)),
        (503, lambda ch: ch.exchange_declare("x", exchange_type="no-such-type")),
    ],
)
def test_errors_of_a_connection(connect, code, action):
    channel = connect().channel()
    channel.queue_declare("q")
    with pytest.raises(ConnectionClosedByBroker) as raised:
        action(channel)
    assert raised.value.reply_code == code


def test_a_client_that_begins_tls_is_sent_away_and_logged(broker, caplog):
    with socket.create_connection(("127.0.0.1", broker.port)) as plain:
        host, port = plain.getsockname()
        with pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    eventually(lambda: f"connection from {host}:{port} closed: it began TLS" in caplog.text)
    with pytest.raises(fairsched.ConnectionFailed, match="does not speak TLS: use amqp://"):
        fairsched.Consumer(broker.url.replace("amqp://", "amqps://"), ["q"]).run(lambda message: None)
    eventually(lambda: caplog.text.count("it began TLS") == 2)
    eventually(lambda: broker.status()["connections"] == 0)
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
