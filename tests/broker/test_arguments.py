"""The effects of x-arguments of a queue, and of properties of a message."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from contextlib import contextmanager

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp.commands import Queue
from pika.exceptions import ChannelClosedByBroker
from support.waiting import eventually
from support.wireclient import Server, WireClient

from fairsched import Retry


@contextmanager
def wired(broker):
    """A channel of a client that sends every type of value."""
    with WireClient(Server("embedded", broker.url).port) as client:
        yield client.open().channel()


@pytest.fixture
def wire(broker):
    with wired(broker) as channel:
        yield channel


def bodies(channel, queue):
    found = []
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(message[2])
    return found


def publish(channel, queue, *messages, exchange="", **properties):
    for body in messages:
        channel.basic_publish(exchange, queue, body, pika.BasicProperties(**properties))


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def with_dead_letters(channel, **arguments):
    channel.queue_declare("dead")
    channel.queue_declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} | arguments
    )


def test_max_length_drops_the_oldest(channel):
    channel.queue_declare("q", arguments={"x-max-length": 3})
    publish(channel, "q", *"12345")
    assert bodies(channel, "q") == [b"3", b"4", b"5"]


def test_max_length_counts_what_is_ready_only(channel):
    channel.queue_declare("q", arguments={"x-max-length": 2})
    publish(channel, "q", "1", "2")
    channel.basic_get("q")
    publish(channel, "q", "3")
    assert bodies(channel, "q") == [b"2", b"3"]


def test_max_length_bytes(channel):
    channel.queue_declare("q", arguments={"x-max-length-bytes": 10})
    publish(channel, "q", "aaaa", "bbbb", "cccc")
    assert bodies(channel, "q") == [b"bbbb", b"cccc"]


def test_reject_publish_is_nacked(channel):
    channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    publish(channel, "q", "1")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, "q", "2")
    assert bodies(channel, "q") == [b"1"]
    publish(channel, "q", "3")


def test_a_consumer_that_takes_all_loses_nothing_to_a_short_queue(connect):
    publisher, consumer = connect().channel(), connect().channel()
    publisher.queue_declare("q", arguments={"x-max-length": 1})
    seen = []
    consumer.basic_consume("q", lambda ch, method, properties, body: seen.append(int(body)), auto_ack=True)
    publish(publisher, "q", *map(str, range(50)))
    publisher.queue_declare("q", passive=True)
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(seen) == 50)
    assert seen == list(range(50))


@pytest.mark.parametrize("where", ["queue", "message", "both"])
def test_messages_expire_into_the_dead_letter_exchange(channel, where):
    with_dead_letters(channel, **({} if where == "message" else {"x-message-ttl": 100}))
    publish(channel, "q", "x", **({} if where == "queue" else {"expiration": "50" if where == "both" else "100"}))
    eventually(lambda: ready(channel, "dead") == 1)
    _, properties, body = channel.basic_get("dead")
    death = properties.headers["x-death"][0]
    assert body == b"x"
    assert (death["reason"], death["queue"], death["count"], death["exchange"], death["routing-keys"]) == (
        "expired",
        "q",
        1,
        "",
        ["q"],
    )
    assert properties.expiration is None
    assert death.get("original-expiration") == (None if where == "queue" else "50" if where == "both" else "100")
    assert properties.headers["x-first-death-queue"] == "q"
    assert properties.headers["x-first-death-reason"] == "expired"


def test_what_has_expired_is_not_delivered(channel):
    channel.queue_declare("q")
    publish(channel, "q", "1", expiration="1")
    publish(channel, "q", "2")
    deadline = time.monotonic() + 0.02
    eventually(lambda: time.monotonic() > deadline)
    assert bodies(channel, "q") == [b"2"]


def test_a_time_to_live_of_0_is_for_a_consumer_that_waits(connect):
    publisher, consumer = connect().channel(), connect().channel()
    publisher.queue_declare("q")
    publish(publisher, "q", "1", expiration="0")
    assert ready(publisher, "q") == 0
    seen = []
    consumer.basic_consume("q", lambda ch, method, properties, body: seen.append(body), auto_ack=True)
    publish(publisher, "q", "2", expiration="0")
    eventually(lambda: consumer.connection.process_data_events(0.01) or seen == [b"2"])


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [("rejected", {}), ("maxlen", {"x-max-length": 1}), ("delivery_limit", {"x-delivery-limit": 1})],
)
def test_reasons_of_dead_letters(channel, reason, arguments):
    with_dead_letters(channel, **arguments)
    publish(channel, "q", "x", headers={"mine": 1})
    if reason == "rejected":
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
    elif reason == "maxlen":
        publish(channel, "q", "y")
    else:
        for _ in range(2):
            channel.basic_nack(channel.basic_get("q")[0].delivery_tag, requeue=True)
    eventually(lambda: ready(channel, "dead") == 1)
    _, properties, body = channel.basic_get("dead")
    assert body == b"x"
    assert properties.headers["mine"] == 1
    assert properties.headers["x-death"][0]["reason"] == reason


def test_deaths_are_counted(channel):
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
    channel.queue_declare(
        "retry", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 1}
    )
    publish(channel, "q", "x")
    for round_ in range(1, 4):
        eventually(lambda: ready(channel, "q") == 1)
        method, properties, _ = channel.basic_get("q")
        deaths = {death["queue"]: death["count"] for death in (properties.headers or {}).get("x-death", [])}
        assert deaths == ({"q": round_ - 1, "retry": round_ - 1} if round_ > 1 else {})
        channel.basic_reject(method.delivery_tag, requeue=False)


def test_a_circle_of_expiries_ends(channel, broker):
    channel.queue_declare(
        "a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 1}
    )
    channel.queue_declare(
        "b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-message-ttl": 1}
    )
    publish(channel, "a", "x")
    eventually(lambda: broker.status()["messages"] == 0)


def test_a_full_queue_that_dead_letters_into_itself_ends(channel, broker):
    channel.queue_declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-max-length": 2}
    )
    publish(channel, "q", *"12345")
    assert bodies(channel, "q") == [b"4", b"5"]
    assert broker.status()["messages"] == 0


def test_255_priorities(channel):
    channel.queue_declare("q", arguments={"x-max-priority": 255})
    for priority in (0, 255, 128, 1, 254):
        publish(channel, "q", str(priority), priority=priority)
    assert bodies(channel, "q") == [b"255", b"254", b"128", b"1", b"0"]


def test_a_single_active_consumer(connect):
    publisher = connect().channel()
    publisher.queue_declare("q", arguments={"x-single-active-consumer": True})
    seen = []
    channels = [connect().channel(), connect().channel()]
    for index, channel in enumerate(channels):
        channel.basic_consume(
            "q", lambda ch, method, properties, body, index=index: seen.append((index, body)), auto_ack=True
        )

    def pump():
        for channel in channels:
            if channel.is_open:
                channel.connection.process_data_events(0.01)

    publish(publisher, "q", *"123")
    eventually(lambda: pump() or len(seen) == 3)
    channels[0].connection.close()
    publish(publisher, "q", "4")
    eventually(lambda: pump() or len(seen) == 4)
    assert seen == [(0, b"1"), (0, b"2"), (0, b"3"), (1, b"4")]


def test_a_consumer_that_does_not_acknowledge_is_timed_out(connect):
    channel = connect().channel()
    channel.queue_declare("q", arguments={"x-consumer-timeout": 100})
    publish(channel, "q", "x")
    channel.basic_consume("q", lambda *message: None)
    closed = []
    channel._impl.add_on_close_callback(lambda channel, reason: closed.append(reason))
    eventually(lambda: channel.connection.process_data_events(0.05) or closed)
    assert closed[0].reply_code == 406
    assert "delivery acknowledgement on channel 1 timed out. Timeout value used: 100 ms" in closed[0].reply_text
    assert bodies(connect().channel(), "q") == [b"x"]


def test_delays_of_a_quorum_queue_are_accepted_compared_and_ignored(connect):
    """As RabbitMQ 4.3 accepts them; retries of such a queue are copied here."""
    arguments = Retry(5, backoff=10, jitter=False).queue_arguments
    channel = connect().channel()
    channel.queue_declare("q", arguments=arguments)
    channel.queue_declare("q", arguments=arguments)
    publish(channel, "q", "x")
    channel.basic_reject(channel.basic_get("q")[0].delivery_tag)
    assert bodies(channel, "q") == [b"x"]  # at once
    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'x-delayed-retry-max' for queue 'q'"):
        channel.queue_declare("q", arguments={**arguments, "x-delayed-retry-max": 11_000})


@pytest.mark.parametrize("name", ["x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"])
def test_a_classic_queue_has_no_delays(connect, name):
    with pytest.raises(ChannelClosedByBroker, match=f"invalid arg '{name}' for queue 'q' in vhost '/' of queue type"):
        connect().channel().queue_declare("q", arguments={name: 1})


def test_a_last_value_queue_keeps_the_newest_of_each_key(channel):
    channel.queue_declare("q", arguments={"x-queue-kind": "last-value", "x-queue-key": "id"})
    for number, key in enumerate("abaca"):
        publish(channel, "q", str(number), headers={"id": key})
    assert bodies(channel, "q") == [b"1", b"3", b"4"]


def test_a_sorted_queue_is_served_by_key(channel):
    channel.queue_declare("q", arguments={"x-queue-kind": "sorted", "x-queue-key": "id"})
    for key in "dbca":
        publish(channel, "q", key, headers={"id": key})
    publish(channel, "q", "-")
    assert bodies(channel, "q") == [b"-", b"a", b"b", b"c", b"d"]


def test_a_fair_queue_shares_by_weight(channel):
    channel.queue_declare("q", arguments={"x-fair-key": "tenant", "x-fair-weights": {"gold": 3, "silver": 2}})
    for tenant in ("bronze", "gold", "silver"):
        publish(channel, "q", *[tenant] * 60, headers={"tenant": tenant})
    first = Counter(channel.basic_get("q", auto_ack=True)[2] for _ in range(60))
    assert first == {b"gold": 30, b"silver": 20, b"bronze": 10}
    assert len(bodies(channel, "q")) == 120


#: Numbers, which clients send as types of their own: by size, floats, timestamps.
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300),
    st.floats(width=32, allow_nan=False, allow_infinity=False),  # the broker, as RabbitMQ, refuses any other
    st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2300, 1, 1), timezones=st.just(dt.UTC)).map(
        lambda at: at.replace(microsecond=0)
    ),
)  # fmt: skip


def magnitude(number):
    return number.timestamp() if isinstance(number, dt.datetime) else number


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=20))
def test_a_sorted_queue_is_served_by_number(broker, numbers):
    with wired(broker) as wire:  # of this example alone: a refusal that ends the connection fails no other example
        queue = wire.declare(exclusive=True, arguments={"x-queue-kind": "sorted", "x-queue-key": "id"})
        for index, number in enumerate(numbers):
            wire.publish(b"%d" % index, queue, headers={"id": number})
        wire.round_trip()
        served = [magnitude(numbers[int(body)]) for body in wire.drain(queue)]
    assert list(map(float, served)) == sorted(map(float, map(magnitude, numbers)))
    whole = [number for number in served if isinstance(number, int)]
    assert whole == sorted(whole)


def test_tenants_may_be_numbers(wire):
    """Of whatever type; their weights are found by their digits."""
    queue = wire.declare(arguments={"x-fair-key": "tenant", "x-fair-weights": {"7": 3, "-2": 2}})
    for tenant in (7, -2, 2**40):
        for index in range(60):
            value = bytearray(b"%d" % tenant) if index % 2 else tenant  # as a number, and as text
            wire.publish(b"%d" % tenant, queue, headers={"tenant": value})
    wire.round_trip()
    assert Counter(wire.get(queue).body for _ in range(60)) == {b"7": 30, b"-2": 20, b"1099511627776": 10}


def test_a_last_value_queue_knows_a_number_as_its_digits(wire):
    queue = wire.declare(arguments={"x-queue-kind": "last-value", "x-queue-key": "id"})
    for number, key in enumerate([5, "5", 300, bytearray(b"300"), -5]):
        wire.publish(b"%d" % number, queue, headers={"id": key})
    wire.round_trip()
    assert wire.drain(queue) == [b"1", b"3", b"4"]


@pytest.mark.parametrize(
    ("weight", "shown"),
    [
        (0, "0"), (-1, "-1"), (1_000_001, "1000001"), (2**63 - 1, str(2**63 - 1)), ("3", "3"), (True, "true"),
        (None, "undefined"), (1.5, "1.5"),
    ],
)  # fmt: skip
def test_weights_that_cannot_be(wire, weight, shown):
    weights = {"silver": 1_000_000, "gold": weight}
    refusal = wire.refused(Queue.Declare(queue="p", arguments={"x-fair-key": "tenant", "x-fair-weights": weights}))
    assert refusal.code == 406
    assert refusal.text.endswith(
        "invalid arg 'x-fair-weights' for queue 'p' in vhost '/': the weight of 'gold' must be an integer from 1 to "
        f"1000000, got '{shown}'"
    )


def test_a_fair_queue_by_routing_key(channel):
    channel.exchange_declare("x", "topic")
    channel.queue_declare("q", arguments={"x-fair-key": ""})
    channel.queue_bind("q", "x", "#")
    publish(channel, "a", *["a"] * 5, exchange="x")
    publish(channel, "b", *["b"] * 5, exchange="x")
    assert bodies(channel, "q")[:4] == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"x-queue-kind": "round"}, "invalid arg 'x-queue-kind' for queue 'p' in vhost '/': invalid_queue_kind"),
        ({"x-queue-kind": "sorted"}, "invalid arg 'x-queue-key'"),
        ({"x-queue-key": "id"}, "invalid arg 'x-queue-key'"),
        ({"x-fair-key": "id", "x-max-priority": 3}, "invalid arg 'x-fair-key'"),
        ({"x-fair-weights": {"a": 1}}, "invalid arg 'x-fair-weights'"),
        ({"x-expires": 0}, "invalid arg 'x-expires' for queue 'p' in vhost '/': {value_zero,0}"),
        ({"x-message-ttl": "1"}, '"expected integer, got longstr"'),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
    ],
)
def test_arguments_that_are_refused(channel, arguments, complaint):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.queue_declare("p", arguments=arguments)
    assert raised.value.reply_code == 406
    assert complaint in raised.value.reply_text
