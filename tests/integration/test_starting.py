"""Reaching a broker, or saying why not."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import Running, consume
from support.waiting import eventually

from fairsched import ConnectionFailed, QueueNotFound, aio
from fairsched.consumer import Consumer


def test_a_missing_queue_is_named(broker: Node) -> None:
    with pytest.raises(QueueNotFound, match="no-such-queue"), Consumer(broker.url, ["no-such-queue"]):
        pass
    with pytest.raises(QueueNotFound, match="no-such-queue"):
        Consumer(broker.url, ["no-such-queue"]).run(lambda message: None)


def test_a_wrong_password_fails_at_once_and_is_not_shown(broker: Node, caplog: pytest.LogCaptureFixture) -> None:
    url = broker.url.replace("guest:guest", "guest:hunter2")
    begin = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectionFailed, match=f"127.0.0.1:{broker.port}") as caught:
        Consumer(url, ["q"]).run(lambda message: None)
    assert time.monotonic() - begin < 10
    assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r} {caplog.text}"


def test_an_unknown_virtual_host_fails_at_once(broker: Node) -> None:
    with pytest.raises(ConnectionFailed, match="nowhere"):
        Consumer(broker.url.replace("%2F", "nowhere"), ["q"]).run(lambda message: None)


def test_no_broker_is_an_error_after_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1 within 0\.5 s") as caught:
        Consumer("amqp://app:hunter2@127.0.0.1:1/", ["q"], connect_timeout=0.5).run(lambda message: None)
    assert "hunter2" not in f"{caught.value} {caplog.text}"


def test_the_second_url_serves_when_the_first_is_dead(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("urls")
    broker.publish(queue, numbered(10))
    consumer = Consumer(["amqp://guest:guest@127.0.0.1:1/", broker.url], [queue])
    assert consume(consumer, 10) == numbered(10)


@pytest.mark.rabbitmq("TLS")
def test_amqps(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tls=True)
    try:
        node.start()
        node.declare("tls")
        node.publish("tls", [b"%d" % number + b"x" * 1000 for number in range(2000)])
        options = f"?ssl_options=%7B%27ca_certs%27%3A%27{node.certificate}%27%7D"
        with Running(node.tls_url + options, ["tls"]) as running:
            eventually(lambda: len(running.processed) == 2000)
        assert node.count("tls") == 0
        untrusting = Consumer(node.tls_url, ["tls"])
        with pytest.raises(Exception, match="certificate verify failed"):
            untrusting.run(lambda message: None)
    finally:
        node.close()


def test_amqps_at_a_port_without_tls(broker: Node) -> None:
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{broker.port}: .* does not speak TLS: use amqp://"):
        Consumer(broker.url.replace("amqp://", "amqps://"), ["q"]).run(lambda message: None)


def test_a_closed_consumer_consumes_no_more(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("closed")
    entered, run = Consumer(broker.url, [queue]), Consumer(broker.url, [queue])
    with entered:
        entered.stop()
        entered.run(lambda message: None)  # it was asked to stop: nothing to do, and nothing wrong
    broker.publish(queue, [b"first"])
    assert consume(run, 1) == [b"first"]
    broker.publish(queue, numbered(3))
    for consumer in (entered, run):
        with pytest.raises(RuntimeError, match="closed; create another"):
            consumer.run(lambda message: None)
        with pytest.raises(RuntimeError, match="closed; create another"):
            next(iter(consumer))
        with pytest.raises(RuntimeError, match="closed; create another"), consumer:
            pass
    assert broker.count(queue) == 3


def test_a_closed_consumer_of_asyncio_consumes_no_more(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("closed")
    broker.publish(queue, numbered(3))

    async def handler(message: object) -> None:
        raise AssertionError

    async def main() -> None:
        consumer = aio.Consumer(broker.url, [queue], prefetch=1)
        calls = [lambda: consumer.run(handler), consumer.get, lambda: anext(aiter(consumer)), consumer.__aenter__]
        for call in calls[:3]:
            with pytest.raises(RuntimeError, match="inside 'async with"):
                await call()
        async with consumer:
            pass
        for call in calls:
            with pytest.raises(RuntimeError, match="closed; create another"):
                await call()

    asyncio.run(main())
    eventually(lambda: broker.count(queue) == 3)
