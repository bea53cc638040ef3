"""A worker of lanes: writes down when its handlers begin and end, on the clock that all processes share."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time

from fairsched import ConnectionFailed, Consumer, Lanes
from fairsched.cli.exits import CONNECTION
from fairsched.config.queues import thawed
from fairsched.consumer.signals import graceful

#: Longest time for which a handler works, in seconds.
WORK = 0.006


def arguments_of(lanes: Lanes) -> list[str]:
    """Return the arguments of the command line by which a worker has these lanes."""
    options = {"buckets": lanes.buckets, "ordered": lanes.ordered, "arguments": thawed(lanes.arguments or {})}
    return [lanes.name, json.dumps(options)]


def main(url: str, record: str, name: str, options: str) -> None:
    lanes = Lanes(name, key="header:account", **json.loads(options))
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
