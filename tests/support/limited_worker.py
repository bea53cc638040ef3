"""A worker under a limit of the group: writes down when its handlers begin and end, on the clock of all processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from fairsched import ConnectionFailed, Consumer, Limit, Tenant
from fairsched.cli.exits import CONNECTION
from fairsched.consumer.signals import graceful


def main(url: str, queue: str, group: str, record: str, limit: str, work: str) -> None:
    concurrency, rate, burst = (int(part) if part else None for part in limit.split(","))
    pause = threading.Event()

    def write(what: str, message: object) -> None:
        # One write, so that a record is whole however the process dies.
        line = f"{what} {message.headers['tenant']} {int(message.body)} {time.monotonic_ns()}\n"
        os.write(descriptor, line.encode())

    def handle(message: object) -> None:
        write("begin", message)
        pause.wait(float(work))
        write("end", message)

    tenants = {"*": Tenant(limit=Limit(concurrency, rate=rate, burst=burst, scope="group"))}
    consumer = Consumer(url, [queue], key="header:tenant", tenants=tenants, share_group=group, workers=4, prefetch=400)
    with graceful(consumer.stop, [signal.SIGTERM]):
        # The file says that the process may be told to stop.
        descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            consumer.run(handle)
        except ConnectionFailed:
            sys.exit(CONNECTION)


if __name__ == "__main__":
    main(*sys.argv[1:])
