"""Queues that delay their retries: which brokers can, which counts are believed, what comes back too soon."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from pika.spec import Basic, BasicProperties

from fairsched import Queue, Retry
from fairsched.consumer.handling.delayed_retries import DelayedRetries, delays_retries, failures
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel

RETRY = Retry(5, backoff=(10, 30), jitter=False)
RABBITMQ = {"product": "RabbitMQ", "version": "4.3.6"}


def message(headers: Any, *, redelivered: bool = True, arrived: float = 0.0, body: bytes = b"x") -> Message:
    delivery = Basic.Deliver("tag", 1, redelivered, "", "orders")
    return Message(body, 1, redelivered, delivery, BasicProperties(headers=headers), FakeChannel("orders"), arrived)


def counted(acquired: int, failed: int, **options: Any) -> Message:
    return message({"x-acquired-count": acquired, "x-delivery-count": failed}, **options)


def delayed(queue: Queue, retry: Retry | None = RETRY, properties: Any = RABBITMQ) -> tuple[DelayedRetries, bool]:
    """One that knows a queue, and whether the queue delays its retries."""
    found = DelayedRetries()
    found.take({queue.name: queue}, {} if retry is None else {queue.name: retry})
    return found, queue.name in found.connected([queue.name], properties)


@pytest.mark.parametrize(
    ("properties", "able"),
    [
        (RABBITMQ, True),
        ({"product": "RabbitMQ", "version": "4.3.0-rc.1"}, True),
        ({"product": "RabbitMQ", "version": "4.10.0"}, True),
        ({"product": "RabbitMQ", "version": "10.0.0"}, True),
        ({"product": "RabbitMQ", "version": "4.2.9"}, False),
        ({"product": "RabbitMQ", "version": "3.13.7"}, False),
        ({"product": "RabbitMQ", "version": "master"}, False),
        ({"product": "RabbitMQ"}, False),
        ({"product": "fairsched", "version": "9.0.0"}, False),
        ({"product": "LavinMQ", "version": "4.3.0"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_which_brokers_can(properties: dict[str, Any] | None, able: bool) -> None:
    assert delays_retries(properties) is able


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (counted(3, 2), 2),
        (message({"x-acquired-count": 3}), 0),  # it was returned, and did not fail
        (counted(1, 7), 1),  # a count that came with it: it was delivered once
        (counted(9, 7, redelivered=False), 0),
        (message({"x-acquired-count": 4, "x-delivery-count": 4, "x-death": [{}]}), 0),
        (message({"x-acquired-count": "3", "x-delivery-count": 2}), 0),
        (message({"x-acquired-count": True, "x-delivery-count": True}), 0),
        (counted(-1, -2), 0),
        (message(None), 0),
    ],
)
def test_which_counts_are_believed(found: Message, count: int) -> None:
    assert failures(found) == count


def test_a_queue_delays_if_it_was_declared_so_and_its_broker_can() -> None:
    queue = Queue("orders", arguments=RETRY.queue_arguments)
    found, delays = delayed(queue)
    assert delays
    assert found.counts(counted(1, 1))
    assert found.delays(counted(1, 1))
    assert not found.counts(message({"x-death": [{}]}))
    assert not delayed(Queue("orders", arguments={"x-queue-type": "quorum"}))[1]
    assert not delayed(queue, None)[1]
    found.take({}, {})
    assert not found.counts(counted(1, 1))


@pytest.mark.parametrize(
    ("retry", "properties", "reason"),
    [
        (RETRY, {"product": "RabbitMQ", "version": "4.2.1"}, "the broker is not RabbitMQ 4.3 or later"),
        (RETRY, {"product": "fairsched", "version": "4.3.0"}, "the broker is not RabbitMQ 4.3 or later"),
        (Retry(5, backoff=(10, 30)), RABBITMQ, "jitter must be False"),
    ],
)
def test_it_says_once_why_retries_are_copied(
    caplog: pytest.LogCaptureFixture, retry: Retry, properties: Any, reason: str
) -> None:
    found, delays = delayed(Queue("orders", arguments=RETRY.queue_arguments), retry, properties)
    assert not delays
    assert not found.connected(["orders"], properties)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("queue 'orders' is to delay its retries, but they are copied: ")
    assert reason in said


@pytest.mark.parametrize("kind", ["all", "returned"])
def test_it_says_once_that_returns_are_delayed(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    queue = Queue("orders", arguments={**RETRY.queue_arguments, "x-delayed-retry-type": kind})
    found, delays = delayed(queue, None)
    found.connected(["orders"], RABBITMQ)
    assert not delays
    [said] = [record.getMessage() for record in caplog.records]
    assert f"x-delayed-retry-type of queue 'orders' is '{kind}'" in said
    assert delayed(queue)[1] == (kind == "all")


def test_what_comes_back_too_soon_is_copied_from_then_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = delayed(Queue("orders", arguments=RETRY.queue_arguments))
    now = time.monotonic()
    monkeypatch.setattr("fairsched.consumer.handling.delayed_retries.time.monotonic", lambda: now)
    for body, soon in ((b"late", 10.0), (b"other", 0.1), (b"soon", 0.1)):
        found.rejecting(message(None, redelivered=False, body=body), 10.0)
        # Another one of that content, which failed more often, is none that was rejected here.
        back = counted(2, 2 if body == b"other" else 1, arrived=now + soon, body=body)
        found.look(back)
        assert found.delays(back) == (body != b"soon")
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert "came back 0.1 s after it was rejected, instead of 10 s" in said.getMessage()
    assert found.counts(counted(2, 1))  # it counts all the same
    monkeypatch.setattr("fairsched.consumer.handling.delayed_retries.time.monotonic", lambda: now + 61)
    assert found.delays(counted(2, 1))


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairsched.consumer.handling.delayed_retries.REMEMBERED", 2)
    found, _ = delayed(Queue("orders", arguments=RETRY.queue_arguments))
    for body in (b"0", b"1", b"2"):
        found.rejecting(message(None, redelivered=False, body=body), 10.0)
    found.look(counted(1, 1, body=b"0", arrived=time.monotonic()))
    assert found.delays(counted(1, 1))
    found.look(counted(1, 1, body=b"1", arrived=time.monotonic()))
    assert not found.delays(counted(1, 1))
