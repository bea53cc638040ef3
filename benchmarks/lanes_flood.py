"""How long quiet tenants wait while a million messages of another are queued: ``python benchmarks/lanes_flood.py``.

One tenant's flood is in the ingress queue before anything runs. Then worker processes consume the lanes, each with at
most 48 messages buffered and a handler of a millisecond, and a relay moves the ingress queue. Once the flood is spread,
a thousand other tenants publish a message each into the ingress queue, at random times. Their waits are counted from
there to the begin of the handler, so the relay is included. With ``--without``, the same workers consume the ingress
queue itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pika

from fairsched import Broker, Consumer, Lanes, Publisher

#: Seconds that a handler takes, and how long the experiment waits for anything.
SERVICE, PATIENCE = 0.001, 600.0
#: Weights of the tenants whose shares are compared.
WEIGHTS = {"flood": 1, "gold": 4, "silver": 2}


def work(url: str, queues: Any, prefetch: int, pipe: Connection) -> None:
    """Handle messages until told to stop, then send when each was handled, whose it was, and how long it had waited."""
    handled: list[tuple[float, str, float]] = []

    def handle(message: Any) -> None:
        now = time.time()
        handled.append((now, message.slot, now - float(message.body)))
        time.sleep(SERVICE)

    consumer = Consumer(url, queues, key="header:tenant", tenants=WEIGHTS, prefetch=prefetch)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop(now=True))
    consumer.run(handle)
    pipe.send(handled)


class Workers:
    """Processes that consume; `stop` returns what they handled."""

    def __init__(self, url: str, queues: Any, count: int, prefetch: int) -> None:
        start = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = start.Pipe(duplex=False)
            process = start.Process(target=work, args=(url, queues, prefetch, theirs))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def stop(self) -> list[tuple[float, str, float]]:
        """Stop the workers."""
        for process in self._processes:
            process.terminate()
        found = [row for pipe in self._pipes for row in pipe.recv()]
        for process in self._processes:
            process.join()
        return sorted(found)


@contextlib.contextmanager
def relay(url: str, lanes: Lanes) -> Iterator[None]:
    """Run ``fairsched spread``."""
    command = [sys.executable, "-m", "fairsched.cli", "spread", lanes.name, "--key", lanes.key, "--url", url]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextlib.contextmanager
def channel(url: str) -> Iterator[Any]:
    """Yield a channel of a connection of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def waiting(url: str, queue: str) -> int:
    """Return the number of messages that are ready in a queue."""
    with channel(url) as asked:
        return int(asked.queue_declare(queue, passive=True).method.message_count)


def publish_flood(publisher: Publisher, queue: str, counts: dict[str, int]) -> None:
    """Publish the messages of a few tenants, mixed."""
    left = dict(counts)
    while left:
        for tenant in list(left):
            publisher.publish(b"%r" % time.time(), queue, headers={"tenant": tenant})
            left[tenant] -= 1
            if not left[tenant]:
                del left[tenant]


def publish_quietly(publisher: Publisher, queue: str, tenants: int, seconds: float) -> None:
    """Publish a message of each quiet tenant, at random times."""
    draw = random.Random(1)
    begin = time.time()
    for at, tenant in sorted((draw.uniform(0, seconds), number) for number in range(tenants)):
        time.sleep(max(0.0, begin + at - time.time()))
        publisher.publish(b"%r" % time.time(), queue, headers={"tenant": f"quiet-{tenant}"})


def measure(url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run the experiment."""
    lanes = Lanes(f"flood.{uuid.uuid4().hex[:8]}", key="header:tenant")
    counts = dict.fromkeys(WEIGHTS if chosen.shares else ["flood"], chosen.flood)
    figures: dict[str, Any] = {}
    with Publisher(url, mandatory=True) as publisher, contextlib.ExitStack() as stack:
        with channel(url) as declaring:
            declaring.queue_declare(lanes.name, durable=True)
        publish_flood(publisher, lanes.name, counts)
        publisher.flush()
        begin = time.time()
        workers = Workers(url, [lanes.name] if chosen.without else lanes, chosen.workers, chosen.prefetch)
        if not chosen.without:
            stack.enter_context(relay(url, lanes))
            while waiting(url, lanes.name) > 0 and time.time() - begin < PATIENCE:
                time.sleep(0.1)
            figures["spread_in"] = time.time() - begin
        spread = time.time()
        publish_quietly(publisher, lanes.name, chosen.tenants, chosen.seconds)
        publisher.flush()
        time.sleep(chosen.after)
        handled = workers.stop()
    waits = [wait for _, tenant, wait in handled if tenant.startswith("quiet")]
    figures["quiet"] = {"published": chosen.tenants, "handled": len(waits)}
    if waits:
        figures["quiet"] |= dict(zip(("p50", "p99", "longest"), np.quantile(waits, (0.5, 0.99, 1)), strict=True))
    served = {one: sum(tenant == one and at > spread for at, tenant, _ in handled) for one in counts}
    figures["served"], figures["rate"] = served, sum(at > spread for at, *_ in handled) / (time.time() - spread)
    with channel(url) as asked:
        for queue in (lanes.name, *lanes.bucket_names, *map(lanes.own_lane_of, counts), lanes.registry):
            asked.queue_delete(queue)
        asked.exchange_delete(lanes.registry)
    return figures


def main() -> None:
    """Run the experiment and print its figures."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--url", help="the broker; by default an embedded one")
    options.add_argument("--flood", type=int, default=1_000_000)
    options.add_argument("--tenants", type=int, default=1000)
    options.add_argument("--workers", type=int, default=3)
    options.add_argument("--prefetch", type=int, default=48)
    options.add_argument("--seconds", type=float, default=10.0, help="in which the quiet tenants publish")
    options.add_argument("--after", type=float, default=2.0, help="seconds for which the workers go on then")
    options.add_argument("--shares", action="store_true", help="three tenants flood, with weights 1, 2 and 4")
    options.add_argument("--without", action="store_true", help="no lanes: the workers consume the ingress queue")
    chosen = options.parse_args()
    with contextlib.ExitStack() as stack:
        url = chosen.url or stack.enter_context(Broker()).url
        print(json.dumps(measure(url, chosen), indent=1))


if __name__ == "__main__":
    main()
