"""What a reader's process holds, measured from inside: one large partition, or many small batches.

Usage: measured.py partition|batches OPTIONS COUNT; prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pika
from spark.running import Driver


def resident() -> int:
    """Bytes of memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Most bytes of memory since the start."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def partition(driver: Driver, count: int) -> dict[str, int]:
    """Read one large partition, row by row forgotten."""
    end = driver.plan()
    [part] = driver.reader.partitions(driver.offset, end)
    idle = resident()
    rows = sum(batch.num_rows for batch in driver.reader.read(part))
    return {"rows": rows, "wanted": count, "above": peak() - idle}


def batches(driver: Driver, count: int) -> dict[str, int]:
    """Plan, read and commit many batches, one message each."""
    [queue] = driver.options.quanta
    connection = pika.BlockingConnection(pika.URLParameters(driver.options.broker.urls[0]))
    channel = connection.channel()
    warm, rows, early = count // 5, 0, (0, 0)
    for number in range(count):
        channel.basic_publish("", queue, b"x")
        channel.queue_declare(queue, passive=True)
        rows += len(next(driver.batches()))
        if number == warm:
            early = resident(), len(os.listdir("/proc/self/fd"))
    late = resident(), len(os.listdir("/proc/self/fd"))
    connection.close()
    return {"rows": rows, "memory": late[0] - early[0], "files": late[1] - early[1]}


def main() -> None:
    what, options, count = sys.argv[1:]
    driver = Driver(json.loads(options))
    print(json.dumps({"partition": partition, "batches": batches}[what](driver, int(count))))
    driver.close()


if __name__ == "__main__":
    main()
