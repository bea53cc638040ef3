"""Clients that take messages and acknowledge each: ours, and those that others use. Run in a process of its own.

Usage: python benchmarks/delivery_clients.py CLIENT PORT MESSAGES QUEUE...

Connects to a broker on this machine, and prints microseconds of processor time (user and system, all threads) and of
wall time a message as JSON, from a tenth of the messages on: what importing and connecting cost is not asked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

PREFETCH = 250
#: Called for a message, or without.
Count = Callable[..., None]


def weights(queues: Sequence[str]) -> dict[str, int]:
    """4, 8, 12, …: those of the article."""
    return {queue: 4 * number for number, queue in enumerate(queues, 1)}


# Measuring ------------------------------------------------------------------------------------------------------------


class Meter:
    """Measures from one moment to another, and ends the process."""

    def __init__(self, messages: int) -> None:
        self.skipped = messages // 10
        self.measured = messages - self.skipped
        #: What a thread beside the consumer has counted up to.
        self.computed = [0]

    def begin(self) -> None:
        self._begun = self._now()

    def end(self) -> None:
        wall, cpu, computed = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        found = {"cpu_us": cpu / self.measured * 1e6, "wall_us": wall / self.measured * 1e6}
        print(json.dumps({**found, "computed_s": computed / wall}), flush=True)
        # No client is asked how it ends.
        os._exit(0)

    def _now(self) -> tuple[float, float, int]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), used.ru_utime + used.ru_stime, self.computed[0]

    def counter(self) -> Count:
        """Return what is to be called for each message, at as little cost as Python can."""
        handled, mark = 0, self.skipped

        def count(_message: object = None) -> None:
            nonlocal handled, mark
            handled += 1
            if handled == mark:
                if mark == self.skipped:
                    self.begin()
                    mark += self.measured
                else:
                    self.end()

        return count

    def compute_beside(self) -> None:
        """Have another thread compute from now on."""

        def compute() -> None:
            computed = self.computed
            while True:
                computed[0] += 1

        threading.Thread(target=compute, daemon=True).start()


# Ours -----------------------------------------------------------------------------------------------------------------


def options(queues: Sequence[str]) -> dict[str, Any]:
    return {"queues": weights(queues), "prefetch": dict.fromkeys(queues, PREFETCH)}


def iterate(meter: Meter, url: str, queues: Sequence[str], **more: Any) -> None:
    from fairsched import Consumer

    with Consumer(url, **options(queues), **more) as consumer:
        messages = iter(consumer)
        for message in itertools.islice(messages, meter.skipped):
            message.ack()
        meter.begin()
        for message in itertools.islice(messages, meter.measured):
            message.ack()
        meter.end()


def iterate_tenants(meter: Meter, url: str, queues: Sequence[str]) -> None:
    iterate(meter, url, queues, key="header:x-tenant")


def iterate_beside(meter: Meter, url: str, queues: Sequence[str]) -> None:
    meter.compute_beside()
    iterate(meter, url, queues)


def run(meter: Meter, url: str, queues: Sequence[str], **more: Any) -> None:
    from fairsched import Consumer

    Consumer(url, **options(queues), **more).run(meter.counter())


def run_with_retry(meter: Meter, url: str, queues: Sequence[str]) -> None:
    from fairsched import Retry

    run(meter, url, queues, retry=Retry())


def run_with_middleware(meter: Meter, url: str, queues: Sequence[str]) -> None:
    run(meter, url, queues, middleware=[lambda message, call_next: call_next(message)])


def run_with_decode(meter: Meter, url: str, queues: Sequence[str]) -> None:
    run(meter, url, queues, decode=len)


def run_with_time_limit(meter: Meter, url: str, queues: Sequence[str]) -> None:
    run(meter, url, queues, time_limit=60)


def run_beside(meter: Meter, url: str, queues: Sequence[str]) -> None:
    meter.compute_beside()
    run(meter, url, queues)


#: Reads a page each second, until nobody serves it.
SCRAPER = """
import sys, time, urllib.request
try:
    while urllib.request.urlopen(sys.argv[1]).read():
        time.sleep(1)
except OSError:
    pass
"""


def computing(count: Count) -> Count:
    """Return a handler that computes for 20 microseconds, and counts."""

    def handle(_message: object) -> None:
        end = time.perf_counter() + 20e-6
        while time.perf_counter() < end:
            pass
        count()

    return handle


def run_busy(meter: Meter, url: str, queues: Sequence[str]) -> None:
    from fairsched import Consumer

    Consumer(url, **options(queues)).run(computing(meter.counter()))


def run_busy_scraped(meter: Meter, url: str, queues: Sequence[str]) -> None:
    run_scraped(meter, url, queues, computing(meter.counter()))


def run_scraped(meter: Meter, url: str, queues: Sequence[str], handler: Count | None = None) -> None:
    """As `run`, and Prometheus asks for the metrics once a second, by HTTP."""
    from prometheus_client import CollectorRegistry, start_http_server

    from fairsched import Consumer
    from fairsched.metrics import collector

    registry, consumer = CollectorRegistry(), Consumer(url, **options(queues))
    registry.register(collector(consumer))
    server, _ = start_http_server(0, "127.0.0.1", registry)
    subprocess.Popen([sys.executable, "-c", SCRAPER, f"http://127.0.0.1:{server.server_port}/metrics"])
    consumer.run(handler or meter.counter())


def aio_iterate(meter: Meter, url: str, queues: Sequence[str]) -> None:
    from fairsched import aio

    async def consume() -> None:
        count = meter.counter()
        async with aio.Consumer(url, **options(queues)) as consumer:
            async for message in consumer:
                message.ack()
                count()

    asyncio.run(consume())


def aio_run(meter: Meter, url: str, queues: Sequence[str]) -> None:
    from fairsched import aio

    count = meter.counter()

    async def handler(_message: Any) -> None:
        count()

    async def consume() -> None:
        async with aio.Consumer(url, **options(queues)) as consumer:
            await consumer.run(handler)

    asyncio.run(consume())


# Those of others ------------------------------------------------------------------------------------------------------


def select_connection(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import pika

    count = meter.counter()

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        count()

    def on_channel(channel: Any) -> None:
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(queues[0], on_message)

    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel)
    )
    connection.ioloop.start()


def blocking_connection(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import pika

    count = meter.counter()

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        count()

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.basic_consume(queues[0], on_message)
    channel.start_consuming()


def article(meter: Meter, url: str, queues: Sequence[str]) -> None:
    from peers import consume_as_the_article

    count = meter.counter()

    def handle(_queue: str) -> bool:
        count()
        return True

    consume_as_the_article(url, weights(queues), handle)


def kombu(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import kombu

    count = meter.counter()

    def on_message(message: Any) -> None:
        message.ack()
        count()

    with kombu.Connection(url.replace("amqp://", "pyamqp://")) as connection:
        queue = kombu.Queue(queues[0], no_declare=True)
        with connection.Consumer(queue, on_message=on_message, prefetch_count=PREFETCH):
            while True:
                connection.drain_events()


def aio_pika(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import aio_pika

    async def consume() -> None:
        count = meter.counter()
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(queues[0])
        async with queue.iterator() as messages:
            async for message in messages:
                await message.ack()
                count()

    asyncio.run(consume())


def aiormq(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import aiormq

    async def consume() -> None:
        count = meter.counter()
        connection = await aiormq.connect(url)
        channel = await connection.channel()
        await channel.basic_qos(prefetch_count=PREFETCH)

        async def on_message(message: Any) -> None:
            await channel.basic_ack(message.delivery_tag)
            count()

        await channel.basic_consume(queues[0], on_message)
        await asyncio.Event().wait()

    asyncio.run(consume())


def amqpstorm(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import amqpstorm

    count = meter.counter()

    def on_message(message: Any) -> None:
        message.ack()
        count()

    with amqpstorm.UriConnection(url) as connection, connection.channel() as channel:
        channel.basic.qos(PREFETCH)
        channel.basic.consume(on_message, queues[0])
        channel.start_consuming()


def rabbitpy(meter: Meter, url: str, queues: Sequence[str]) -> None:
    import rabbitpy

    count = meter.counter()
    with rabbitpy.Connection(url) as connection, connection.channel() as channel:
        for message in rabbitpy.Queue(channel, queues[0]).consume(prefetch=PREFETCH):
            message.ack()
            count()


CLIENTS: dict[str, Callable[[Meter, str, Sequence[str]], None]] = {
    "iterator": iterate,
    "iterator-tenants": iterate_tenants,
    "iterator-beside": iterate_beside,
    "run": run,
    "run-beside": run_beside,
    "run-scraped": run_scraped,
    "run-busy": run_busy,
    "run-busy-scraped": run_busy_scraped,
    "run-retry": run_with_retry,
    "run-middleware": run_with_middleware,
    "run-decode": run_with_decode,
    "run-time-limit": run_with_time_limit,
    "aio": aio_iterate,
    "aio-run": aio_run,
    "pika-select": select_connection,
    "pika-blocking": blocking_connection,
    "article": article,
    "kombu": kombu,
    "aio-pika": aio_pika,
    "aiormq": aiormq,
    "amqpstorm": amqpstorm,
    "rabbitpy": rabbitpy,
}


def main(client: str, port: str, messages: str, *queues: str) -> None:
    CLIENTS[client](Meter(int(messages)), f"amqp://guest:guest@127.0.0.1:{port}/%2F", queues)


if __name__ == "__main__":
    main(*sys.argv[1:])
