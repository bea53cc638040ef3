"""What a message costs a client: our consumer beside other clients, each message acknowledged, prefetch 250.

Usage: python benchmarks/bench_delivery.py ROW [--messages N] [--payload 100.minimal|1024.rich] [--rounds N]

prints a row's microseconds a message. As benchmarks, all rows are measured in turn, each time in a fresh process, and
compared by their medians. Most are fed by a broker that does nothing else (loopback/feeder.c), so that the processor
time is the client's own, and it is never idle; the last are messages per second of a real RabbitMQ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from delivery_clients import PREFETCH, weights
from interleave import record
from loopback import Loopback

Result = dict[str, float]

ROUNDS = 5
PAYLOADS = {"100.minimal": "100 B", "1024.rich": "1 KiB, nine properties"}
#: How many messages RabbitMQ is asked for, of one queue and of ten.
ONE_QUEUE, TEN_QUEUES = 100_000, 30_000


class Row(NamedTuple):
    """What is measured: a client, how many queues it consumes, and how many messages it takes.

    librabbitmq is no client of delivery_clients.py, but loopback/client.c.
    """

    client: str
    messages: int
    queues: int = 1


ROWS = {
    "iterator": Row("iterator", 300_000),
    "iterator, ten queues": Row("iterator", 300_000, 10),
    "iterator, 1000 tenants": Row("iterator-tenants", 300_000),
    "iterator beside a thread that computes": Row("iterator-beside", 100_000),
    "run": Row("run", 300_000),
    "run beside a thread that computes": Row("run-beside", 100_000),
    "run, ten queues": Row("run", 5_000_000, 10),
    "run, ten queues, metrics": Row("run-scraped", 5_000_000, 10),
    "run, ten queues, 20 us": Row("run-busy", 150_000, 10),
    "run, ten queues, 20 us, metrics": Row("run-busy-scraped", 150_000, 10),
    "run, retry": Row("run-retry", 300_000),
    "run, middleware": Row("run-middleware", 300_000),
    "run, decode": Row("run-decode", 300_000),
    "run, time_limit": Row("run-time-limit", 300_000),
    "aio": Row("aio", 200_000),
    "aio run": Row("aio-run", 200_000),
    "librabbitmq": Row("librabbitmq", 300_000),
    "librabbitmq, auto-ack": Row("librabbitmq-auto", 300_000),
    "pika select": Row("pika-select", 40_000),
    "pika blocking": Row("pika-blocking", 20_000),
    "article, ten queues": Row("article", 20_000, 10),
    "kombu": Row("kombu", 40_000),
    "aio-pika": Row("aio-pika", 20_000),
    "aiormq": Row("aiormq", 20_000),
    "amqpstorm": Row("amqpstorm", 20_000),
    "rabbitpy": Row("rabbitpy", 20_000),
}


def consume(loopback: Loopback, port: int, client: str, messages: int, queues: Sequence[str]) -> Result:
    """Have a client take so many messages in a process of its own."""
    if client.startswith("librabbitmq"):
        return loopback.consume(port, queues[0], messages, PREFETCH, ack=client == "librabbitmq")
    program = Path(__file__).with_name("delivery_clients.py")
    done = subprocess.run(
        [sys.executable, program, client, str(port), str(messages), *queues],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        missing = done.stderr.rstrip().endswith(f"No module named {client.replace('-', '_')!r}")
        remedy = "pip install --group bench installs it\n" if missing else ""
        raise RuntimeError(f"{client} ended with {done.returncode}:\n{done.stderr}{remedy}")
    found: Result = json.loads(done.stdout)
    return found


def measure(loopback: Loopback, row: Row, payload: str) -> Result:
    queues = [f"{payload}.{number}" for number in range(row.queues)]
    return consume(loopback, loopback.port, row.client, row.messages, queues)


def medians(rounds: int, measured: dict[str, Callable[[], Result]]) -> dict[str, Result]:
    """Median of each figure of each, called in turn."""
    found: dict[str, list[Result]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, function in measured.items():
            found[name].append(function())
    return {
        name: {figure: statistics.median(one[figure] for one in results) for figure in results[0]}
        for name, results in found.items()
    }


def by_row(loopback: Loopback, payload: str, rounds: int, names: Sequence[str]) -> dict[str, Result]:
    return medians(rounds, {name: lambda row=ROWS[name]: measure(loopback, row, payload) for name in names})


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as found:
        yield found


def compare(cpu: dict[str, float], what: str) -> dict[str, tuple[float, str, float]]:
    """Ratios of processor time a message, and what they should be."""
    mine = cpu["iterator"]
    return {
        f"pika SelectConnection : iterator, client CPU a message, {what}": (cpu["pika select"] / mine, ">=", 20.0),
        f"pika BlockingConnection : iterator, {what}": (cpu["pika blocking"] / mine, ">=", 50.0),
        f"iterator : librabbitmq in C, each acked, {what}": (mine / cpu["librabbitmq"], "<=", 0.25),
        f"iterator over ten queues : one, {what}": (cpu["iterator, ten queues"] / mine, "<=", 1.25),
        f"run(handler), one worker : iterator, {what}": (cpu["run"] / mine, "<=", 1.5),
        f"aio iterator : iterator, {what}": (cpu["aio"] / mine, "<=", 3.0),
        f"aio run(handler) : iterator, {what}": (cpu["aio run"] / mine, "<=", 3.0),
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_processor_time_a_message(benchmark: Any, loopback: Loopback, payload: str) -> None:
    left_out = ("beside", "run,", *(() if payload == "1024.rich" else ("tenants",)))
    names = [name for name in ROWS if not any(what in name for what in left_out)]
    found = by_row(loopback, payload, ROUNDS, names)
    cpu = {name: result["cpu_us"] for name, result in found.items()}
    bars = compare(cpu, PAYLOADS[payload])
    if "iterator, 1000 tenants" in cpu:
        ratio = cpu["iterator, 1000 tenants"] / cpu["iterator"]
        bars[f"iterator over 1000 tenants : queues as such, {PAYLOADS[payload]}"] = (ratio, "<=", 1.25)
    record(benchmark, bars, **{f"{name}, us": value for name, value in cpu.items()})
    benchmark.pedantic(measure, args=(loopback, ROWS["iterator"], payload), rounds=1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("handler", [", 20 us", ""])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_processor_time_of_metrics(benchmark: Any, loopback: Loopback, payload: str, handler: str) -> None:
    """Of a handler that computes and of an idle one, and one scrape a second; each round's two are compared."""
    without = ROWS[name := f"run, ten queues{handler}"]
    with_metrics = ROWS[f"{name}, metrics"]
    rounds = []
    for number in range(2 * ROUNDS):
        found = {row: measure(loopback, row, payload)["cpu_us"] for row in (with_metrics, without)[:: (-1) ** number]}
        rounds.append((found[with_metrics], found[without]))
    ratio = statistics.median(one / other for one, other in rounds)
    what = f"metrics, scraped each second : without, client CPU a message{handler}, {PAYLOADS[payload]}"
    record(
        benchmark,
        {what: (ratio, "<=", 1.01)},
        **{"with, us": min(one for one, _ in rounds), "without, us": min(other for _, other in rounds)},
    )
    benchmark.pedantic(measure, args=(loopback, with_metrics, payload), rounds=1)


@pytest.mark.timeout(600)
def test_what_options_cost(benchmark: Any, loopback: Loopback) -> None:
    """Of messages that none of them concerns: nothing fails, nothing takes long."""
    bars = {"retry": 1.1, "middleware": 1.3, "decode": 1.8, "time_limit": 2.0}
    names = ["run", *(f"run, {option}" for option in bars)]
    found = by_row(loopback, "100.minimal", ROUNDS, names)
    cpu = {name: result["cpu_us"] for name, result in found.items()}
    record(
        benchmark,
        {f"run, {name} : run": (cpu[f"run, {name}"] / cpu["run"], "<=", bar) for name, bar in bars.items()},
        **{f"{name}, us": value for name, value in cpu.items()},
    )
    benchmark.pedantic(measure, args=(loopback, ROWS["run"], "100.minimal"), rounds=1)


@pytest.mark.timeout(600)
def test_a_thread_that_computes_beside_the_consumer(benchmark: Any, loopback: Loopback) -> None:
    """Messages per second."""
    names = [name for name in ROWS if name.partition(" ")[0] in ("iterator", "run") and "," not in name]
    found = by_row(loopback, "100.minimal", ROUNDS, names)
    rate = {name: 1e6 / result["wall_us"] for name, result in found.items()}
    beside = " beside a thread that computes"
    record(
        benchmark,
        {
            f"{name}{beside} : alone, msg/s": (rate[name + beside] / rate[name], ">=", 0.5)
            for name in ("iterator", "run")
        },
        **{f"{name}, msg/s": value for name, value in rate.items()},
        **{f"{name}, computed/s": found[name]["computed_s"] for name in names if beside in name},
    )
    benchmark.pedantic(measure, args=(loopback, ROWS["iterator" + beside], "100.minimal"), rounds=1)


@pytest.mark.timeout(900)
def test_messages_per_second_of_rabbitmq(benchmark: Any, loopback: Loopback) -> None:
    """Of one queue beside the client in C, and of ten with weights beside the article's loop."""
    # The one that tests use, which is not needed for a single row.
    from support.rabbitmq import Node

    node = Node()

    def rate(client: str, messages: int, count: int) -> Result:
        queues = [f"delivery-{count}-{number}" for number in range(count)]
        shares = weights(queues)
        node.delete(*queues)
        for queue, weight in shares.items():
            loopback.fill(node.port, queue, messages * weight * 6 // (5 * sum(shares.values())) + 2 * PREFETCH, 100)
        found = consume(loopback, node.port, client, messages, queues)
        return {"rate": 1e6 / found["wall_us"], "cpu_us": found["cpu_us"]}

    try:
        node.start()
        found = medians(
            ROUNDS,
            {
                "iterator": lambda: rate("iterator", ONE_QUEUE, 1),
                "librabbitmq": lambda: rate("librabbitmq", ONE_QUEUE, 1),
                "iterator, ten queues": lambda: rate("iterator", TEN_QUEUES, 10),
                "article, ten queues": lambda: rate("article", TEN_QUEUES, 10),
            },
        )
        benchmark.pedantic(rate, args=("iterator", ONE_QUEUE, 1), rounds=1)
    finally:
        node.close()
    rates = {name: result["rate"] for name, result in found.items()}
    one = rates["iterator"] / rates["librabbitmq"]
    ten = rates["iterator, ten queues"] / rates["article, ten queues"]
    record(
        benchmark,
        {
            "iterator : librabbitmq in C, each acked, msg/s of RabbitMQ": (one, ">=", 0.95),
            "iterator over ten queues : article's loop over pika, msg/s of RabbitMQ": (ten, ">=", 6.0),
        },
        **{f"{name}, msg/s": value for name, value in rates.items()},
        **{f"{name}, us": result["cpu_us"] for name, result in found.items()},
    )


def main() -> None:
    """Measure one row."""
    parser = argparse.ArgumentParser(description="Print microseconds a message of one row.")
    parser.add_argument("row", choices=ROWS, metavar="ROW", help="one of: " + "; ".join(ROWS))
    parser.add_argument("--messages", type=int, help="how many to take; the first tenth is not measured")
    parser.add_argument("--payload", choices=PAYLOADS, default="100.minimal")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    row = ROWS[asked.row]._replace(**({"messages": asked.messages} if asked.messages else {}))
    with Loopback() as loopback:
        for _ in range(asked.rounds):
            found = measure(loopback, row, asked.payload)
            print(
                f"{asked.row}, {asked.payload}: {found['cpu_us']:.3f} us/message of processor time, "
                f"{found['wall_us']:.3f} us of wall time",
                flush=True,
            )


if __name__ == "__main__":
    main()
