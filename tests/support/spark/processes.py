"""The processes of a Spark driver, by what they do, and what they hold."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

MEGABYTE = 1 << 20
#: Threads of Spark's block manager, up to 128 of a kind, which stay for a minute after they have removed a broadcast:
#: how many there are says how quick the last minute was.
COMING_AND_GOING = "block-manager-"


def family(driver: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes of a driver by what they do."""
    found: dict[str, list[psutil.Process]] = {"driver": [driver], "planner": [], "jvm": [], "workers": []}
    for process in driver.children(recursive=True):
        words = ""
        # A zombie has no words, and may stay one for as long as its parent lives.
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
        if "python_streaming_source_runner" in words:
            found["planner"].append(process)
        elif "pyspark.daemon" in words:
            found["workers"].append(process)
        elif "org.apache.spark" in words:
            found["jvm"].append(process)
    return found


def peak(pid: int) -> int:
    """Most bytes of memory that a process held since its start."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def threads(pid: int) -> int:
    """Threads of a process that are there to stay."""
    count = 0
    for place in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            count += not (place / "comm").read_text().startswith(COMING_AND_GOING)
    return count
