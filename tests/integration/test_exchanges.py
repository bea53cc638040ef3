"""Exchanges of RabbitMQ against the oracle, which the broker's own are held against: same topology, same messages."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from typing import Any

import pika
import pytest
from fairsched._probe_exchanges import ProbeTopology, Refused
from oracles.exchanges import Broker
from oracles.exchanges import Refused as OracleRefused
from pika import spec
from support.rabbitmq import Node
from support.topologies import QUEUES, Change, Message, some_change, some_message
from support.wiretables import Encoded, written

from fairsched.broker import Broker as Embedded

_numbers = itertools.count()


def with_table(method: Any, table: bytes) -> Any:
    """Have a method sent with arguments that are given as bytes."""
    method.arguments = {"placeholder": True}
    pieces = method.encode()
    start = pieces.index(b"placeholder") - 2
    method.encode = lambda: [*pieces[:start], table, *pieces[start + 4 :]]
    return method


class Live:
    """A virtual host of a broker."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.channel: Any = None

    def open(self) -> Any:
        if self.channel is None or self.channel.is_closed:
            if self.channel is None or self.channel.connection.is_closed:
                self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
            self.channel = self.connection.channel()
            self.channel.confirm_delivery()
        return self.channel

    def close(self) -> None:
        if self.channel is not None and self.connection.is_open:
            self.connection.close()

    def send(self, method: Any, table: bytes) -> None:
        channel = self.open()
        channel._impl._send_method(with_table(method, table))
        channel.basic_qos()  # comes back when the method was done

    def declare(
        self, name: bytes, kind: bytes, *, durable: bool, auto_delete: bool, internal: bool, arguments: bytes
    ) -> None:
        declare = spec.Exchange.Declare(
            exchange=name.decode(), type=kind.decode(), durable=durable, auto_delete=auto_delete, internal=internal,
            nowait=True,
        )  # fmt: skip
        self.send(declare, arguments)

    def delete(self, name: bytes, if_unused: bool = False) -> None:
        self.open().exchange_delete(name.decode(), if_unused=if_unused)

    def add_queue(self, name: bytes) -> None:
        self.open().queue_declare(name.decode())

    def remove_queue(self, name: bytes) -> None:
        self.open().queue_delete(name.decode())

    def bind(self, source: bytes, name: bytes, key: bytes, table: bytes, *, to_exchange: bool) -> None:
        names = {"exchange": source.decode(), "queue": name.decode(), "routing_key": key.decode()}
        if to_exchange:
            names = {"source": source.decode(), "destination": name.decode(), "routing_key": key.decode()}
        self.send((spec.Exchange.Bind if to_exchange else spec.Queue.Bind)(**names, nowait=True), table)

    def unbind(self, source: bytes, name: bytes, key: bytes, table: bytes, *, to_exchange: bool) -> None:
        if to_exchange:
            unbind = spec.Exchange.Unbind(
                source=source.decode(), destination=name.decode(), routing_key=key.decode(), nowait=True
            )
            self.send(unbind, table)
        else:
            unbind = spec.Queue.Unbind(exchange=source.decode(), queue=name.decode(), routing_key=key.decode())
            channel = self.open()
            channel._impl._send_method(with_table(unbind, table))
            channel.basic_qos()

    def publish(self, message: Message, body: bytes) -> None:
        properties = pika.BasicProperties(**message.properties)
        if message.headers is not None:
            properties = Encoded(written(message.headers), **message.properties)
        self.open().basic_publish(message.exchange.decode(), message.key.decode(), body, properties)

    def drain(self, queue: bytes) -> list[bytes]:
        bodies = []
        while True:
            method, _, body = self.open().basic_get(queue.decode(), auto_ack=True)
            if method is None:
                return bodies
            bodies.append(body)


class Three:
    """A broker, the oracle and the compiled topology, changed together."""

    def __init__(self, live: Live, *, typed_headers: bool) -> None:
        self.live, self.oracle = live, Broker(typed_headers=typed_headers)
        self.probe = ProbeTopology(self.live.name.encode())
        self.bindings: list[tuple[Any, ...]] = []
        self.expected: dict[bytes, list[bytes]] = {queue: [] for queue in QUEUES}
        self.number = itertools.count()

    @property
    def kinds(self) -> dict[bytes, bytes]:
        return {name: exchange.kind for name, exchange in self.oracle.exchanges.items()}

    def same(self, expected: Any, compiled: Any, happened: Any, what: Any) -> Any:
        """Do it at all three; the compiled one has to refuse with RabbitMQ's words."""
        code = None
        try:
            wanted = expected()
        except OracleRefused as error:
            code = error.args[0]
        if code is not None:
            with pytest.raises(Refused) as refused:
                compiled()
            with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)) as no:
                happened()
            assert no.value.reply_code == code == refused.value.args[0], (what, no.value)
            assert no.value.reply_text.split(" - ", 1)[1] == refused.value.args[1].decode(), what
            return None
        compiled()
        try:
            happened()
        except pika.exceptions.AMQPError as error:
            raise AssertionError(f"{what}: refused by RabbitMQ alone: {error!r}") from error
        return wanted

    def change(self, change: Change) -> None:
        what, arguments, options = change
        if what in ("add_queue", "remove_queue") and (arguments[0] in self.oracle.queues) == (what == "add_queue"):
            return
        if what == "remove_queue":
            self.compare(arguments[0])
        coded, coded_options = change.coded
        if change.binds:
            self.bindings.append(arguments)
        oracle, probe, live = (getattr(one, what) for one in (self.oracle, self.probe, self.live))
        self.same(
            lambda: oracle(*arguments, **options),
            lambda: probe(*coded, **coded_options),
            lambda: live(*coded, **coded_options),
            change,
        )

    def publish(self, message: Message) -> None:
        body = b"%d" % next(self.number)
        queues = self.same(
            lambda: self.oracle.publish(*message),
            lambda: self.probe.publish(message.exchange, message.key, message.content_header),
            lambda: self.live.publish(message, body),
            message,
        )
        for queue in queues or []:
            self.expected[queue].append((body, message))

    def compare(self, *queues: bytes) -> None:
        for queue in queues or QUEUES:
            if queue in self.oracle.queues:
                found, expected = set(self.live.drain(queue)), {body for body, _ in self.expected[queue]}
                other = [message for body, message in self.expected[queue] if body not in found]
                assert found == expected, (queue, "not there:", other, "too many:", found - expected)
            self.expected[queue] = []


def compare_all(live: Live, seed: int, *, typed_headers: bool) -> Three:
    source = random.Random(seed)
    three = Three(live, typed_headers=typed_headers)
    with contextlib.closing(live):
        for _ in range(150):
            three.change(some_change(source, three.kinds, three.bindings))
            for _ in range(2):
                three.publish(some_message(source))
        three.compare()
    assert {name for name, *_ in three.probe.exchanges} == set(three.oracle.exchanges)
    return three


@pytest.mark.rabbitmq("the test beside it asks the embedded one")
@pytest.mark.model
@pytest.mark.parametrize("seed", range(3))
def test_rabbitmq_routes_as_the_oracle(hashing_broker: Node, seed: int) -> None:
    name = f"host-{next(_numbers)}"
    hashing_broker.evaluate(f'rabbit_vhost:add(<<"{name}">>, <<"test">>).')
    everything = ", ".join(3 * ['<<".*">>'])
    hashing_broker.evaluate(
        f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, {everything}, <<"test">>).'
    )
    three = compare_all(Live(hashing_broker.url.replace("%2F", name), name), seed, typed_headers=True)
    names = f'[binary_to_list(element(4, element(2, Exchange))) || Exchange <- rabbit_exchange:list(<<"{name}">>)]'
    [listed] = re.findall('"(.*)"', hashing_broker.evaluate(f'lists:flatten(lists:join(",", {names})).'))
    assert {found.encode() for found in listed.split(",")} == set(three.oracle.exchanges)


@pytest.mark.parametrize("seed", range(6))
def test_the_broker_routes_as_the_oracle(seed: int) -> None:
    with Embedded() as broker:
        compare_all(Live(broker.url, "/"), seed, typed_headers=False)
