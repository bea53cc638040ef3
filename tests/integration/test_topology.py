"""Queues that a consumer declares, how it consumes them, and what is said of one of them, against a real broker."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import consume
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Queue, QueueNotFound, Retry


@contextlib.contextmanager
def running(consumer: Any, handler: Callable[..., Any]) -> Iterator[None]:
    """Run a consumer in a thread, until the block ends."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler)
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert problems == []


def nothing(message: Any) -> None:
    pass


def test_a_queue_is_declared_bound_and_consumed(broker: Node, new_queue: Declare) -> None:
    name = new_queue("topology")
    exchange, dead = f"{name}-topics", f"{name}-dead"
    broker.delete(name)
    with broker.connect() as channel:
        channel.exchange_declare(exchange, "topic")
    queue = Queue(
        name, durable=True, arguments={"x-max-length": 100}, bind=[(exchange, "a.*"), (exchange, "b")], dead_letter=dead
    )
    done: list[bytes] = []
    consumer = Consumer(broker.url, [queue], on_error="reject")

    def handler(message: Any) -> None:
        done.append(message.body)
        if message.body == b"bad":
            raise ValueError

    with consumer, broker.connect() as channel:
        for key, body in (("a.x", b"1"), ("b", b"2"), ("c", b"lost"), ("b", b"bad")):
            channel.basic_publish(exchange, key, body)
        with running(consumer, handler):
            eventually(lambda: len(done) == 3)
    assert sorted(done) == [b"1", b"2", b"bad"]
    eventually(lambda: broker.count(dead) == 1)
    with broker.connect() as channel:  # as it was declared
        arguments = {"x-max-length": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        channel.queue_declare(name, durable=True, arguments=arguments)


def test_without_it_must_exist(broker: Node) -> None:
    with pytest.raises(QueueNotFound), Consumer(broker.url, [Queue("never-declared", weight=3)]):
        pass


def test_a_queue_that_is_deleted_is_declared_again(broker: Node, new_queue: Declare) -> None:
    name = new_queue("topology")
    broker.delete(name)
    done: list[bytes] = []
    consumer = Consumer(broker.url, [Queue(name, durable=True)])
    with running(consumer, lambda message: done.append(message.body)):
        eventually(lambda: name in broker.messages())
        for number in (1, 2):
            broker.publish(name, [b"%d" % number])
            eventually(lambda number=number: len(done) == number)
            broker.delete(name)
            eventually(lambda: name in broker.messages())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"arguments": {"x-max-length": 5}}, "is to be declared, which the broker refused: .*406.*x-max-length"),
        ({"durable": False}, "406.*durable"),
        ({"bind": ["no-such-exchange"]}, "404.*no-such-exchange"),
        ({"arguments": {"x-message-ttl": "long"}}, "406"),
    ],
)
def test_what_the_broker_refuses_is_an_error_of_the_start(
    broker: Node, new_queue: Declare, options: dict[str, Any], match: str
) -> None:
    name = new_queue("topology")
    with pytest.raises(ConfigurationError, match=match), Consumer(broker.url, [Queue(name, **options)]):
        pass


def test_a_priority_goes_first(broker: Node, new_queue: Declare) -> None:
    name = new_queue("topology")
    done: list[bytes] = []
    low = Consumer(broker.url, [Queue(name, priority=-1)])
    high = Consumer(broker.url, [Queue(name, priority=5)])
    with running(low, lambda message: done.append(b"low")), running(high, lambda message: done.append(b"high")):
        eventually(lambda: consumers(broker, name) == 2)
        for body in numbered(20):
            broker.publish(name, [body])
        eventually(lambda: len(done) == 20)
    assert set(done) == {b"high"}


def consumers(broker: Node, name: str) -> int:
    with broker.connect() as channel:
        return int(channel.queue_declare(name, passive=True).method.consumer_count)


def test_an_exclusive_consumer_is_alone(broker: Node, new_queue: Declare) -> None:
    name = new_queue("topology")
    with Consumer(broker.url, [Queue(name, exclusive=True, prefetch=10)]):
        assert consumers(broker, name) == 1
        with broker.connect() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="exclusive"):
            channel.basic_consume(name, lambda *_: None)


@pytest.mark.rabbitmq("streams")
def test_a_stream_is_read_from_an_offset(broker: Node, new_queue: Declare) -> None:
    name = new_queue("stream")
    broker.delete(name)
    broker.declare(name, arguments={"x-queue-type": "stream"})
    broker.publish(name, numbered(30))
    queue = Queue(name, durable=True, arguments={"x-queue-type": "stream"}, prefetch=10, offset=5)
    assert consume(Consumer(broker.url, [queue]), 25) == numbered(30)[5:]


@pytest.mark.rabbitmq("a list of connections with what their clients say of themselves")
def test_the_broker_shows_the_name_of_the_connection(broker: Node, new_queue: Declare) -> None:
    name = new_queue("topology")
    with Consumer(broker.url, [name], connection_name="worker-7"):
        listed = "rabbit_networking:connection_info_all([client_properties])"
        assert "worker-7" in broker.evaluate(f'lists:flatten(io_lib:format("~0p", [{listed}])).')


def test_each_queue_has_its_own_way_of_failing(broker: Node, new_queue: Declare) -> None:
    names = [new_queue("own") for _ in range(4)]
    rejecting, retrying, asking, plain = names
    asked: list[bytes] = []

    def ask(message: Any, error: Exception) -> None:
        asked.append(message.body)
        message.ack()

    for name in names:
        broker.publish(name, [name.encode()] * 3)
    consumer = Consumer(
        broker.url,
        [
            Queue(rejecting, on_error="reject"),
            Queue(retrying, retry=Retry(2, backoff=0.02, dead_letter=f"{retrying}-dead")),
            Queue(asking, on_error=ask), Queue(plain, retry=False),
        ],
        retry=Retry(1), on_error="reject", workers=2,
    )  # fmt: skip

    def fail(message: Any) -> None:
        raise ValueError

    with running(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 3 and consumer.stats()["errors"] == 15)
        eventually(lambda: consumer.stats()["rejected"] == 6)
    stats = consumer.stats()
    assert (stats["retried"], len(asked), stats["acked"]) == (3, 3, 9)
    assert broker.count(f"{retrying}-dead") == 3


def test_a_prefetch_of_its_own_bounds_what_is_here(broker: Node, new_queue: Declare) -> None:
    narrow, wide = new_queue("narrow"), new_queue("wide")
    broker.publish(narrow, numbered(50))
    broker.publish(wide, numbered(50))
    with Consumer(broker.url, [Queue(narrow, prefetch=3), wide]) as consumer:
        eventually(lambda: consumer.stats()["received"] == 53)
        assert {name: slot.queued for name, slot in consumer.stats()["slots"].items()} == {narrow: 3, wide: 50}


# The command, and the page --------------------------------------------------------------------------------------------


def test_the_check_says_what_will_be_declared(broker: Node, tmp_path: Path, new_queue: Declare) -> None:
    name = new_queue("checked")
    (tmp_path / "fairsched.toml").write_text(
        f'url = "{broker.url}"\n[queues.{name}-new]\ndurable = true\n[queues.{name}]\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "check"],
        cwd=tmp_path, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f"queue {name}-new: does not exist, and will be declared" in done.stdout
    assert f"queue {name}: 0 messages ready" in done.stdout
    assert f"{name}-new" not in broker.messages()


def page() -> list[str]:
    text = (Path(__file__).parents[2] / "docs/howto/queues.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_consumer_of_the_page(broker: Node) -> None:
    names = ["gold", "free", "mails", "audit"]
    broker.delete(*names, "audit.dead-letter")
    broker.declare(*names)
    for name in names:
        broker.publish(name, [name.encode()])
    code, *_ = page()
    done: list[bytes] = []

    def handle(message: Any) -> None:
        done.append(message.body)
        if len(done) == 4:
            scope["consumer"].stop()

    scope: dict[str, Any] = {"url": broker.url, "handle": handle}
    exec(code, scope)
    assert sorted(done) == sorted(name.encode() for name in names)


def test_the_apps_of_the_page(broker: Node) -> None:
    broker.delete("gold", "orders", "orders.failed")
    broker.declare("gold")
    for code, exchange, key in zip(page()[1:3], ("", "amq.topic"), ("gold", "orders.new"), strict=True):
        done: list[bytes] = []
        scope: dict[str, Any] = {"url": broker.url, "work": done.append}
        exec(code, scope)
        thread = threading.Thread(target=scope["app"].run)
        thread.start()
        eventually(lambda key=key: key.partition(".")[0] in broker.messages())
        eventually(lambda scope=scope: scope["app"].stats())
        with broker.connect() as channel:
            channel.confirm_delivery()

            def published(channel: Any = channel, exchange: str = exchange, key: str = key) -> bool:
                try:
                    channel.basic_publish(exchange, key, b"x", mandatory=True)
                except pika.exceptions.UnroutableError:
                    return False  # not bound yet
                return True

            eventually(published)
        eventually(lambda done=done: done == [b"x"])
        scope["app"].stop()
        thread.join(30)
        assert not thread.is_alive()
    broker.delete("orders", "orders.failed")
