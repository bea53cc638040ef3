"""Streams as queues: their messages cannot be given back, and a failure must not cost the connection, or a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pika
import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import CoDel, Consumer, Queue, Retry

pytestmark = pytest.mark.rabbitmq("streams")

STREAM = {"x-queue-type": "stream"}
COUNT = 30


@pytest.fixture
def stream(broker: Node, new_queue: Declare) -> str:
    name = new_queue("stream")
    broker.delete(name)
    broker.declare(name, arguments=STREAM)
    return name


def run(consumer: Consumer, handle: Callable[[Any], None], done: Callable[[], bool]) -> dict[str, Any]:
    """Run a consumer until something is so; return its figures of then."""
    with consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        try:
            eventually(done, 60)
            found = consumer.stats()
        finally:
            consumer.stop(now=True)
            thread.join(30)
    assert not thread.is_alive()
    return found


def fail(message: Any) -> None:
    raise ValueError(message.body)


@pytest.mark.parametrize("on_error", ["requeue", "reject", lambda message, _error: message.nack(), None])
@pytest.mark.parametrize("known", [{"offset": "first"}, {"arguments": STREAM, "durable": True, "offset": 0}])
def test_failures_are_acknowledged(broker: Node, stream: str, known: dict[str, Any], on_error: Any) -> None:
    broker.publish(stream, numbered(COUNT))
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        assert message.in_stream
        if on_error is None:
            message.reject()  # of its own accord
        else:
            fail(message)

    # A window smaller than what is there: what fails makes room for more.
    consumer = Consumer(broker.url, [Queue(stream, prefetch=10, **known)], on_error=on_error or "requeue")

    def settled() -> int:
        found = consumer.stats()
        return int(found["nacked"] + found["rejected"])

    found = run(consumer, handle, lambda: settled() >= COUNT)
    assert handled == numbered(COUNT)
    assert found["reconnects"] == 0
    assert found["errors"] == (0 if on_error is None else COUNT)
    assert settled() == COUNT


def test_what_is_buffered_at_a_stop_makes_no_trouble(
    broker: Node, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.publish(stream, numbered(COUNT))
    consumer = Consumer(broker.url, [Queue(stream, prefetch=COUNT, offset="first")])
    with consumer:
        eventually(lambda: consumer.state.buffered == COUNT)
        consumer.stop(now=True)
    assert not [line for line in caplog.records if "540" in line.getMessage() or "NOT_IMPLEMENTED" in line.getMessage()]


def test_codel_lets_go_of_messages_of_a_stream(broker: Node, stream: str) -> None:
    broker.publish(stream, numbered(400))
    handled: list[bytes] = []
    law = CoDel(target=0.001, interval=0.002, when_alone=True, budget=1000)
    consumer = Consumer(broker.url, [Queue(stream, prefetch=100, offset="first")], codel=law)
    pause = threading.Event()

    def handle(message: Any) -> None:
        pause.wait(0.002)
        handled.append(message.body)

    found = run(consumer, handle, lambda: len(handled) + consumer.stats()["shed"] >= 400)
    assert found["shed"] > 0
    assert found["reconnects"] == 0


@pytest.mark.parametrize("on_error", ["requeue", "reject"])
def test_an_undeclared_stream_costs_one_connection(
    broker: Node, stream: str, caplog: pytest.LogCaptureFixture, on_error: str
) -> None:
    handled: list[bytes] = []
    consumer = Consumer(broker.url, [Queue(stream, prefetch=10)], on_error=on_error)
    number = 0

    def handle(message: Any) -> None:
        handled.append(message.body)
        fail(message)

    def learned() -> bool:
        nonlocal number
        broker.publish(stream, [b"%d" % number])
        number += 1
        return consumer.stats()["reconnects"] == 1 and consumer.state.consuming[stream]

    def went_on() -> bool:
        if not learned():
            return False
        broker.publish(stream, [b"last"])
        eventually(lambda: b"last" in handled)
        broker.publish(stream, [b"very last"])
        eventually(lambda: b"very last" in handled)
        return True

    found = run(consumer, handle, went_on)
    assert found["reconnects"] == 1
    assert sum(f"queue {stream!r} is a stream" in line.getMessage() for line in caplog.records) == 1


def test_retries_of_an_undeclared_stream_go_to_the_dead_letters(broker: Node, stream: str) -> None:
    dead = f"{stream}.dead-letter"
    consumer = Consumer(broker.url, [Queue(stream, prefetch=10)], retry=Retry(3, backoff=0.01))
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        fail(message)

    sent = False

    def done() -> bool:
        nonlocal sent
        if not sent and consumer.state.consuming[stream]:
            sent = True
            broker.publish(stream, numbered(COUNT))
        return consumer.stats()["dead_lettered"] == COUNT

    try:
        found = run(consumer, handle, done)
        assert sorted(handled) == sorted(numbered(COUNT))  # once each
        assert (found["reconnects"], found["retried"]) == (0, 0)
        with broker.connect() as channel:
            got = [channel.basic_get(dead, auto_ack=True) for _ in range(COUNT)]
        assert sorted(body for _, _, body in got) == sorted(numbered(COUNT))
        assert all(properties.headers["x-exception"].startswith("ValueError") for _, properties, _ in got)
        # In a queue of another kind, these are messages as any other.
        assert not any("x-stream-offset" in properties.headers for _, properties, _ in got)
    finally:
        broker.delete(dead)


def test_a_stream_that_was_replaced_by_another_queue_loses_nothing(broker: Node, stream: str) -> None:
    """A name that was learned to be a stream's says nothing of what has it now."""
    handled: list[bytes] = []
    consumer = Consumer(broker.url, [Queue(stream, prefetch=10)], on_error="requeue")
    replaced = False

    def handle(message: Any) -> None:
        handled.append(message.body)
        fail(message)

    def done() -> bool:
        nonlocal replaced
        if not replaced and not (consumer.stats()["reconnects"] == 1 and consumer.state.consuming[stream]):
            broker.publish(stream, [b"of the stream"])
            return False
        if not replaced:
            broker.delete(stream)
            broker.declare(stream)
            broker.publish(stream, numbered(COUNT))
            replaced = True
        return handled.count(b"0") > 1  # it failed, and came again

    found = run(consumer, handle, done)
    assert found["reconnects"] == 1
    eventually(lambda: broker.count(stream) == COUNT)


def test_a_dead_letter_that_the_broker_closes_the_connection_for_keeps_no_other_back(
    broker: Node, stream: str, new_queue: Declare
) -> None:
    """A stream takes no decimals: RabbitMQ ends the connection with 541, without saying for which message."""
    queue = new_queue()
    bodies = numbered(10)
    with broker.connect() as channel:
        for number, body in enumerate(bodies):
            headers = {"price": Decimal("1.5")} if number == 3 else {"number": number}
            channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers))
    consumer = Consumer(broker.url, [queue], retry=Retry(1, dead_letter=stream))
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        fail(message)

    def done() -> bool:
        found = consumer.stats()
        return bool(found["dead_lettered"] == len(bodies) - 1 and found["retry_failures"] > 1)

    run(consumer, handle, done)
    innocents = [body for body in bodies if body != b"3"]
    assert [body for body in handled if body != b"3"] == innocents
    with broker.connect() as channel:
        channel.basic_qos(prefetch_count=100)
        channel.basic_consume(stream, lambda *got: letters.append(got[3]), arguments={"x-stream-offset": "first"})
        letters: list[bytes] = []
        eventually(lambda: channel.connection.process_data_events(0.1) or set(letters) >= {*innocents})
        assert set(letters) == {*innocents}
        assert max(map(letters.count, innocents)) <= 3  # sent together twice, then one by one
    assert broker.left(queue) == 1
