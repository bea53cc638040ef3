"""The publisher beside pika and librabbitmq: the client's CPU for a confirmed message, at a loop-back peer.

The peer, `loopback/feeder.c`, confirms every message singly and does nothing with it. All sides publish messages of 100
bytes with confirms, at most 2000 ahead of them: ours with `publish` and `flush`, pika by `SelectConnection` and
asynchronous confirms, which is its fastest way, and librabbitmq in rounds of 2000, as its example does. What is
compared is user and system time of the process.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from interleave import record
from loopback import Loopback

from fairsched import Publisher

BODY = b"x" * 100
WINDOW = 2000
COUNT, PIKAS = 200_000, 40_000
ROUNDS = 5


def ours(loopback: Loopback) -> float:
    with Publisher(url(loopback), confirm_window=WINDOW) as publisher:
        publisher.publish(BODY, "q").result(30)
        begin = cpu_seconds()
        for _ in range(COUNT):
            publisher.publish(BODY, "q", delivery_mode=1)
        publisher.flush()
        return (cpu_seconds() - begin) / COUNT * 1e6


def pikas(loopback: Loopback) -> float:
    return PikaRun(url(loopback)).cpu / PIKAS * 1e6


def librabbitmq(loopback: Loopback) -> float:
    return loopback.publish("q", COUNT, len(BODY), WINDOW)["cpu_us"]


def url(loopback: Loopback) -> str:
    return f"amqp://guest:guest@127.0.0.1:{loopback.port}/%2F"


class PikaRun:
    """Asynchronous confirms: whenever some arrive, as many more are published."""

    def __init__(self, url: str) -> None:
        self.cpu = 0.0
        self._begin = 0.0
        self._published = self._confirmed = 0
        self._properties = pika.BasicProperties(delivery_mode=1)
        self._connection = pika.SelectConnection(pika.URLParameters(url), on_open_callback=self._on_open)
        self._connection.ioloop.start()
        self._connection.ioloop.close()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, lambda _frame: self._start())

    def _start(self) -> None:
        self._begin = cpu_seconds()
        self._fill()

    def _fill(self) -> None:
        while self._published < PIKAS and self._published - self._confirmed < WINDOW:
            self._channel.basic_publish("", "q", BODY, self._properties, True)
            self._published += 1

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        self._confirmed = max(self._confirmed, tag)
        if self._confirmed == PIKAS:
            self.cpu = cpu_seconds() - self._begin
            self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
            self._connection.close()
        elif self._published - self._confirmed <= WINDOW // 2:
            self._fill()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as found:
        yield found


@pytest.mark.timeout(600)
def test_publisher_beside_pika_and_librabbitmq(benchmark: Any, loopback: Loopback) -> None:
    """Client CPU for a confirmed message of 100 bytes, window 2000."""
    sides: dict[str, Callable[[Loopback], float]] = {"ours": ours, "pika": pikas, "librabbitmq": librabbitmq}
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, run in sides.items():
            samples[name].append(run(loopback))
    cpu = {name: statistics.median(found) for name, found in samples.items()}
    record(
        benchmark,
        {
            "publisher : pika's asynchronous confirms, client CPU a message": (cpu["ours"] / cpu["pika"], "<=", 1 / 8),
            "publisher : librabbitmq, client CPU a message": (cpu["ours"] / cpu["librabbitmq"], "<=", 1.5),
        },
        **{f"{name}_cpu_us": found for name, found in cpu.items()},
    )
    benchmark.pedantic(ours, args=(loopback,), rounds=1)
