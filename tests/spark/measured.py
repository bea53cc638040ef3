"""What a reader's process holds while it reads one large partition, measured from inside.

Usage: measured.py OPTIONS COUNT; prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

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


def main() -> None:
    options, count = sys.argv[1:]
    driver = Driver(json.loads(options))
    print(json.dumps(partition(driver, int(count))))
    driver.close()


if __name__ == "__main__":
    main()
