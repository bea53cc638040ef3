"""The log of a consumer and a publisher: an operator who has nothing else knows what happened."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Broker, numbered
from support.waiting import eventually

from fairsched import Consumer, Publisher


def story(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return levels and lines, with addresses and reasons left out."""
    lines = [f"{one.levelname} {one.getMessage()}" for one in caplog.records if one.name.startswith("fairsched")]
    return [re.sub(r"(connected to |again in ).*", r"\1…", line) for line in lines]


def test_of_a_consumer_whose_connection_is_lost(
    broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue()
    consumer = Consumer(broker.url, [queue], prefetch=10)
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)

    with caplog.at_level(logging.INFO, "fairsched"):
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        eventually(lambda: consumer.state.consuming.get(queue))
        broker.publish(queue, numbered(3))
        eventually(lambda: len(handled) == 3 and broker.left(queue) == 0)
        broker.close_connections()
        eventually(lambda: consumer.stats()["reconnects"] and consumer.state.consuming[queue])
        consumer.pause(queue)
        consumer.resume(queue)
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()
    found = story(caplog)
    # How often it tries in vain to connect depends on how soon the broker is ready.
    assert [line for line in dict.fromkeys(found) if "no connection" not in line] == [
        "INFO connected to …",
        f"INFO consuming queue {queue!r}, prefetch 10",
        "WARNING the connection was lost, connecting again in …",
        f"INFO queue {queue!r} is paused",
        f"INFO queue {queue!r} is resumed",
        f"INFO stopping the consumer of {queue!r}: deliveries end",
        "INFO deliveries have ended; 0 messages are here and unsettled",
        f"INFO the consumer of {queue!r} is closed: 3 messages received, 3 acknowledged, 0 returned, 0 rejected",
    ]
    assert found.count("INFO connected to …") == 2


def test_of_a_stop_that_returns_messages(broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(5))
    with caplog.at_level(logging.INFO, "fairsched"), Consumer(broker.url, [queue], prefetch=5) as consumer:
        for message in consumer:
            with message:
                eventually(lambda: consumer.stats()["received"] == 5)
                consumer.stop(now=True)
    found = story(caplog)
    assert "INFO 4 messages that were not handled return to their queues" in found
    assert found[-1] == (
        f"INFO the consumer of {queue!r} is closed: 5 messages received, 1 acknowledged, 4 returned, 0 rejected"
    )


def test_of_a_publisher(broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    queue = new_queue()
    with caplog.at_level(logging.INFO, "fairsched"), Publisher(broker.url) as publisher:
        for body in numbered(3):
            publisher.publish(body, queue)
    assert story(caplog) == [
        "INFO connected to …",
        "INFO the publisher is closed: 3 messages published, 3 confirmed, 0 failed",
    ]


def test_has_no_line_for_each_message(broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG either, and nothing secret."""
    queue = new_queue()
    broker.publish(queue, [b"secret body"] * 200, headers={"name": "secret header"})
    handled: list[bytes] = []
    consumer = Consumer(broker.url, [queue])

    def handle(message: Any) -> None:
        handled.append(message.body)
        if len(handled) == 200:
            consumer.stop()

    with caplog.at_level(logging.DEBUG, "fairsched"):
        consumer.run(handle)
    assert 4 <= len(story(caplog)) < 20
    assert "secret" not in caplog.text
    assert "guest:guest" not in caplog.text
