"""A worker under a limit of the group: writes down when its handlers begin and end, on the clock of all processes.

It logs to stderr, and, for each line that it reads, what it waits for.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace

from fairsched import ConnectionFailed, Consumer, Limit, Tenant
from fairsched.cli.exits import CONNECTION
from fairsched.consumer.signals import graceful

#: The line after all that the worker says about what it waits for.
EXPLAINED = "that is all"


#: Tenants that have a limit together, if there is one.
NAMED = [f"t{number}" for number in range(20)]


def limit_of(text: str) -> Limit:
    """Return the limit of the group that a text of concurrency, rate and burst says."""
    concurrency, rate, burst = (int(part) if part else None for part in text.split(","))
    return Limit(concurrency, rate=rate, burst=burst, scope="group")


def main(url: str, queue: str, group: str, record: str, limit: str, work: str) -> None:
    own, named, total = (one and limit_of(one) for one in limit.split("/"))
    pause = threading.Event()

    def write(what: str, message: object) -> None:
        # One write, so that a record is whole however the process dies.
        line = f"{what} {message.headers['tenant']} {int(message.body)} {time.monotonic_ns()}\n"
        os.write(descriptor, line.encode())

    def handle(message: object) -> None:
        write("begin", message)
        pause.wait(float(work))
        write("end", message)

    def explain() -> None:
        for _ in sys.stdin:
            found = consumer.stats()
            print(found["group_limits"], {name: found[name] for name in ("received", "acked")}, file=sys.stderr)
            for tenant in found["slots"]:
                print(consumer.explain(tenant), file=sys.stderr)
            print(EXPLAINED, file=sys.stderr, flush=True)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pika").setLevel(logging.WARNING)
    tenants = {"*": Tenant(limit=own)}
    if named:
        tenants |= dict.fromkeys(NAMED, Tenant(limit=[own, replace(named, name="api")]))
    consumer = Consumer(
        url, [queue], key="header:tenant", tenants=tenants, limit=total or None, share_group=group, workers=4,
        prefetch=400,
    )  # fmt: skip
    threading.Thread(target=explain, daemon=True).start()
    with graceful(consumer.stop, [signal.SIGTERM]):
        # The file says that the process may be told to stop.
        descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            consumer.run(handle)
        except ConnectionFailed:
            sys.exit(CONNECTION)


if __name__ == "__main__":
    main(*sys.argv[1:])
