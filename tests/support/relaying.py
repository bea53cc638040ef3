"""Runs relays, and looks at what they put into lanes."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pika
from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import Consumer, Lanes
from fairsched.delivery._delivery import Message
from fairsched.lanes.relay import Relay


@contextlib.contextmanager
def running(relay: Relay) -> Iterator[Relay]:
    """Run a relay in a thread; raise at the end what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            relay.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield relay
    finally:
        relay.stop()
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def moves(relay: Relay, count: int) -> None:
    """Run a relay until it has moved so many messages."""
    with running(relay):
        eventually(lambda: relay.stats()["moved"] >= count, 60, f"{count} moved, got {relay.stats()}")


def publish(broker: Broker, queue: str, messages: Iterable[tuple[str, bytes]]) -> None:
    """Publish persistent messages of tenants, each with its body."""
    with broker.connect() as channel:
        raw = channel._impl
        for number, (tenant, body) in enumerate(messages):
            raw.basic_publish("", queue, body, pika.BasicProperties(headers={"tenant": tenant}, delivery_mode=2))
            if number % 500 == 499:
                channel.connection.process_data_events(0)
        channel.queue_declare(queue, passive=True)


def taken(broker: Broker, queue: str) -> list[tuple[Any, bytes]]:
    """Take all messages out of a queue: properties and body of each, in order."""
    return [(message.properties, message.body) for message in taken_messages(broker, queue)]


def taken_messages(broker: Broker, queue: str) -> list[Message]:
    """Take all messages out of a queue, in order."""
    count = broker.count(queue)
    found: list[Message] = []
    with Consumer(broker.url, [queue], prefetch=1000) as consumer:
        while len(found) < count:
            message = consumer.get(20)
            found.append(message)
            message.ack()
        consumer.stop()
    return found


def taken_by_lane(broker: Broker, lanes: Lanes) -> dict[str, list[bytes]]:
    """Take all bodies out of the lanes that exist, the buckets first: a tenant is there before it has its own lane."""
    names = broker.messages()
    found = [name for name in lanes.bucket_names if name in names]
    found += [name for name in names if lanes.is_own_lane(name)]
    return {name: [body for _, body in taken(broker, name)] for name in found}


def by_tenant(bodies: Iterable[bytes]) -> dict[str, list[int]]:
    """Return the numbers of messages ``TENANT:NUMBER`` by tenant, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for body in bodies:
        tenant, _, number = body.decode().rpartition(":")
        found[tenant].append(int(number))
    return dict(found)


def firsts(numbers: list[int]) -> list[int]:
    """Return numbers without those that came before."""
    return list(dict.fromkeys(numbers))


def lasts(numbers: list[int]) -> list[int]:
    """Return numbers without those that come again."""
    return firsts(numbers[::-1])[::-1]
