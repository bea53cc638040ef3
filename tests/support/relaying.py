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

from fairsched import Lanes
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
    with broker.connect() as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
        found: list[tuple[Any, bytes]] = []
        if count:
            for method, properties, body in channel.consume(queue, inactivity_timeout=20):
                assert method is not None, f"{count - len(found)} messages of {queue} did not come"
                found.append((properties, body))
                if len(found) == count:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                    break
            channel.cancel()
    return found


def taken_by_lane(broker: Broker, lanes: Lanes) -> dict[str, list[bytes]]:
    """Take all bodies out of the lanes that exist."""
    names = [name for name in broker.messages() if name in lanes.bucket_names or lanes.is_own_lane(name)]
    return {name: [body for _, body in taken(broker, name)] for name in names}


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
