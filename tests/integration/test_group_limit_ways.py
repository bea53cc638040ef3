"""A limit of the group holds in every way to consume, and on the embedded broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import App, Broker, Consumer, Limit, Queue, Tenant, aio

COUNT, MOST = 60, 2
LIMIT = Limit(MOST, scope="group")
#: Of the processes of ``fairsched run``.
WORKER = """
import os, time
from fairsched import App

app = App()

@app.consumer("{queue}")
def handle(message):
    record = os.open("record", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(record, f"1 {{time.monotonic_ns()}} {{os.getpid()}}\\n".encode())
    time.sleep(0.01)
    os.write(record, f"-1 {{time.monotonic_ns()}} {{os.getpid()}}\\n".encode())
    os.close(record)
"""
OPTIONS = """
share_group = "{queue}"
key = "header:tenant"
workers = 4
prefetch = 20

[tenants]
"*" = {{ limit = {{ concurrency = 2, scope = "group" }} }}
"""


class Observer:
    """Counts the messages in hand of several consumers."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    @contextmanager
    def hand(self, tenant: str, consumer: str) -> Iterator[None]:
        with self.guard:
            self.now[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.now[tenant])
        yield
        with self.guard:
            self.now[tenant] -= 1
            self.done[consumer] += 1


def fill(url: str, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue)
    for number in range(COUNT):
        properties = pika.BasicProperties(headers={"tenant": f"t{number % 2}"})
        channel.basic_publish("", queue, b"%d" % number, properties)
    connection.close()


def in_threads(url: str, name: str, seen: Observer, options: dict[str, object]) -> Callable[[], object]:
    consumer = Consumer(url, ["jobs"], **options)

    def handle(message: object) -> None:
        with seen.hand(message.headers["tenant"], name):
            threading.Event().wait(0.01)

    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    return lambda: (consumer.stop(), thread.join(30))


def in_an_app(url: str, name: str, seen: Observer, options: dict[str, object]) -> Callable[[], object]:
    app = App(url, **options)

    @app.consumer("jobs")
    def handle(message: object) -> None:
        with seen.hand(message.headers["tenant"], name):
            threading.Event().wait(0.01)

    thread = threading.Thread(target=app.run)
    thread.start()
    return lambda: (app.stop(), thread.join(30))


def in_an_event_loop(url: str, name: str, seen: Observer, options: dict[str, object]) -> Callable[[], object]:
    loop = asyncio.new_event_loop()
    made: list[aio.Consumer] = []

    async def handle(message: object) -> None:
        with seen.hand(message.headers["tenant"], name):
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with aio.Consumer(url, ["jobs"], **options) as consumer:
            made.append(consumer)
            await consumer.run(handle)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    eventually(lambda: made)
    return lambda: (loop.call_soon_threadsafe(made[0].stop), thread.join(30), loop.close())


@pytest.mark.parametrize("way", [in_threads, in_an_app, in_an_event_loop])
def test_consumers_of_all_kinds_keep_a_limit_together(way: Callable[..., Callable[[], object]]) -> None:
    seen = Observer()
    options: dict[str, object] = {
        "key": "header:tenant", "tenants": {"*": Tenant(limit=LIMIT)}, "share_group": "g", "workers": 4, "prefetch": 10,
    }  # fmt: skip
    with Broker() as broker:
        fill(broker.url, "jobs")
        ends = [way(broker.url, "one", seen, options), in_threads(broker.url, "other", seen, options)]
        try:
            eventually(lambda: seen.done.total() == COUNT, 30)
        finally:
            for end in ends:
                end()
    assert set(seen.most) == {"t0", "t1"}
    assert max(seen.most.values()) == MOST
    assert min(seen.done["one"], seen.done["other"]) > 0


def test_a_limit_of_a_queue_holds_on_the_embedded_broker() -> None:
    seen = Observer()
    options: dict[str, object] = {"share_group": "g", "workers": 4}
    limited = [Queue("jobs", limit=LIMIT, prefetch=10)]
    with Broker() as broker:
        fill(broker.url, "jobs")
        consumers = [Consumer(broker.url, limited, **options) for _ in range(3)]

        def handle(_message: object) -> None:
            with seen.hand("all", "any"):
                threading.Event().wait(0.005)

        threads = [threading.Thread(target=one.run, args=(handle,)) for one in consumers]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: seen.done.total() == COUNT, 30)
        finally:
            for one in consumers:
                one.stop()
            for thread in threads:
                thread.join(30)
    assert seen.most["all"] == MOST


def test_processes_of_the_command_line_keep_a_limit_from_a_file(
    broker: Node, new_queue: Callable[..., str], tmp_path: Path
) -> None:
    queue = new_queue("limited")
    for number in range(COUNT):
        broker.publish(queue, [b"%d" % number], headers={"tenant": "acme"})
    (tmp_path / "worker.py").write_text(WORKER.format(queue=queue))
    (tmp_path / "fairsched.toml").write_text(OPTIONS.format(queue=queue))
    command = [sys.executable, "-m", "fairsched.cli", "run", "worker:app"]
    environment = {**os.environ, "FAIRSCHED_URL": broker.url}
    processes = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    record = tmp_path / "record"

    def events() -> list[tuple[int, int, str]]:
        lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
        return sorted((int(when), int(change), process) for change, when, process in lines)

    try:
        eventually(lambda: len(events()) == 2 * COUNT, 60)
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait(30) for process in processes]
    assert codes == [0, 0]
    running = most = 0
    for _, change, _ in events():
        running += change
        most = max(most, running)
    assert most == MOST
