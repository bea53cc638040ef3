"""The relay from an ingress queue to lanes: messages a second, and the client's processor time for each.

Usage: python benchmarks/bench_spread.py [--messages N] [--window N] [--only embedded|RabbitMQ]

prints both on the embedded broker and on RabbitMQ, each in processes of its own. Messages of 100 bytes of a thousand
tenants are in the ingress queue; the time is that from the first one moved to the last one confirmed and acknowledged,
and the processor time that of the relay's process without its start.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interleave import record
from support.rabbitmq import Broker, EmbeddedNode, Node

from fairsched import Lanes, Publisher
from fairsched.lanes.relay import Relay

BODY = b"x" * 100
TENANTS = 1000
BROKERS: dict[str, type[EmbeddedNode | Node]] = {"embedded": EmbeddedNode, "RabbitMQ": Node}
MESSAGES = {"embedded": 300_000, "RabbitMQ": 100_000}
ROUNDS = 3
WINDOW = 2000


class Measured(NamedTuple):
    """Messages a second, and microseconds of the relay's processor time for each."""

    rate: float
    cpu_us: float


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fill(broker: Broker, queue: str, count: int) -> None:
    with Publisher(broker.url, confirm_window=20_000) as publisher:
        for number in range(count):
            headers = {"tenant": f"tenant-{number % TENANTS}"}
            publisher.publish(BODY, queue, headers=headers, delivery_mode=1)


def move(broker: Broker, count: int, window: int = WINDOW) -> Measured:
    """Move messages, and measure it."""
    broker.declare("orders")
    fill(broker, "orders", count)
    relay = Relay(broker.url, Lanes("orders", key="header:tenant"), window=window)
    found: list[Measured] = []

    def watch() -> None:
        while relay.stats()["moved"] == 0:
            time.sleep(0.001)
        moved, began, used = relay.stats()["moved"], time.monotonic(), cpu_seconds()
        while relay.stats()["moved"] < count:
            time.sleep(0.02)
        left = count - moved
        found.append(Measured(left / (time.monotonic() - began), (cpu_seconds() - used) / left * 1e6))
        relay.stop()

    watching = threading.Thread(target=watch)
    watching.start()
    relay.run()
    watching.join()
    broker.delete("orders", *relay.lanes.bucket_names)
    return found[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", BROKERS)
def test_relay(benchmark: Any, kind: str) -> None:
    """Move messages of 100 bytes to sixteen lanes, with confirms."""
    with BROKERS[kind]() as broker:
        found = [move(broker, MESSAGES[kind]) for _ in range(ROUNDS)]
        rate, cpu = (statistics.median(one) for one in zip(*found, strict=True))
        record(
            benchmark,
            {
                f"relay : msg/s, {kind}": (rate / 30_000, ">=", 1.0),
                f"relay : CPU a message, {kind}": (cpu / 3.0, "<=", 1.0),
            },
            rates=[one.rate for one in found],
            cpu_us=[one.cpu_us for one in found],
        )
        benchmark.pedantic(move, args=(broker, MESSAGES[kind]), rounds=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--only", choices=BROKERS)
    given = parser.parse_args()
    for kind in [given.only] if given.only else BROKERS:
        with BROKERS[kind]() as broker:
            for _ in range(ROUNDS):
                found = move(broker, given.messages or MESSAGES[kind], given.window)
                print(f"{kind:9} {found.rate:9,.0f} msg/s {found.cpu_us:6.2f} us of processor time a message")


if __name__ == "__main__":
    main()
