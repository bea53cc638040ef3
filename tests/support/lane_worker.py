"""A worker of lanes: writes down when its handlers begin and end, on the clock that all processes share."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

from fairsched import ConnectionFailed, Consumer, Lanes
from fairsched.cli.exits import CONNECTION
from fairsched.consumer.signals import graceful

#: Longest time for which a handler works, in seconds.
WORK = 0.006
#: Arguments of lanes that are quorum queues. Each kill counts as a delivery of all that a worker has, and from RabbitMQ
#: 4.0 on a message would be dropped at the 21st; -1, no limit, has 3.10 drop what is delivered twice.
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}


def lanes_of(name: str, buckets: int, kind: str) -> Lanes:
    """Return lanes of a kind: ordered or unordered, with -quorum if they are quorum queues."""
    order, _, queues = kind.partition("-")
    arguments = QUORUM if queues == "quorum" else None
    return Lanes(name, key="header:account", ordered=order == "ordered", buckets=buckets, arguments=arguments)


def main(url: str, name: str, buckets: str, record: str, kind: str) -> None:
    lanes = lanes_of(name, int(buckets), kind)
    pause = threading.Event()

    def write(what: str, message: object) -> None:
        # One write, so that a record is whole however the process dies.
        line = f"{what} {message.headers['account']} {int(message.body)} {time.monotonic_ns()}\n"
        os.write(descriptor, line.encode())

    def handle(message: object) -> None:
        write("begin", message)
        pause.wait(random.random() * WORK)
        write("end", message)

    consumer = Consumer(url, lanes, workers=4)
    with graceful(consumer.stop, [signal.SIGTERM]):
        # The file says that the process may be told to stop.
        descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            consumer.run(handle)
        except ConnectionFailed:
            sys.exit(CONNECTION)


if __name__ == "__main__":
    main(*sys.argv[1:])
