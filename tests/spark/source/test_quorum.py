"""Quorum queues with a delivery limit: nothing that the source does in plain operation reaches it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.running import Driver
from support.waiting import eventually

pytestmark = [pytest.mark.rabbitmq("quorum queues with a delivery limit"), pytest.mark.slow]

LIMITS = (1, 2, 3, 5, 20)
LARGEST = 8 << 20
#: Bytes of a session's messages, together, and messages of a queue.
MOST_BYTES, MOST_MESSAGES = 96 << 20, 3000
#: Sessions for each limit; FAIRSCHED_QUORUM_SESSIONS=20 is the long form.
SESSIONS = int(os.environ.get("FAIRSCHED_QUORUM_SESSIONS", "1"))
#: Seconds after which the broker has the answer to everything.
PATIENCE = 60.0


def sizes_of(chance: random.Random) -> Iterator[int]:
    """Sizes of bodies that vary in one of several ways, for ever."""
    kind = chance.choice(["bursts", "any", "rare", "steps"])
    large = chance.choice([10_000, 300_000, 1 << 20, LARGEST])
    number = 0
    while True:
        number += 1
        if kind == "any":
            yield chance.randint(0, large)
        elif kind == "bursts":
            yield large if number % 200 >= 150 else chance.randint(0, 60)
        elif kind == "rare":
            yield large if chance.random() < 0.02 else chance.randint(0, 300)
        else:
            yield large >> (4 * (number // 50 % 4))


def fill(broker: Node, names: list[str], chance: random.Random) -> list[str]:
    """Publish messages whose sizes vary, and return their ids."""
    ids: list[str] = []
    body = os.urandom(LARGEST)
    with broker.connect() as channel:
        channel.tx_select()
        for name in names:
            left, under_way = MOST_BYTES // len(names), 0
            for number, size in zip(range(MOST_MESSAGES), sizes_of(chance), strict=False):
                left -= size
                if left < 0:
                    break
                ids.append(f"{name}/{number}")
                properties = pika.BasicProperties(
                    message_id=ids[-1], delivery_mode=2, headers={"tenant": chance.choice("aaaaabc")}
                )
                channel.basic_publish("", name, body[:size], properties)
                under_way += size
                if number % 500 == 499 or under_way > 16 << 20:
                    channel.tx_commit()
                    under_way = 0
            channel.tx_commit()
    return ids


def options_for(chance: random.Random, limit: int) -> dict[str, object]:
    """Options of a query, at random."""
    ahead = chance.choice([1, 1, 2, 5, 20])
    found: dict[str, object] = {
        "numPartitions": chance.randint(1, 3),
        "queueAssignment": chance.choice(["affinity", "split", "split-large"]),
        "maxMessagesPerTrigger": chance.choice([300, 1000, 10_000, 100_000]),
        "maxBytesPerTrigger": chance.choice([0, 1 << 20, 2 << 20, 16 << 20, 256 << 20]),
        "pollTimeout": "300ms",
    }
    if ahead > 1:
        found |= {"fairKey": "header:tenant", "fairLookahead": ahead, "maxReturns": chance.randint(0, limit)}
    return found


@pytest.mark.parametrize("session", range(SESSIONS))
@pytest.mark.parametrize("limit", LIMITS)
def test_sizes_that_vary_lose_nothing_and_repeat_nothing(
    limit: int, session: int, broker: Node, queues: DeclareAll, driver: Callable[..., Driver], record_property: Any
) -> None:
    chance = random.Random(f"{limit}/{session}")
    [dead] = queues(1)
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": limit,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    names = queues(chance.randint(1, 3), arguments=arguments)
    expected = fill(broker, names, chance)
    options = options_for(chance, limit)
    one = driver(names, **options)
    seen: Counter[str] = Counter()
    redelivered = 0
    for rows in one.batches():
        seen.update(row["message_id"] for row in rows)
        redelivered += sum(row["redelivered"] for row in rows)
    lost, repeated = set(expected) - set(seen), {name: count for name, count in seen.items() if count > 1}
    record_property("accounting", (len(expected), len(lost), len(repeated), redelivered))
    print(f"limit {limit}, session {session}: {len(expected)} messages, {len(lost)} lost, {len(repeated)} repeated, "
          f"{redelivered} redelivered; {options}")  # fmt: skip
    assert (len(lost), len(repeated), broker.count(dead)) == (0, 0, 0)
    if "fairLookahead" not in options:
        assert redelivered == 0
    eventually(lambda: broker.left(*names) == 0, PATIENCE)


def test_the_last_of_many_settlements_are_not_forgotten(
    broker: Node, queues: DeclareAll, driver: Callable[..., Driver]
) -> None:
    """RabbitMQ keeps back what it has no room for, and forgets it when the channel closes."""
    for _ in range(4):
        [name] = queues(1, arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})
        chance = random.Random(name)
        with broker.connect() as channel:
            channel.tx_select()
            for number in range(2000):
                properties = pika.BasicProperties(
                    message_id=str(number), delivery_mode=2, headers={"tenant": chance.choice("aaaaabc")}
                )
                channel.basic_publish("", name, b"x", properties)
            channel.tx_commit()
        one = driver([name], fairKey="header:tenant", fairLookahead=4, maxReturns=3, maxMessagesPerTrigger=300,
                     pollTimeout="300ms", failOnDataLoss="false")  # fmt: skip
        seen = Counter(row["message_id"] for rows in one.batches() for row in rows)
        assert seen == Counter(map(str, range(2000)))
        eventually(lambda name=name: broker.left(name) == 0)
