"""The embedded broker beside RabbitMQ, each in a process of its own, loaded by the same client in C (loopback/load.c).

Usage: python benchmarks/bench_broker.py ROW [--messages N] [--rounds N] [--rate R] [--only embedded|RabbitMQ]

prints messages per second, microseconds of the broker's processor time a message (all of RabbitMQ's processes counted)
and the 99th percentile of the time from publisher to consumer. As benchmarks, both are measured in turn, and compared
by their medians.

Where that is allowed (to root), brokers and load have real-time priority. Else a message at a moderate rate waits some
milliseconds now and then for whatever else has the core, and the 99th percentile says what that was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interleave import record
from loopback import Load

Result = dict[str, float]

ROUNDS = 3
#: How many messages each is given: a second's work or less.
MESSAGES = {"embedded": 2_000_000, "RabbitMQ": 100_000}
#: Seconds for which latency is measured, and before that the others have their share: they get one from Linux anyway,
#: all at once, when they had none for a second.
LATENCY_SECONDS, PAUSE_SECONDS = 0.7, 1.0
#: How many messages are kept, and taken out again.
QUEUED = {"embedded": 1_000_000, "RabbitMQ": 200_000}
#: How many persistent messages are confirmed.
KEPT = {"embedded": 200_000, "RabbitMQ": 20_000}
MANY_QUEUES, MANY_CONNECTIONS = 10_000, 1000
MEBIBYTE = 1 << 20


class Row(NamedTuple):
    """What is published and consumed: as load.c describes it."""

    size: int = 100
    queues: int = 1
    consumers: int = 1
    prefetch: int = 0
    confirms: int = 0


PREFETCH = 250
ROWS = {
    "100 B": Row(),
    "100 B, each acked": Row(prefetch=PREFETCH),
    "100 B, ten queues": Row(queues=10),
    "100 B, ten queues, each acked": Row(queues=10, prefetch=PREFETCH),
    "1 KiB": Row(size=1024),
    "1 KiB, each acked": Row(size=1024, prefetch=PREFETCH),
    "1 KiB, ten queues": Row(size=1024, queues=10),
    "1 KiB, ten queues, each acked": Row(size=1024, queues=10, prefetch=PREFETCH),
    "100 B, confirmed": Row(confirms=1000),
    "1 KiB, confirmed": Row(size=1024, confirms=1000),
    "100 B, four consumers, each acked": Row(consumers=4, prefetch=PREFETCH),
}


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Have what is started meanwhile run before everything else on this machine, if that is allowed."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


class Measured:
    """A broker that runs, and its processes."""

    def __init__(self, name: str, load: Load, *, durable: bool = False) -> None:
        # Those that tests use.
        from support.rabbitmq import EmbeddedNode, Node

        self.name = name
        self.load = load
        self.node = Node() if name == "RabbitMQ" else EmbeddedNode(durable=durable)
        self.node.start()

    def _stat(self) -> Iterator[list[str]]:
        """What /proc says of each process, from the state on: RabbitMQ's are one group."""
        first = self.node._process.pid
        for process in Path("/proc").iterdir():
            try:
                found = (process / "stat").read_text().rpartition(")")[2].split() if process.name.isdigit() else []
            except OSError:
                continue  # it has ended
            if found and (process.name == str(first) or (self.name == "RabbitMQ" and found[2] == str(first))):
                yield found

    def processor_us(self) -> float:
        """Microseconds of processor time so far, user's and system's."""
        ticks = sum(int(found[11]) + int(found[12]) for found in self._stat())
        return ticks * 1e6 / os.sysconf("SC_CLK_TCK")

    def rest(self) -> None:
        """Return when it does nothing any more."""
        before, now = -1.0, self.processor_us()
        while now - before > 1e6 / os.sysconf("SC_CLK_TCK"):
            time.sleep(0.2)
            before, now = now, self.processor_us()

    def resident(self) -> int:
        """Bytes of memory that are there."""
        return sum(int(found[21]) for found in self._stat()) * os.sysconf("SC_PAGESIZE")

    def flow(self, row: Row, messages: int = 0, rate: int = 0) -> Result:
        """Publish and consume; `rate` in messages per second, 0: as many as come through."""
        messages = messages or MESSAGES[self.name]
        begun = self.processor_us()
        found = self.load.run(
            self.node.port, "flow", messages, row.size, row.queues, row.consumers, row.prefetch, row.confirms, rate
        )
        return {
            "rate": 1e6 / found["wall_us"],
            "cpu_us": (self.processor_us() - begun) / messages,
            "p99_us": found["p99_us"],
        }

    def latency(self, row: Row, rate: int) -> Result:
        """Publish and consume so many messages per second, for a moment."""
        time.sleep(PAUSE_SECONDS)
        return self.flow(row, round(LATENCY_SECONDS * rate), rate)

    def confirm(self) -> Result:
        """Have persistent messages of 100 octets in a durable queue confirmed, 1 000 under way, and purge them."""
        begun = self.processor_us()
        found = self.load.run(self.node.port, "keep", KEPT[self.name], 100, 1)
        used = self.processor_us() - begun
        with self.node.connect() as channel:
            channel.queue_purge("kept-0")
        return {"rate": 1e6 / found["wall_us"], "cpu_us": used / KEPT[self.name]}

    def keep(self) -> Result:
        """Queue messages of 100 octets, and purge them: bytes each, and the part of the memory that is kept then."""
        self.load.run(self.node.port, "flow", 1000, 100, 1, 1, 0, 0, 0)
        before = self.resident()
        self.load.run(self.node.port, "fill", QUEUED[self.name], 100, 1)
        full = self.resident()
        with self.node.connect() as channel:
            channel.queue_purge("load-0")
            channel.connection.sleep(3)  # memory is given back twice a second, if at all
        return {"bytes": (full - before) / QUEUED[self.name], "kept": (self.resident() - before) / (full - before)}


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[str, Measured]]:
    found: dict[str, Measured] = {}
    with Load() as load, real_time():
        try:
            for name in MESSAGES:
                found[name] = Measured(name, load)
            yield found
        finally:
            for one in found.values():
                one.node.close()


def medians(rounds: int, measured: Mapping[str, Callable[[], Result]]) -> dict[str, Result]:
    """Median of each figure of each, called in turn."""
    found: dict[str, list[Result]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, function in measured.items():
            found[name].append(function())
    return {
        name: {figure: statistics.median(one[figure] for one in results) for figure in results[0]}
        for name, results in found.items()
    }


def ratio(found: dict[str, Result], figure: str) -> float:
    """Ours of RabbitMQ's."""
    return found["embedded"][figure] / found["RabbitMQ"][figure]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ROWS)
def test_throughput(benchmark: Any, brokers: dict[str, Measured], name: str) -> None:
    row = ROWS[name]
    found = medians(ROUNDS, {one: partial(broker.flow, row) for one, broker in brokers.items()})
    half = round(found["RabbitMQ"]["rate"] / 2)
    slow = medians(ROUNDS, {one: partial(broker.latency, row, half) for one, broker in brokers.items()})
    record(
        benchmark,
        {
            f"embedded broker : RabbitMQ, msg/s, {name}": (ratio(found, "rate"), ">=", 5.0),
            f"embedded broker : RabbitMQ, processor time a message, {name}": (ratio(found, "cpu_us"), "<=", 0.1),
            f"embedded broker : RabbitMQ, p99 at half RabbitMQ's top rate, {name}": (ratio(slow, "p99_us"), "<=", 0.5),
        },
        **{f"{one}, msg/s": result["rate"] for one, result in found.items()},
        **{f"{one}, us": result["cpu_us"] for one, result in found.items()},
        **{f"{one}, p99 us": result["p99_us"] for one, result in slow.items()},
    )
    benchmark.pedantic(brokers["embedded"].flow, args=(row,), rounds=1)


@pytest.mark.timeout(600)
def test_memory(benchmark: Any, brokers: dict[str, Measured]) -> None:
    found = {name: broker.keep() for name, broker in brokers.items()}
    record(
        benchmark,
        {
            "embedded broker, bytes for a queued message of 100 : 1": (found["embedded"]["bytes"], "<=", 300.0),
            "embedded broker, memory kept after a purge : of what was queued": (found["embedded"]["kept"], "<=", 0.2),
        },
        **{f"{name}, {figure}": value for name, result in found.items() for figure, value in result.items()},
    )
    benchmark.pedantic(brokers["embedded"].flow, args=(Row(),), rounds=1)


@pytest.mark.timeout(600)
def test_durable(benchmark: Any, brokers: dict[str, Measured]) -> None:
    """With a data directory, on the disk that RabbitMQ's is on."""
    ours = Measured("embedded", brokers["embedded"].load, durable=True)
    try:
        found = medians(ROUNDS, {"embedded": ours.confirm, "RabbitMQ": brokers["RabbitMQ"].confirm})
        record(
            benchmark,
            {"embedded broker : RabbitMQ, persistent messages confirmed per second": (ratio(found, "rate"), ">=", 2.0)},
            **{f"{name}, msg/s": result["rate"] for name, result in found.items()},
            **{f"{name}, us": result["cpu_us"] for name, result in found.items()},
        )
        benchmark.pedantic(ours.confirm, rounds=1)
    finally:
        ours.node.close()


@pytest.mark.timeout(600)
def test_many(benchmark: Any, brokers: dict[str, Measured]) -> None:
    """Ten thousand queues and a thousand connections beside those that work; and what it costs if all of them work."""
    ours = brokers["embedded"]
    row = ROWS["100 B, each acked"]

    def beside(connections: int, queues: int) -> Result:
        with ours.load.idle(ours.node.port, connections, queues):
            found = ours.flow(row)
        ours.rest()  # to see so many off is work, too
        return found

    found = medians(
        ROUNDS,
        {
            "alone": lambda: ours.flow(row),
            "connections": lambda: beside(MANY_CONNECTIONS, 1),
            "queues": lambda: beside(1, MANY_QUEUES),
            "working queues": lambda: ours.flow(row._replace(queues=MANY_QUEUES)),
        },
    )
    record(
        benchmark,
        {
            f"embedded broker, {what} : alone, processor time a message": (
                found[name]["cpu_us"] / found["alone"]["cpu_us"], "<=", 1.2,
            )
            for name, what in (
                ("connections", f"{MANY_CONNECTIONS} connections beside"),
                ("queues", f"{MANY_QUEUES} queues beside"),
            )
        },
        **{f"{name}, us": result["cpu_us"] for name, result in found.items()},
    )  # fmt: skip
    benchmark.pedantic(ours.flow, args=(row,), rounds=1)


def main() -> None:
    """Measure one row."""
    parser = argparse.ArgumentParser(description="Print what one row costs the embedded broker, and RabbitMQ.")
    rows = [*ROWS, "memory", "durable"]
    parser.add_argument("row", choices=rows, metavar="ROW", help="one of: " + "; ".join(rows))
    parser.add_argument("--messages", type=int, default=0, help="how many for each; the first tenth is not measured")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", type=int, default=0, help="messages a second; default: as many as come through")
    parser.add_argument("--only", choices=MESSAGES)
    asked = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    with Load() as load, real_time():
        brokers: dict[str, Measured] = {}
        try:
            for name in [asked.only] if asked.only else MESSAGES:
                brokers[name] = Measured(name, load, durable=asked.row == "durable")
            if asked.row == "memory":
                found = {name: broker.keep() for name, broker in brokers.items()}
            elif asked.row == "durable":
                found = medians(asked.rounds, {name: broker.confirm for name, broker in brokers.items()})
            else:
                row = ROWS[asked.row]
                measured = {
                    name: partial(broker.flow, row, asked.messages, asked.rate) for name, broker in brokers.items()
                }
                found = medians(asked.rounds, measured)
        finally:
            for broker in brokers.values():
                broker.node.close()
    for figure in next(iter(found.values())):
        values = ", ".join(f"{name} {result[figure]:.4g}" for name, result in found.items())
        print(f"{asked.row}, {figure}: {values}" + ("" if asked.only else f", ratio {ratio(found, figure):.4g}"))


if __name__ == "__main__":
    main()
