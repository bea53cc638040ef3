"""Retries by copies and by the queue's own delays: processor time of the broker, and of the consumer, for each retry.

Usage: FAIRSCHED_TEST_BROKER=rabbitmq-4.3 python benchmarks/bench_retries.py [--messages N]

Messages of 1 kB in a quorum queue fail twice and then succeed. Both ways take turns on one node of RabbitMQ 4.3.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import Consumer, Publisher, Queue, Retry

BODY = b"x" * 1000
FAILURES = 2
RETRY = Retry(FAILURES + 1, backoff=1, jitter=False, dead_letter=False)
ARGUMENTS = {"copies": {"x-queue-type": "quorum"}, "delayed": RETRY.queue_arguments}
MESSAGES, ROUNDS = 5_000, 3
TICK = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """Microseconds of processor time for each retry, and queues that it made."""

    broker_us: float
    consumer_us: float
    queues: int


def broker_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def consume(node: Node, way: str, count: int) -> Used:
    """Have each of so many messages fail and succeed, and measure it."""
    queue = Queue(f"bench-{way}", arguments=ARGUMENTS[way], retry=RETRY)
    node.declare(queue.name, arguments=queue.all_arguments)
    with Publisher(node.url) as publisher:
        for number in range(count):
            publisher.publish(BODY, queue.name, message_id=str(number), delivery_mode=2)
    calls: Counter[str] = Counter()

    def handler(message: Any) -> None:
        number = message.properties.message_id
        calls[number] += 1
        if calls[number] <= FAILURES:
            raise OSError("not yet")

    [pid] = map(int, re.findall(r"\d+", node.evaluate("os:getpid().")))
    consumer = Consumer(node.url, [queue])
    broker, own = broker_seconds(pid), own_seconds()
    thread = threading.Thread(target=consumer.run, args=[handler])
    thread.start()
    eventually(lambda: calls.total() == count * (FAILURES + 1), 300)
    eventually(lambda: node.left(queue.name) == 0)
    retries = count * FAILURES
    found = Used(1e6 * (broker_seconds(pid) - broker) / retries, 1e6 * (own_seconds() - own) / retries, 0)
    consumer.stop()
    thread.join()
    made = [name for name in node.messages() if name.startswith(f"{queue.name}.")]
    node.delete(queue.name, *made)
    return found._replace(queues=len(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    count = parser.parse_args().messages
    measured: dict[str, list[Used]] = {way: [] for way in ARGUMENTS}
    with Node() as node:
        if node.version < (4, 3):
            sys.exit(f"needs RabbitMQ 4.3: FAIRSCHED_TEST_BROKER=rabbitmq-4.3, got {node.version}")
        for _ in range(ROUNDS):
            for way, found in measured.items():
                found.append(consume(node, way, count))
    for way, found in measured.items():
        print(
            f"{way:8} broker {statistics.median(one.broker_us for one in found):7.1f} us a retry, "
            f"consumer {statistics.median(one.consumer_us for one in found):7.1f} us, queues made {found[0].queues}"
        )
    broker = {way: statistics.median(one.broker_us for one in found) for way, found in measured.items()}
    print(f"broker, delayed : copies = {broker['delayed'] / broker['copies']:.2f}")


if __name__ == "__main__":
    main()
