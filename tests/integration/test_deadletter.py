"""Headers of dead letters as RabbitMQ writes them, against those of the broker."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from fairsched._probe_exchanges import dead_letter_header
from support.rabbitmq import Node
from support.waiting import eventually
from support.wiretables import Encoded, written

from fairsched.broker import Broker

REASONS = ("rejected", "expired", "maxlen")
TIME = 1_700_000_000


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[str]:
    with Node() as node:
        yield node.url


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


@pytest.fixture(
    params=[
        pytest.param(
            "rabbitmq",
            marks=[pytest.mark.rabbitmq("the test beside it asks the embedded one"), pytest.mark.model],
        ),
        "embedded",
    ]
)
def channel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A channel of each of the two brokers."""
    with pika.BlockingConnection(pika.URLParameters(request.getfixturevalue(request.param))) as connection:
        yield connection.channel()


def some_death(source: random.Random) -> tuple[str, Any]:
    """An entry of x-death, such as there are, and such as a client might make up."""
    entry = [
        (b"count", "l", source.randrange(1, 5)),
        (b"reason", "S", source.choice(REASONS).encode()),
        (b"queue", "S", source.choice([b"rejected-0", b"expired-1", b"other"])),
        (b"time", "T", TIME),
        (b"exchange", "S", b""),
        (b"routing-keys", "A", [("S", b"k")]),
    ]
    if source.random() < 0.2:
        del entry[source.randrange(1, 3)]
    return "F", entry


def some_headers(source: random.Random) -> list[tuple[bytes, str, Any]] | None:
    if source.random() < 0.2:
        return None
    headers: list[tuple[bytes, str, Any]] = [(b"z", "I", 1), (b"a", "S", b"text")]
    chance = source.random()
    if chance < 0.5:
        deaths = {}
        for _ in range(source.randrange(4)):
            kind, entry = some_death(source)
            deaths[tuple(value for name, _, value in entry if name in (b"queue", b"reason"))] = (kind, entry)
        headers.append((b"x-death", "A", list(deaths.values())))
    elif chance < 0.6:
        headers.append((b"x-death", "S", b"not an array"))
    if source.random() < 0.3:
        headers.append((b"x-first-death-queue", "S", b"before"))
    if source.random() < 0.4:
        headers.append((b"CC", "A", [("S", b"copy"), ("S", b"other")]))
    if source.random() < 0.4:
        headers.append((b"BCC", "A", [("S", b"secret")]))
    source.shuffle(headers)
    return headers


def without_bcc(headers: list[tuple[bytes, str, Any]] | None) -> list[tuple[bytes, str, Any]] | None:
    return None if headers is None else [header for header in headers if header[0] != b"BCC"]


def comparable(properties: pika.BasicProperties) -> dict[str, Any]:
    """All properties, without when it died.

    The deaths before the last are in no order here: RabbitMQ 3.10 turns them round each time, against its document.
    """
    found = dict(vars(properties))
    deaths = (found["headers"] or {}).get("x-death", [])
    for entry in deaths:
        entry.pop("time", None)
    deaths[1:] = sorted(deaths[1:], key=repr)
    return found


def die(channel: Any, queue: str, reason: str) -> None:
    """Have the message of a queue die for that reason."""
    if reason == "rejected":
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=False)
    elif reason == "maxlen":
        channel.basic_publish("", queue, b"the next")
        channel.queue_purge(queue)


def header_with(headers: list[tuple[bytes, str, Any]] | None, expiration: str | None) -> bytes:
    flags, values = 0, b""
    if headers is not None:
        flags, values = 0x2000, written(headers)
    if expiration is not None:
        flags, values = flags | 0x0100, values + bytes([len(expiration)]) + expiration.encode()
    return struct.pack(">HHQH", 60, 0, 0, flags) + values


@pytest.mark.parametrize("seed", range(3))
def test_headers_are_those_of_rabbitmq(channel: Any, seed: int) -> None:
    source = random.Random(seed)
    channel.exchange_declare("dlx", "fanout")
    channel.queue_declare("morgue")
    channel.queue_bind("morgue", "dlx")
    for rekeyed in (False, True):
        for reason in REASONS:
            arguments: dict[str, Any] = {"x-dead-letter-exchange": "dlx"}
            arguments |= {"x-dead-letter-routing-key": "new"} if rekeyed else {}
            arguments |= {"x-message-ttl": 0} if reason == "expired" else {}
            arguments |= {"x-max-length": 1} if reason == "maxlen" else {}
            channel.queue_declare(f"{reason}-{rekeyed:d}", arguments=arguments)
    channel.confirm_delivery()
    for number in range(60):
        rekeyed, reason, headers = source.random() < 0.5, source.choice(REASONS), some_headers(source)
        queue, expiration = f"{reason}-{rekeyed:d}", source.choice([None, "60000"])
        options = {} if expiration is None else {"expiration": expiration}
        properties = pika.BasicProperties(**options)
        if headers is not None:
            properties = Encoded(written(headers), **options)
        channel.basic_publish("", queue, b"%d" % number, properties)
        die(channel, queue, reason)
        letters: list[Any] = []

        def arrived(letters: list[Any] = letters) -> bool:
            letters[:] = channel.basic_get("morgue", auto_ack=True)
            return letters[0] is not None

        eventually(arrived)
        method, found, body = letters
        assert body == b"%d" % number
        compiled = dead_letter_header(
            header_with(without_bcc(headers), expiration), queue=queue.encode(), reason=reason.encode(),
            exchange=b"", key=queue.encode(), rekeyed=rekeyed, time=TIME,
        )  # fmt: skip
        expected = pika.BasicProperties()
        expected.decode(compiled[12:])
        assert method.routing_key == ("new" if rekeyed else queue)
        assert comparable(found) == comparable(expected), (queue, headers)
        assert list(found.headers) == list(expected.headers)


def test_bcc_routes_dead_letters_too(channel: Any) -> None:
    channel.exchange_declare("dlx-direct", "direct")
    channel.queue_declare("dying", arguments={"x-dead-letter-exchange": "dlx-direct"})
    for key in ("copy", "secret"):
        channel.queue_declare(f"for-{key}")
        channel.queue_bind(f"for-{key}", "dlx-direct", key)
    channel.basic_publish("", "dying", b"", pika.BasicProperties(headers={"CC": ["copy"], "BCC": ["secret"]}))
    eventually(lambda: channel.basic_get("dying")[0] is not None)
    channel.basic_nack(requeue=False, multiple=True)
    eventually(lambda: channel.queue_declare("for-copy", passive=True).method.message_count == 1)
    eventually(lambda: channel.queue_declare("for-secret", passive=True).method.message_count == 1)
