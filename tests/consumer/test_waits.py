"""Warnings where messages wait here too long."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched import Limit, Message, Queue, Tenant
from fairsched.consumer.client import Client
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.waits import (
    CONSUMER_TIMEOUT,
    COUNTED_WAIT,
    PAUSE,
    WaitWarnings,
    consumer_timeout,
    overstay,
    slow_rates,
)
from fairsched.testing import FakeConsumer


def message(queue: str = "q", **headers: Any) -> Message:
    return FakeConsumer().put(queue=queue, redelivered=bool(headers), headers=headers)


class Shop:
    def __init__(self, here: int, workers: int = 1) -> None:
        self.now = 100.0
        self.here = here
        self.waits = WaitWarnings(workers, lambda: self.here, lambda: "Use less", clock=lambda: self.now)

    def look(self, service: float, **arguments: Any) -> None:
        self.now += 2 * PAUSE
        self.waits.look(message(**arguments), service)


def test_what_is_said_names_queue_numbers_and_limit() -> None:
    assert overstay("q", 500, CONSUMER_TIMEOUT, False) is None
    assert overstay("q", 500, COUNTED_WAIT, True) is None
    assert overstay("q", 500, COUNTED_WAIT + 1, False) is None
    late = overstay("q", 500, 2000.0, False)
    assert late is not None
    assert "500 messages are here and need 2e+03 s" in late
    assert "'q'" in late
    assert "consumer_timeout, 1800 s by default" in late
    counted = overstay("q", 500, 50.0, True)
    assert counted is not None
    assert "'q' counts deliveries" in counted
    assert "20 by default" in counted


@pytest.mark.parametrize("arguments", [None, {}, {"x-consumer-timeout": "1000"}, {"x-consumer-timeout": 0}])
def test_the_timeout_of_a_queue_without_one_is_the_usual_one(arguments: dict[str, Any] | None) -> None:
    assert consumer_timeout(Queue("q", arguments=arguments)) == consumer_timeout(None) == CONSUMER_TIMEOUT


def test_the_timeout_of_a_queue_counts(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue("a", arguments={"x-queue-type": "quorum", "x-consumer-timeout": 60_000})
    shop = Shop(500)
    shop.waits._timeout = {"a": consumer_timeout(queue), "b": CONSUMER_TIMEOUT}.__getitem__
    with caplog.at_level(logging.WARNING):
        shop.look(0.5, queue="b")
        shop.look(0.5, queue="a")
    [said] = [record.getMessage() for record in caplog.records]
    assert "those of queue 'a' too" in said
    assert "longer than its x-consumer-timeout, 60 s, and" in said


@pytest.mark.parametrize(("service", "workers", "warned"), [(3.0, 1, False), (4.0, 1, True), (4.0, 4, False)])
def test_it_warns_once_for_each_queue_by_consumer_timeout(
    caplog: pytest.LogCaptureFixture, service: float, workers: int, warned: bool
) -> None:
    shop = Shop(500, workers)
    with caplog.at_level(logging.WARNING):
        for queue in ("a", "b", "a", "b"):
            shop.look(service, queue=queue)
    assert len(caplog.records) == 2 * warned
    assert all(record.getMessage().endswith("Use less") for record in caplog.records)


@pytest.mark.parametrize("header", ["x-delivery-count", "x-acquired-count"])
def test_it_warns_where_deliveries_are_counted(caplog: pytest.LogCaptureFixture, header: str) -> None:
    shop = Shop(500)
    with caplog.at_level(logging.WARNING):
        shop.look(0.1)
        assert not caplog.records
        shop.look(0.1, **{header: 1})
        assert len(caplog.records) == 1
        shop.look(0.1, **{header: 2})
        assert len(caplog.records) == 1


def test_little_that_is_here_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    """By what is unsettled, not by what might be: a nearly empty queue does no harm behind a large window."""
    shop = Shop(3)
    with caplog.at_level(logging.WARNING):
        shop.look(60.0)
        shop.look(1.0, **{"x-delivery-count": 1})
    assert not caplog.records


def test_it_looks_once_in_a_while() -> None:
    shop = Shop(500)
    asked = []
    shop.waits._here = lambda: asked.append(1) or 500
    for _ in range(100):
        shop.waits.look(message(), 0.1)
    assert len(asked) == 1


def test_headers_that_cannot_be_read_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        queue, redelivered = "q", True

        @property
        def headers(self) -> dict[str, Any]:
            raise ValueError("odd")

    shop = Shop(500)
    with caplog.at_level(logging.WARNING):
        shop.waits.look(Odd(), 0.1)
    assert not caplog.records


def test_the_prefetch_that_is_advised_has_a_message_for_each_worker() -> None:
    client = Client(ConsumerSettings("amqp://localhost", ["a"], workers=4))
    client.io_thread = SimpleNamespace(round_trip=lambda: 1e-3, channels=SimpleNamespace(window=lambda: 500))
    client.service_ns = 0.05e9
    assert client._advice().startswith("A prefetch of 5 in all would keep all handlers busy")


SLOW = Limit(rate="1/m")


@pytest.mark.parametrize(
    ("queues", "options", "said"),
    [
        ([Queue("q", limit=Limit(3))], {}, []),
        ([Queue("q", limit=Limit(rate="100/m"))], {}, []),
        ([Queue("q", limit=Limit(rate="5/h"))], {"prefetch": 2}, []),
        ([Queue("q", limit=Limit(rate="5/h"))], {"prefetch": 3}, ["queue 'q', 3 of them, needs 2.16e+03 s"]),
        ([Queue("a", limit=False), Queue("b", limit=SLOW)], {"prefetch": 200}, ["queue 'b', 100 of them"]),
        ([Queue("a", limit=Limit(rate="1/m")), "b"], {"prefetch": 200}, ["queue 'a', 100 of them"]),
        (
            ["q"],
            {"key": "header:t", "tenants": {"*": Tenant(limit=Limit(rate=1)), "x": Tenant(limit=SLOW)}},
            ["one tenant, 500 of them, needs 3e+04 s at a rate of 0.0167 a second"],
        ),
        (
            ["q"],
            {"key": "header:t", "tenants": {"*": Tenant(limit=SLOW), "y": Tenant(limit=False)}},
            ["one tenant, 500 of them, needs 3e+04 s at a rate of 0.0167 a second"],
        ),
        (["q"], {"key": "header:t", "tenants": {"*": Tenant(limit=Limit(2)), "y": Tenant(limit=False)}}, []),
    ],
)
def test_rates_too_slow_for_the_window(queues: list[Any], options: dict[str, Any], said: list[str]) -> None:
    found = list(slow_rates(ConsumerSettings("amqp://localhost", queues, **options)))
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True))
