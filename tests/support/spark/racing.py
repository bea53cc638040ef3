"""Processes that race to create the same names in a store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from fairsched.spark.source.store import open_store

NAMES = [str(number) for number in range(200)]

#: Tries each name it is told, and says whether it created it.
RACER = """
import sys
from fairsched.spark.source.store import open_store
store, me = open_store(sys.argv[1]), sys.argv[2]
store.create(f"warm/{me}", b"")
print("ready", flush=True)
for name in map(str.strip, sys.stdin):
    print(int(store.create(f"race/{name}", me.encode())), flush=True)
"""


def race(place: str, racers: int, environment: Mapping[str, str]) -> None:
    """Check that of `racers` processes one creates each name, and that each process creates some."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, place, str(number)], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for number in range(racers)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    winners = [tell(processes, name) for name in NAMES]
    for process in processes:
        process.communicate(timeout=120)
    assert set(winners) == set(range(racers)), "some racer was never first: its turns were no race"
    store = open_store(place)
    for name, winner in zip(NAMES, winners, strict=True):
        assert bytes(store.read(f"race/{name}")) == str(winner).encode()


def tell(processes: list[subprocess.Popen[str]], name: str) -> int:
    """Have all try one name, and return the one that created it."""
    # On a busy machine, the first to be told is the first there: so another one each time.
    first = int(name) % len(processes)
    for process in processes[first:] + processes[:first]:
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
    created = [process.stdout.readline() for process in processes]
    assert sorted(created) == ["0\n"] * (len(processes) - 1) + ["1\n"], f"{name!r} was created by {created}"
    return created.index("1\n")
