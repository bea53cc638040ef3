"""kombu on the compiled transport and on py-amqp: the same calls have the same results and errors."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import amqp
import kombu
import pytest
from kombu.asynchronous import Hub
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched.integrations.kombu import SSLTransport, Transport
from fairsched.integrations.kombu_timer import TIMER

OURS, OURS_BY_TLS = (f"{kind.__module__}:{kind.__name__}" for kind in (Transport, SSLTransport))
TRANSPORTS = [OURS, "pyamqp"]
_numbers = itertools.count()


@contextmanager
def connected(broker: Node, transport: str = OURS, **options: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.url, transport=transport, **options) as connection:
        yield connection


@pytest.fixture
def queue() -> str:
    return f"kombu-{next(_numbers)}"


def declare(channel: Any, name: str, **options: Any) -> kombu.Queue:
    queue = kombu.Queue(name, durable=False, auto_delete=False, exclusive=False, **options)(channel)
    queue.declare()
    queue.purge()
    return queue


def publish(channel: Any, queue: str, bodies: list[Any], **properties: Any) -> None:
    producer = kombu.Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=queue, delivery_mode=1, **properties)


def ready(connection: kombu.Connection, queue: str) -> tuple[int, int]:
    """Return the numbers of messages and of consumers."""
    with connection.channel() as channel:
        found = channel.queue_declare(queue, passive=True)
    return found.message_count, found.consumer_count


def holds(connection: kombu.Connection, queue: str, count: int) -> bool:
    return ready(connection, queue)[0] == count


def seen(message: Any) -> dict[str, Any]:
    """Return everything of a message but what differs between two connections."""
    info = dict(message.delivery_info)
    info.pop("consumer_tag", None)
    return {
        "body": message.body, "payload": message.payload, "properties": message.properties,
        "headers": message.headers, "type": message.content_type, "encoding": message.content_encoding,
        "tag": message.delivery_tag, "info": info, "acknowledged": message.acknowledged, "errors": message.errors,
    }  # fmt: skip


MESSAGES: list[tuple[Any, dict[str, Any]]] = [
    ({"a": [1, None, "ü"]}, {}),
    ("text", {"content_type": "text/plain", "content_encoding": "utf-8"}),
    (b"\xff\x00", {}),
    ("", {}),
    ({"x": "y" * 1000}, {"compression": "gzip"}),
    ({"n": 1}, {"headers": {"h": 1, "t": {"d": [True, 2.5, None, b"raw", 2**40]}}}),
    ({"n": 2}, {"priority": 3, "expiration": 60, "correlation_id": "c", "reply_to": "r", "message_id": "m"}),
    ({"n": 3}, {"type": "t", "app_id": "a", "timestamp": 12345, "user_id": "guest"}),
    ("z" * 300_000, {}),
]


def exchanged(broker: Node, transport: str, queue: str, how: str) -> list[dict[str, Any]]:
    """Publish messages of every kind, and return what is received."""
    found: list[dict[str, Any]] = []

    def receive(message: Any) -> None:
        found.append(seen(message))
        message.ack()

    with connected(broker, transport) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        for body, properties in MESSAGES:
            publish(channel, queue, [body], **properties)
        if how == "get":
            eventually(lambda: ready(connection, queue)[0] == len(MESSAGES), 30)
            while message := bound.get():
                receive(message)
        else:
            receivers = {"on_message": receive, "callbacks": [lambda _body, message: receive(message)]}
            with kombu.Consumer(channel, [bound], prefetch_count=4, **{how: receivers[how]}):
                while len(found) < len(MESSAGES):
                    connection.drain_events(timeout=30)
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()
    return found


@pytest.mark.parametrize("how", ["on_message", "callbacks", "get"])
def test_messages_are_those_of_py_amqp(broker: Node, queue: str, how: str) -> None:
    ours, theirs = (exchanged(broker, transport, queue, how) for transport in TRANSPORTS)
    assert ours == theirs


def test_what_ours_publishes_py_amqp_reads_alike(broker: Node, queue: str) -> None:
    """And the other way round."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for sender, receiver in itertools.product(TRANSPORTS, TRANSPORTS):
        with connected(broker, sender) as first, connected(broker, receiver) as second:
            declare(first.channel(), queue)
            bound = kombu.Queue(queue)(second.channel())
            for body, properties in MESSAGES:
                publish(first.default_channel, queue, [body], **properties)
            eventually(partial(holds, first, queue, len(MESSAGES)), 30)
            found[sender, receiver] = [seen(bound.get()) for _ in MESSAGES]
            bound.delete()
    first_found, *others = found.values()
    assert all(one == first_found for one in others)


@pytest.mark.parametrize("window", [0, 1, 7])
def test_everything_acknowledged_is_gone_and_nothing_else(broker: Node, queue: str, window: int) -> None:
    """Also where settlements wait for others: every third message is rejected, every fifth returned once."""
    got: list[int] = []
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(500)])

        def receive(message: Any) -> None:
            number = message.payload["n"]
            if number % 5 == 0 and not message.delivery_info["redelivered"]:
                message.requeue()
                return
            got.append(number)
            if number % 100 == 1:
                return
            if number % 3 == 0:
                message.reject()
            else:
                message.ack()

        with kombu.Consumer(channel, [bound], prefetch_count=window and window + 5, on_message=receive):
            while len(got) < 500:
                connection.drain_events(timeout=30)
        channel.close()
        eventually(lambda: ready(connection, queue) == (5, 0), 30)
        left = sorted(bound(connection.default_channel).get().payload["n"] for _ in range(5))
        assert left == [1, 101, 201, 301, 401]
        assert sorted(got) == list(range(500))
        bound(connection.channel()).delete()


def test_a_settlement_does_not_wait_for_a_handler_that_runs(broker: Node, queue: str) -> None:
    """The timer sends it, though more messages are here."""
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(100)])
        eventually(lambda: ready(connection, queue)[0] == 100, 30)
        waited: list[int] = []

        def receive(message: Any) -> None:
            message.ack()
            link = connection.connection._link
            if not waited and link.buffered:
                eventually(lambda: not link.waits, 30)
                waited.append(link.buffered)

        with kombu.Consumer(channel, [bound], on_message=receive):
            for _ in range(100):
                connection.drain_events(timeout=30)
        assert waited
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()


def error_of(function: Callable[[], Any]) -> tuple[type, Any, Any]:
    with pytest.raises(Exception) as caught:
        function()
    error = caught.value
    return type(error), getattr(error, "reply_code", None), getattr(error, "reply_text", None)


def wrong_calls(connection: kombu.Connection, queue: str) -> list[Any]:
    """Return the errors of calls that the broker, or py-amqp, refuses."""
    found = []

    def failed(call: Callable[[Any], Any]) -> None:
        channel = connection.channel()
        found.append(error_of(lambda: call(channel)))

    def drained(channel: Any, call: Callable[[], Any]) -> None:
        call()
        for _ in range(3):
            connection.drain_events(timeout=10)

    bound = declare(connection.default_channel, queue)
    failed(lambda channel: channel.queue_declare("no-such-queue", passive=True))
    failed(lambda channel: channel.basic_get("no-such-queue"))
    failed(lambda channel: channel.basic_consume("no-such-queue", callback=print))
    failed(lambda channel: drained(channel, lambda: channel.basic_ack(77)))
    failed(lambda channel: drained(channel, lambda: channel.basic_ack(1, multiple=True)))
    failed(lambda channel: drained(channel, lambda: channel.basic_reject(77, requeue=False)))
    failed(lambda channel: channel.basic_ack(-1))
    failed(lambda channel: channel.basic_ack(None))
    failed(lambda channel: channel.basic_publish(amqp.Message("x", priority=300), routing_key=queue))
    failed(lambda channel: channel.basic_publish(amqp.Message("x"), routing_key="k" * 300))
    failed(lambda channel: channel.basic_publish(amqp.Message("x"), routing_key=5))
    failed(lambda channel: channel.basic_publish(amqp.Message(5), routing_key=queue))
    failed(
        lambda channel: drained(
            channel, lambda: channel.basic_publish(amqp.Message("x"), "no-such-exchange", routing_key=queue)
        )
    )
    failed(
        lambda channel: drained(
            channel, lambda: channel.basic_publish(amqp.Message("x"), routing_key="no-such", mandatory=True)
        )
    )
    publish(connection.default_channel, queue, [{"n": 1}, {"n": 2}])
    eventually(lambda: ready(connection, queue)[0] == 2, 30)

    def twice(channel: Any) -> None:
        message = bound(channel).get()
        message.ack()
        error = error_of(message.ack)
        channel.basic_ack(message.delivery_tag)
        found.append(error)
        drained(channel, lambda: None)

    failed(twice)
    failed(lambda channel: drained(channel, lambda: channel.basic_ack(bound(channel).get(no_ack=True).delivery_tag)))
    bound.delete()
    failed(lambda channel: (channel.close(), channel.queue_declare(queue)))
    failed(lambda channel: (channel.close(), channel.basic_publish(amqp.Message("x"), routing_key=queue)))
    failed(lambda channel: (channel.close(), channel.basic_ack(1)))
    failed(lambda _channel: connection.drain_events(timeout=0.01))
    failed(lambda _channel: connection.drain_events(timeout=0))
    return found


def test_errors_are_those_of_py_amqp(broker: Node, queue: str) -> None:
    found = []
    for transport in TRANSPORTS:
        with connected(broker, transport) as connection:
            found.append(wrong_calls(connection, queue))
    assert found[0] == found[1]


def test_a_message_of_a_channel_that_was_opened_anew_is_not_settled(broker: Node, queue: str) -> None:
    """Its number may be that of another message by now, which would be lost."""
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": 1}, {"n": 2}])
        eventually(lambda: ready(connection, queue)[0] == 2, 30)
        held: list[Any] = []
        kombu.Consumer(channel, [bound], on_message=held.append, auto_declare=False).consume()
        connection.drain_events(timeout=30)
        old = held.pop()
        with pytest.raises(amqp.exceptions.NotFound):
            channel.queue_declare("no-such-queue", passive=True)
        held.clear()
        with kombu.Consumer(channel, [bound], on_message=held.append):
            while len(held) < 2:
                connection.drain_events(timeout=30)
            assert held[0].delivery_tag == 1
            for settle in (old.ack, old.reject, old.requeue):
                with pytest.raises(amqp.exceptions.RecoverableConnectionError, match="its channel was closed"):
                    settle()
        channel.close()
        eventually(lambda: ready(connection, queue)[0] == 2, 30)
        bound(connection.channel()).delete()


def test_acknowledging_up_to_a_message_settles_all_before_it(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(20)])
        held: list[Any] = []
        with kombu.Consumer(channel, [bound], on_message=held.append):
            while len(held) < 20:
                connection.drain_events(timeout=30)
            held[3].ack()
            held[9].ack(multiple=True)
            held[12].reject()
        channel.close()
        eventually(lambda: ready(connection, queue)[0] == 9, 30)
        bound(connection.channel()).delete()


def test_messages_that_need_no_acknowledgement_are_not_acknowledged(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        held: list[Any] = []
        with kombu.Consumer(channel, [bound], on_message=held.append, no_ack=True):
            publish(channel, queue, [{"n": number} for number in range(10)])
            while len(held) < 10:
                connection.drain_events(timeout=30)
            for message in held:
                message.ack()
        with kombu.Consumer(channel, [bound], on_message=held.append):
            publish(channel, queue, [{"n": 10}, {"n": 11}])
            while len(held) < 12:
                connection.drain_events(timeout=30)
            held[11].ack(multiple=True)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)  # no error of the channel
        assert channel.is_open
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_simple_queues(broker: Node, queue: str, transport: str) -> None:
    with connected(broker, transport) as connection:
        simple = connection.SimpleQueue(queue, queue_opts={"durable": False})
        for number in range(50):
            simple.put({"n": number})
        for number in range(50):
            message = simple.get(timeout=30)
            assert message.payload == {"n": number}
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get(timeout=0.05)
        with pytest.raises(simple.Empty):
            simple.get(block=False)
        simple.close()
        simple.queue.delete()


@pytest.mark.parametrize("committed", [True, False])
def test_acknowledgements_are_part_of_a_transaction(broker: Node, queue: str, committed: bool) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(6)])
        held: list[Any] = []
        with kombu.Consumer(channel, [bound], on_message=held.append):
            while len(held) < 6:
                connection.drain_events(timeout=30)
            held[0].ack()
            channel.tx_select()
            held[1].ack()
            held[5].ack()
            (channel.tx_commit if committed else channel.tx_rollback)()
        channel.close()
        eventually(lambda: ready(connection, queue)[0] == (3 if committed else 5), 30)
        bound(connection.channel()).delete()


def test_recovered_messages_come_again(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(6)])
        held: list[Any] = []
        with kombu.Consumer(channel, [bound], on_message=held.append) as consumer:
            while len(held) < 6:
                connection.drain_events(timeout=30)
            held[0].ack()
            consumer.recover(requeue=True)
            while len(held) < 11:
                connection.drain_events(timeout=30)
            assert sorted(message.payload["n"] for message in held[6:]) == [1, 2, 3, 4, 5]
            assert all(message.delivery_info["redelivered"] for message in held[6:])
            held[-1].ack(multiple=True)
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()


def test_confirms_one_by_one(broker: Node, queue: str) -> None:
    with connected(broker, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(20)])
        assert ready(connection, queue)[0] == 20
        bound.delete()


def batch_of(connection: kombu.Connection) -> kombu.Producer:
    return kombu.Producer(connection.channel())


def test_a_batch_is_confirmed_when_its_block_is_left(broker: Node, queue: str) -> None:
    """By one write and few waits, in batches of at most 300; and other publishing on its channel is confirmed, too."""
    with connected(broker, transport_options={"confirm_publish": True}) as connection:
        producer = batch_of(connection)
        bound = declare(producer.channel, queue)
        producer.publish({"n": 0}, routing_key=queue, delivery_mode=1)
        with producer.batch(max_size=300):
            for number in range(1, 1000):
                producer.publish({"n": number}, routing_key=queue, delivery_mode=1)
            assert ready(connection, queue)[0] == 901
        assert ready(connection, queue)[0] == 1000
        producer.publish({"n": 1000}, routing_key=queue, delivery_mode=1)
        with producer.batch():
            producer.publish("x" * 300_000, routing_key=queue, delivery_mode=1)
            producer.publish({"n": 1001}, routing_key=queue, delivery_mode=1, headers={"odd": 2**31})
        assert [bound.get(no_ack=True).payload["n"] for _ in range(1001)] == list(range(1001))
        assert len(bound.get(no_ack=True).payload) == 300_000
        assert bound.get(no_ack=True).payload == {"n": 1001}
        bound.delete()


def test_a_batch_whose_block_fails_is_not_published(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        producer = batch_of(connection)
        bound = declare(producer.channel, queue)

        def fail() -> None:
            with producer.batch():
                producer.publish({"n": 0}, routing_key=queue)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert ready(connection, queue)[0] == 0
        bound.delete()


def test_a_batch_that_was_refused_says_what(broker: Node, queue: str) -> None:
    """The queue takes two messages and refuses others."""
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue, queue_arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        batch = channel.create_publish_batch(max_size=10)
        for number in range(5):
            batch.publish(amqp.Message(str(number)), routing_key=queue)
        with pytest.raises(amqp.exceptions.MessageNacked) as caught:
            batch.flush()
        assert caught.value.__notes__ == ["3 of 5 messages of the batch are not confirmed"]
        assert [message.body for message, _ in batch.unconfirmed] == ["2", "3", "4"]
        bound.purge()
        batch.publish(amqp.Message("5"), routing_key=queue)
        batch.flush()
        assert batch.unconfirmed == []
        assert ready(connection, queue)[0] == 1
        bound.delete()


def test_a_batch_for_an_exchange_that_is_missing_fails(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        producer = batch_of(connection)
        with pytest.raises(amqp.exceptions.NotFound) as caught, producer.batch():
            producer.publish({"n": 1}, exchange="no-such-exchange", routing_key=queue)
        assert caught.value.__notes__ == ["1 of 1 messages of the batch are not confirmed"]
        bound = declare(producer.channel, queue)
        with producer.batch():  # the channel was opened again
            producer.publish({"n": 2}, routing_key=queue)
        assert bound.get(no_ack=True).payload == {"n": 2}
        bound.delete()


def test_a_batch_that_was_returned_fails(broker: Node) -> None:
    with connected(broker) as connection:
        producer = batch_of(connection)
        batch = producer.channel.create_publish_batch(max_size=10)
        batch.publish(amqp.Message("1"), routing_key="no-such-queue", mandatory=True)
        batch.publish(amqp.Message("2"), routing_key="no-such-queue")
        with pytest.raises(amqp.exceptions.ChannelError, match="NO_ROUTE"):
            batch.flush()


def test_a_batch_of_a_lost_connection_fails(mortal: Node, queue: str) -> None:
    with connected(mortal) as connection:
        channel = connection.channel()
        declare(channel, queue)
        batch = channel.create_publish_batch(max_size=10)
        batch.publish(amqp.Message("1"), routing_key=queue)
        mortal.kill()
        with pytest.raises((OSError, amqp.exceptions.RecoverableConnectionError)):
            batch.flush()
        assert [message.body for message, _ in batch.unconfirmed] == ["1"]
        connection.collect()


def test_urls() -> None:
    for url, options, expected in [
        ("amqp://me:pw@host:5/v", {"transport": OURS}, "amqp://me:**@host:5/v"),
        ("fairsched://me:pw@host:5/v", {}, "fairsched://me:**@host:5/v"),
        ("fairscheds://me:pw@host:5/v", {}, "fairscheds://me:**@host:5/v"),
    ]:
        connection = kombu.Connection(url, **options)
        assert connection.as_uri() == expected
        assert connection.transport.driver_type == "amqp"
        assert connection.transport.driver_name == "fairsched"
        assert bool(connection.ssl) == url.startswith("fairscheds:")


def test_a_socket_that_others_closed_is_not_used(broker: Node) -> None:
    """Its number may be another file's by then."""
    with connected(broker) as connection:
        connection.connect()
        inner = connection.connection
        inner.transport.sock.close()
        with open("/dev/zero", "rb"), pytest.raises(OSError):
            inner.drain_events(timeout=1)
        assert inner._link.buffered == 0
        connection.collect()


def test_an_event_loop_handles_what_was_read_while_others_waited(broker: Node, queue: str) -> None:
    """A call within a callback reads more than its answer: the socket does not wake the loop for that."""
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(300)])
        loop = Hub()
        numbers: list[int] = []

        def receive(message: Any) -> None:
            numbers.append(message.payload["n"])
            message.ack()
            if len(numbers) % 50 == 1:
                bound.queue_declare(passive=True)

        with kombu.Consumer(channel, [bound], on_message=receive):
            connection.register_with_event_loop(loop)
            deadline = time.monotonic() + 60
            while len(numbers) < 300:
                assert time.monotonic() < deadline
                loop.run_once()
            connection.transport.unregister_from_event_loop(connection.connection, loop)
            loop.close()
        assert numbers == list(range(300))
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()


class Leftover:
    """Does something when the collector finds it."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._self = self

    def __del__(self) -> None:
        self._act()


def test_destructors_may_use_the_connection_that_is_read(broker: Node, queue: str) -> None:
    """They publish, acknowledge and read while the collector runs at every chance."""
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(300)])
        held: list[Any] = []
        others: list[int] = []

        def act() -> None:
            others.append(len(held))
            channel.basic_publish(amqp.Message("{}", content_type="application/json"), routing_key=queue)
            with suppress(TimeoutError):
                connection.drain_events(timeout=0)

        def receive(message: Any) -> None:
            held.append(message)
            message.ack()
            if len(others) < 50:
                Leftover(act)

        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            with kombu.Consumer(channel, [bound], on_message=receive):
                while len(held) < 300 + len(others):
                    connection.drain_events(timeout=30)
        finally:
            gc.set_threshold(*before)
        assert len(others) >= 50
        channel.close()
        eventually(lambda: ready(connection, queue) == (0, 0), 30)
        bound(connection.channel()).delete()


def test_failover_to_the_next_address(broker: Node, queue: str) -> None:
    """When the first cannot be reached, and when the second is lost."""
    retried = {"retry": True, "retry_policy": {"max_retries": 5, "interval_start": 0}}
    with Proxy(broker.port) as proxy:
        urls = f"amqp://127.0.0.1:1;{behind(proxy, broker.url)};{broker.url}"
        with kombu.Connection(urls, transport=OURS, transport_options={"confirm_publish": True}) as connection:
            connection.ensure_connection(max_retries=3, interval_start=0)
            assert connection.port == proxy.port
            bound = declare(connection.channel(), queue)
            publish(connection.default_channel, queue, [{"n": 1}], **retried)
            proxy.accepting = False
            proxy.cut()
            publish(connection.default_channel, queue, [{"n": 2}], **retried)
            assert connection.port == broker.port
            eventually(lambda: ready(connection, queue)[0] == 2, 30)
            bound(connection.default_channel).delete()


def test_a_cancelled_consumer_is_told(broker: Node, queue: str) -> None:
    with connected(broker) as connection, connected(broker) as other:
        channel = connection.channel()
        declare(channel, queue)
        cancelled: list[str] = []
        tag = channel.basic_consume(queue, callback=print, on_cancel=cancelled.append)
        other.default_channel.queue_delete(queue)
        connection.drain_events(timeout=30)
        assert cancelled == [tag]


def test_a_child_does_not_write_to_the_socket_of_its_parent(broker: Node, queue: str) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": number} for number in range(4)])
        held: list[Any] = []
        with kombu.Consumer(channel, [bound], on_message=held.append):
            while len(held) < 4:
                connection.drain_events(timeout=30)
            with warnings.catch_warnings(action="ignore"):  # of threads: the child begins none
                child = os.fork()
            if child == 0:
                held[3].ack(multiple=True)
                TIMER.flush()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            held[0].ack()
        channel.close()
        eventually(lambda: ready(connection, queue) == (3, 0), 30)
        bound(connection.channel()).delete()


@pytest.mark.rabbitmq("TLS")
def test_tls(queue: str) -> None:
    """The broker wants a certificate of the client."""
    with Node(tls=True, asks_certificates=True) as node:
        url, trusted = node.tls_url.partition("?")[0], {"ca_certs": str(node.certificate)}
        own = {"certfile": str(node.client_certificate), "keyfile": str(node.client_key)}
        for transport in "amqps", "fairscheds":
            bare = kombu.Connection(url.replace("amqps", transport), ssl=trusted)
            with pytest.raises(bare.connection_errors):
                bare.connect()
        with kombu.Connection(url, transport=OURS_BY_TLS, ssl=trusted | own) as made:
            channel = made.channel()
            bound = declare(channel, queue)
            with kombu.Producer(channel).batch():
                publish(channel, queue, [{"n": number} for number in range(100)])
            held: list[Any] = []
            with kombu.Consumer(channel, [bound], prefetch_count=10, on_message=lambda m: (held.append(m), m.ack())):
                while len(held) < 100:
                    made.drain_events(timeout=30)
            channel.close()
            eventually(lambda: ready(made, queue) == (0, 0), 30)


@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
def test_greenlets_run_while_one_waits(broker: Node, queue: str, kind: str) -> None:
    program = Path(__file__).parents[1] / "support" / "kombu_greenlets.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), broker.url, queue, kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_blocked_connection_is_told(mortal: Node, queue: str) -> None:
    told: list[str] = []
    options = {"on_blocked": told.append, "on_unblocked": lambda: told.append("unblocked")}
    with connected(mortal, transport_options=options) as connection:
        channel = connection.channel()
        bound = declare(channel, queue)
        publish(channel, queue, [{"n": 0}])  # without a message, the embedded broker needs no memory
        eventually(lambda: ready(connection, queue)[0] == 1, 30)
        mortal.raise_memory_alarm()
        deadline = time.monotonic() + 60
        while not told:
            assert time.monotonic() < deadline
            publish(channel, queue, [{"n": 1}])  # looks before it publishes
        mortal.clear_memory_alarm()
        while len(told) < 2:
            connection.drain_events(timeout=60)
        assert told == ["connection blocked, see broker logs", "unblocked"]
        eventually(lambda: bound.get(no_ack=True) is not None, 30)


def test_an_empty_body_is_text(broker: Node, queue: str) -> None:
    for transport in TRANSPORTS:
        with connected(broker, transport) as connection:
            channel = connection.channel()
            bound = declare(channel, queue)
            held: list[Any] = []
            with kombu.Consumer(channel, [bound], on_message=held.append, no_ack=True):
                channel.basic_publish(amqp.Message(b"", content_encoding="binary"), routing_key=queue)
                connection.drain_events(timeout=30)
            assert held[0].body == ""
            bound.delete()
