"""An operator's commands to a running broker: connections closed, the memory limit moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from support.waiting import eventually

import fairsched

Connect = Callable[..., pika.BlockingConnection]


def test_connections_are_closed_and_may_come_back(broker: fairsched.Broker, connect: Connect) -> None:
    before = [connect(), connect()]
    channel = before[0].channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"unacknowledged")
    assert channel.basic_get("q")[2] == b"unacknowledged"
    broker.close_connections()
    for connection in before:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(30)
        assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - closed by the operator")
    method, _, body = connect().channel().basic_get("q")
    assert (body, method.redelivered) == (b"unacknowledged", True)
    eventually(lambda: broker.status()["connections"] == 1)


def test_the_consumers_of_its_status(broker: fairsched.Broker, connect: Connect) -> None:
    first, second = connect(), connect()
    acknowledging = first.channel()
    acknowledging.queue_declare("ä")
    acknowledging.basic_qos(prefetch_count=1)
    acknowledging.basic_consume("ä", lambda *_: None, consumer_tag="t", arguments={"x-priority": -3})
    greedy = second.channel(7)
    greedy.queue_declare("other")
    greedy.basic_consume("other", lambda *_: None, auto_ack=True, consumer_tag="greedy")

    def listed() -> list[dict[str, Any]]:
        return sorted(broker.status()["consumers"], key=lambda one: str(one["tag"]))

    addresses = [connection._impl._transport._sock.getsockname() for connection in (second, first)]
    shown = {"vhost": "/", "list": "interested"}
    expected = [
        {**shown, "queue": "other", "tag": "greedy", "channel": 7, "prefetch": 0, "priority": 0, "acknowledges": False},
        {**shown, "queue": "ä", "tag": "t", "channel": 1, "prefetch": 1, "priority": -3, "acknowledges": True},
    ]
    for one, (host, port) in zip(expected, addresses, strict=True):
        one["connection"] = f"{host}:{port}"
    assert listed() == expected
    acknowledging.basic_publish("", "ä", b"keeps it busy")
    expected[1]["list"] = "not interested"
    eventually(lambda: listed() == expected)
    acknowledging.basic_cancel("t")
    assert listed() == expected[:1]


@pytest.fixture
def alarmed(broker: fairsched.Broker, connect: Connect) -> Iterator[fairsched.Broker]:
    """A broker that is short of memory, with a message in the queue "q"."""
    channel = connect().channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"before")
    channel.queue_declare("q", passive=True)
    broker.memory_limit = 1
    eventually(lambda: broker.status()["memory_alarm"])
    yield broker
    # A blocked connection is not heard when it says good-bye.
    broker.memory_limit = 0


def depth(broker: fairsched.Broker) -> int:
    [queue] = broker.status()["queues"]
    return int(queue["depth"])


def test_publishers_wait_while_memory_is_short(alarmed: fairsched.Broker, connect: Connect) -> None:
    said: list[str] = []
    publisher, consumer = connect(), connect()
    publisher.add_on_connection_blocked_callback(lambda _connection, frame: said.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda *_: said.append("unblocked"))
    publisher.channel().basic_publish("", "q", b"during")
    eventually(lambda: publisher.process_data_events(0.01) or said)
    # A connection that does not publish is served.
    assert consumer.channel().basic_get("q")[2] == b"before"
    assert (said, depth(alarmed)) == (["low on memory"], 1)
    alarmed.memory_limit = 0
    eventually(lambda: publisher.process_data_events(0.01) or len(said) > 1)
    eventually(lambda: depth(alarmed) == 2)
    assert said == ["low on memory", "unblocked"]


def test_a_publisher_is_blocked_by_its_next_message(alarmed: fairsched.Broker, connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    alarmed.memory_limit = 0
    eventually(lambda: not alarmed.status()["memory_alarm"])
    channel.basic_publish("", "q", b"then")
    channel.queue_declare("q", passive=True)
    alarmed.memory_limit = 1
    eventually(lambda: alarmed.status()["memory_alarm"])
    # It only takes now, and is served as a consumer is.
    assert channel.basic_get("q", auto_ack=True)[2] == b"before"
    channel.basic_publish("", "q", b"during")
    said: list[object] = []
    connection.add_on_connection_blocked_callback(lambda *_: said.append(True))
    eventually(lambda: connection.process_data_events(0.01) or said)
    assert depth(alarmed) == 1


@pytest.mark.parametrize("end", ["close_connections", "close"])
def test_a_blocked_publisher_ends(alarmed: fairsched.Broker, connect: Connect, end: str) -> None:
    publisher = connect()
    publisher.channel().basic_publish("", "q", b"during")
    publisher.process_data_events(0)
    if end == "close_connections":
        alarmed.close_connections()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
            publisher.process_data_events(30)
    else:
        alarmed.close()
        with pytest.raises(pika.exceptions.AMQPError):
            publisher.process_data_events(30)


def test_the_limit_is_checked_and_kept(broker: fairsched.Broker) -> None:
    with pytest.raises(ValueError, match="memory_limit must be 0 or more, got -1"):
        broker.memory_limit = -1
    assert broker.memory_limit == 0
    broker.memory_limit = 1 << 40
    assert (broker.memory_limit, broker.status()["memory_alarm"]) == (1 << 40, False)


def test_a_broker_that_does_not_run() -> None:
    stopped = fairsched.Broker()
    stopped.memory_limit = 5
    assert stopped.memory_limit == 5
    with pytest.raises(RuntimeError, match="is not running"):
        stopped.close_connections()
