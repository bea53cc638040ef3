"""What a message costs a client that takes batches, as lists and as Arrow, beside pika's callback without acks.

Usage: python benchmarks/bench_batches.py CLIENT PORT MESSAGES QUEUE

consumes from a broker on this machine, and prints microseconds of processor time and of wall time a message as JSON. As
a benchmark, each client runs in a process of its own, in turn, fed by a broker that does nothing else
(loopback/feeder.c). Ours acknowledge each message, pika's none.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from delivery_clients import Meter
from interleave import record
from loopback import Loopback

ROUNDS = 5
SIZE = 256
#: As many as eight batches, so that the broker is never waited for.
PREFETCH = 8 * SIZE


def take(meter: Meter, url: str, queue: str, make: Callable[[Any], Any]) -> None:
    from fairsched import Consumer

    taken = 0
    with Consumer(url, [queue], prefetch=PREFETCH) as consumer:
        for batch in make(consumer):
            with batch:
                taken += len(batch)
            if meter.skipped <= taken < meter.skipped + SIZE:
                meter.begin()
            elif taken >= meter.skipped + meter.measured:
                meter.end()


def batches(meter: Meter, url: str, queue: str) -> None:
    take(meter, url, queue, lambda consumer: consumer.batches(SIZE, 0.01))


def arrow(meter: Meter, url: str, queue: str) -> None:
    take(meter, url, queue, lambda consumer: consumer.arrow_batches(SIZE, 0.01))


def arrow_header(meter: Meter, url: str, queue: str) -> None:
    take(
        meter, url, queue,
        lambda consumer: consumer.arrow_batches(SIZE, 0.01, headers=["x-tenant"], properties=["message_id"]),
    )  # fmt: skip


def pika_auto(meter: Meter, url: str, queue: str) -> None:
    import pika

    count = meter.counter()

    def on_message(_channel: Any, _method: Any, _properties: Any, _body: bytes) -> None:
        count()

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_consume(queue, on_message, auto_ack=True)
    channel.start_consuming()


#: With how many messages each takes.
CLIENTS: dict[str, tuple[Callable[[Meter, str, str], None], int]] = {
    "batches": (batches, 1_000_000),
    "arrow": (arrow, 1_000_000),
    "arrow-header": (arrow_header, 1_000_000),
    "pika-auto": (pika_auto, 40_000),
}


def measure(port: int, client: str, queue: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, client, str(port), str(CLIENTS[client][1]), queue],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{client} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("payload", ["100.minimal", "1024.rich"])
def test_processor_time_a_message(benchmark: Any, loopback: Loopback, payload: str) -> None:
    names = [name for name in CLIENTS if payload == "1024.rich" or name != "arrow-header"]
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            samples[name].append(measure(loopback.port, name, f"{payload}.0"))
    cpu = {name: statistics.median(one["cpu_us"] for one in found) for name, found in samples.items()}
    ours = [name for name in names if name != "pika-auto"]
    bars: dict[str, tuple[float, str, float]] = {
        f"pika's auto-ack callback : {name} of {SIZE}, client CPU a message, {payload}": (
            cpu["pika-auto"] / cpu[name], ">=", 40.0,
        )
        for name in ours
    }  # fmt: skip
    bars |= {f"{name} of {SIZE}, million messages a second of CPU, {payload}": (1 / cpu[name], ">=", 0.7)
             for name in ours}  # fmt: skip
    record(benchmark, bars, **{f"{name}, us": value for name, value in cpu.items()})
    benchmark.pedantic(measure, args=(loopback.port, "batches", f"{payload}.0"), rounds=1)


if __name__ == "__main__":
    chosen, at, messages, name = sys.argv[1:]
    CLIENTS[chosen][0](Meter(int(messages)), f"amqp://guest:guest@127.0.0.1:{at}/%2F", name)
