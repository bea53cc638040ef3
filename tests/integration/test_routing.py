"""The placement that is computed here against that of a real broker's plugin, message by message."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pytest
from click.testing import CliRunner
from support.rabbitmq import Node

from fairsched import ConfigurationError
from fairsched.cli.group import cli
from fairsched.cli.placement import ExchangeSession
from fairsched.routing import ConsistentHashExchange, RabbitMQHash

_numbers = itertools.count()

#: What an exchange may hash: the arguments it is declared with.
SOURCES: dict[str, dict[str, str]] = {
    "routing key": {},
    "header": {"hash-header": "account"},
    "message_id": {"hash-property": "message_id"},
    "correlation_id": {"hash-property": "correlation_id"},
    "timestamp": {"hash-property": "timestamp"},
}


class Outgoing(NamedTuple):
    """A message to publish."""

    routing_key: str
    properties: pika.BasicProperties


class Live:
    """An exchange of the broker's and its double, bound and unbound together."""

    def __init__(self, node: Node, channel: Any, arguments: dict[str, str]) -> None:
        self.channel, self.name, self.node = channel, f"hash-{next(_numbers)}", node
        channel.exchange_declare(self.name, "x-consistent-hash", arguments=arguments)
        self.double = ConsistentHashExchange(
            hash_header=arguments.get("hash-header"), hash_property=arguments.get("hash-property"),
            typed_headers=node.hashes_types, max_weight=None,
        )  # fmt: skip

    def declare(self, queue: str) -> str:
        self.channel.queue_declare(f"{self.name}-{queue}", exclusive=True)
        return f"{self.name}-{queue}"

    def bind(self, queue: str, key: str) -> None:
        self.channel.queue_bind(queue, self.name, key)
        self.double.bind(queue, key)

    def unbind(self, queue: str, key: str) -> None:
        self.channel.queue_unbind(queue, self.name, key)
        self.double.unbind(queue, key)

    def delete_queue(self, queue: str) -> None:
        self.channel.queue_delete(queue)
        self.double.delete_queue(queue)

    def mismatches(self, messages: list[Outgoing], queues: set[str]) -> list[tuple[Outgoing, str, str | None]]:
        """Publish, take everything out of the queues, and list what lay elsewhere than computed."""
        found: dict[int, str] = {}
        raw = self.channel._impl
        for number, message in enumerate(messages):
            raw.basic_publish(self.name, message.routing_key, str(number).encode(), message.properties)
            if number % 500 == 499:
                self.channel.connection.process_data_events(0)
        tags = [
            self.channel.basic_consume(
                queue, lambda *delivery, at=queue: found.__setitem__(int(delivery[3]), at), auto_ack=True
            )
            for queue in sorted(queues)
        ]
        while len(found) < len(messages):
            self.channel.connection.process_data_events(10)
        for tag in tags:
            self.channel.basic_cancel(tag)
        computed = [self.double.route(message.routing_key, message.properties) for message in messages]
        return [
            (message, found[number], expected)
            for number, (message, expected) in enumerate(zip(messages, computed, strict=True))
            if found[number] != expected
        ]


@pytest.fixture
def live(hashing_broker: Node) -> Iterator[Callable[[dict[str, str]], Live]]:
    with hashing_broker.connect() as channel:
        yield lambda arguments: Live(hashing_broker, channel, arguments)


def header_value(choose: random.Random) -> Any:
    """A header's value of any kind that pika can send."""
    return choose.choice(
        [
            str(choose.randint(1, 10_000_000)), f"user-\u00fc-{choose.random()}", "", choose.randbytes(5),
            choose.randint(-(2**31), 2**31 - 1), choose.randint(-(2**63), 2**63 - 1), choose.randint(-200, 200),
            choose.random() < 0.5, None, dt.datetime.fromtimestamp(choose.randint(0, 2**31), dt.UTC),
        ]
    )  # fmt: skip


def outgoing(source: str, choose: random.Random) -> Outgoing:
    """A message whose value for `source` is random, and missing now and then."""
    text = choose.choice(
        [str(choose.randint(1, 10_000_000)), f"user-{choose.randint(1, 10**6)}", "x" * choose.randint(0, 60)]
    )
    properties = pika.BasicProperties()
    if source == "header":
        headers = {"other": "x"}
        if choose.random() > 0.02:
            headers["account"] = header_value(choose)
        properties.headers = choose.choice([headers, headers, headers, headers or None])
    elif source == "timestamp":
        properties.timestamp = choose.randint(0, 10_000_000)
    elif source != "routing key":
        setattr(properties, source, text)
    if choose.random() < 0.01:
        properties = pika.BasicProperties()
    return Outgoing(text, properties)


@pytest.mark.parametrize("source", SOURCES)
def test_weights_1_1_2_2(live: Callable[[dict[str, str]], Live], source: str) -> None:
    """20 000 messages of each source, every one in the queue that was computed."""
    choose = random.Random(5)
    exchange = live(SOURCES[source])
    queues = [exchange.declare(f"q{number}") for number in range(4)]
    for queue, key in zip(queues, "1122", strict=True):
        exchange.bind(queue, key)
    messages = [outgoing(source, choose) for _ in range(20_000)]
    assert exchange.mismatches(messages, set(queues)) == []


def change(exchange: Live, queues: list[str], choose: random.Random) -> None:
    """Bind, bind again with another key, unbind, or delete and declare again, at random."""
    queue = choose.choice(queues)
    keys = [key for bound, key in exchange.double.hash.bindings if bound == queue]
    action = choose.random()
    if action < 0.6 or not keys:
        exchange.bind(queue, choose.choice(["+", "", "00"]) + str(choose.randint(1, 20)))
    elif action < 0.85:
        exchange.unbind(queue, choose.choice(keys))
    elif action < 0.92:
        exchange.unbind(queue, "9999")
    else:
        exchange.delete_queue(queue)
        exchange.channel.queue_declare(queue, exclusive=True)


def test_nine_queues_bound_and_unbound_in_random_order(live: Callable[[dict[str, str]], Live]) -> None:
    """40 000 messages in all, over five exchanges, with a hundred changes of each in between."""
    choose = random.Random(9)
    for source, arguments in SOURCES.items():
        exchange = live(arguments)
        queues = [exchange.declare(f"q{number}") for number in range(9)]
        for _ in range(4):
            for _ in range(25):
                change(exchange, queues, choose)
            exchange.bind(choose.choice(queues), "3")  # so that there is at least one, if not ignored
            assert exchange.double.hash.buckets > 0
            messages = [outgoing(source, choose) for _ in range(2_000)]
            assert exchange.mismatches(messages, set(queues)) == []


def test_an_exchange_without_bindings_routes_nowhere(live: Callable[[dict[str, str]], Live]) -> None:
    exchange = live({})
    queue = exchange.declare("q")
    exchange.bind(queue, "1")
    exchange.unbind(queue, "1")
    exchange.channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        exchange.channel.basic_publish(exchange.name, "key", b"", mandatory=True)
    assert exchange.double.route("key") is None


@pytest.mark.parametrize(
    "key", ["1", "+5", "007", "0", "-1", "", " 5", "5 ", "1_000", "1e3", "0x10", "\uff15", "not-a-number", "+"]
)
def test_binding_keys_are_refused_as_the_broker_refuses_them(hashing_broker: Node, key: str) -> None:
    says = ""
    with hashing_broker.connect() as channel:
        exchange = Live(hashing_broker, channel, {})
        queue = exchange.declare("q")
        try:
            channel.queue_bind(queue, exchange.name, key)
        except pika.exceptions.ChannelClosedByBroker as error:
            says = error.reply_text
    if not says:
        exchange.double.bind(queue, key)
    else:
        with pytest.raises(ConfigurationError) as refused:
            exchange.double.bind(queue, key)
        assert str(refused.value).split(":")[0] in says


@pytest.mark.parametrize(
    "arguments",
    [
        {"hash-header": "h", "hash-property": "message_id"},
        {"hash-header": "h", "hash-property": "nonsense"},
        {"hash-property": "app_id"},
    ],
)
def test_exchanges_are_refused_as_the_broker_refuses_them(hashing_broker: Node, arguments: dict[str, str]) -> None:
    with hashing_broker.connect() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.exchange_declare("refused", "x-consistent-hash", arguments=arguments)
    with pytest.raises(ConfigurationError) as error:
        ConsistentHashExchange(hash_header=arguments.get("hash-header"), hash_property=arguments.get("hash-property"))
    assert refused.value.reply_code == 406
    assert str(error.value) in refused.value.reply_text


# The command line --------------------------------------------------------------------------------------------------


def check(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["check", *arguments])


def test_check_compares_the_placement(hashing_broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    declare = ExchangeSession.declare_exchange
    monkeypatch.setattr(
        ExchangeSession, "declare_exchange", lambda self, name, kind: (used.append(name), declare(self, name, kind))
    )
    before = hashing_broker.messages()
    result = check("--url", hashing_broker.url, "--binding", "q0=10", "--binding", "q1=20", "--binding", "q0=3")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "\u2713 placement: 1000 keys route to the queues computed"
    assert hashing_broker.messages() == before
    [exchange] = used
    with hashing_broker.connect() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.exchange_declare(exchange, passive=True)


def test_check_tells_of_another_placement(hashing_broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RabbitMQHash, "route", lambda self, key: "q1")
    result = check("--url", hashing_broker.url, "--binding", "q0=1", "--binding", "q1=1")
    assert result.exit_code == 7
    assert " of 1000 keys route to other queues than computed; key " in result.stdout
    assert " routes to q0, computed q1" in result.stdout


@pytest.mark.rabbitmq("lacks x-consistent-hash without a plugin")
def test_check_of_a_broker_without_the_plugin(broker: Node) -> None:
    result = check("--url", broker.url, "--binding", "q0=1")
    assert result.exit_code == 4
    assert "x-consistent-hash" in result.stdout
