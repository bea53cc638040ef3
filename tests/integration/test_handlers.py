"""Handlers of every kind, against a real broker: nothing is acknowledged that did not run."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import App, ConfigurationError, Consumer, aio, from_pika

ran: list[object] = []


async def work(*arguments: object) -> None:
    ran.append(arguments)


def lazy(*arguments: object) -> Any:
    yield ran.append(arguments)


def makes_coroutine(*arguments: object) -> object:
    return work(*arguments)


def makes_generator(*arguments: object) -> object:
    return lazy(*arguments)


#: Handlers that look like plain functions, and return what nothing runs.
HIDDEN = {
    "coroutine": makes_coroutine,
    "generator": makes_generator,
    "cached": functools.lru_cache(work),
    "pika": from_pika(makes_coroutine),
}


@pytest.mark.parametrize("on_error", ["requeue", "reject"])
@pytest.mark.parametrize("handler", HIDDEN.values(), ids=list(HIDDEN))
def test_what_a_handler_returns_is_not_acked_unrun(
    broker: Node, new_queue: Declare, handler: Callable[..., Any], on_error: str
) -> None:
    queue = new_queue("hidden")
    broker.publish(queue, numbered(10))
    ran.clear()
    consumer = Consumer(broker.url, [queue], on_error=on_error)
    with pytest.raises(ConfigurationError, match="handler returned the "):
        consumer.run(handler)
    stats = consumer.stats()
    assert (ran, stats["acked"], stats["rejected"], stats["errors"]) == ([], 0, 0, 0)
    eventually(lambda: broker.count(queue) == 10)


def test_an_app_ends_with_the_handler_that_does_not_run(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("hidden")
    broker.publish(queue, numbered(10))
    app = App(broker.url)
    app.consumer(queue)(makes_coroutine)
    with pytest.raises(ConfigurationError, match="handler returned the coroutine 'work'"):
        app.run()
    eventually(lambda: broker.count(queue) == 10)


APP = """
from fairsched import App

app = App()

@app.consumer({queue!r})
async def gold(message):
    print("ran", flush=True)
"""

HIDING = """
from fairsched import App

app = App()

async def work(message):
    print("ran", flush=True)

@app.consumer({queue!r})
def gold(message):
    return work(message)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [(APP, "Error: module 'worker': handler of queue '{}' must be a plain function, got the coroutine function 'gold'"),
     (HIDING, "Error: handler returned the coroutine 'work'")],
)  # fmt: skip
def test_the_command_ends_with_one_line(tmp_path: Path, broker: Node, new_queue: Declare, text: str, said: str) -> None:
    queue = new_queue("command")
    broker.publish(queue, numbered(10))
    (tmp_path / "worker.py").write_text(text.format(queue=queue))
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "run", "worker:app", "--log-level", "error"], cwd=tmp_path, text=True,
        env={**os.environ, "FAIRSCHED_URL": broker.url}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(said.format(queue))
    assert "fairsched.aio" in line
    eventually(lambda: broker.count(queue) == 10)


# asyncio ----------------------------------------------------------------------------------------------------------


def consume(url: str, queue: str, handler: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Run a handler in an event loop of its own until it stops the consumer, which it is given."""

    async def main() -> dict[str, Any]:
        async with aio.Consumer(url, [queue], **options) as consumer:
            await asyncio.wait_for(consumer.run(functools.partial(handler, consumer)), 60)
        return consumer.stats()

    return asyncio.run(main())


def test_a_plain_handler_does_not_block_the_event_loop(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("plain")
    broker.publish(queue, numbered(30))
    done: list[bytes] = []
    threads: set[str] = set()
    together = threading.Barrier(3)

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], workers=3) as consumer:
            loop = asyncio.get_running_loop()

            def handler(message: Any) -> None:
                # Three at a time, and all of them wait for the event loop.
                together.wait(30)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)
                threads.add(threading.current_thread().name)
                done.append(message.body)
                if len(done) == 30:
                    consumer.stop()

            await consumer.run(handler)
        return consumer.stats()

    stats = asyncio.run(main())
    assert sorted(done, key=int) == numbered(30)
    assert (stats["acked"], stats["errors"]) == (30, 0)
    assert threads == {f"fairsched-worker-{number}" for number in range(3)}
    assert broker.count(queue) == 0
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("fairsched-")])


def test_a_plain_handler_that_fails_is_settled_by_policy(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("plain")
    broker.publish(queue, numbered(3))
    done: list[bytes] = []

    def handler(consumer: Any, message: Any) -> None:
        done.append(message.body)
        if len(done) == 3:
            consumer.stop()
        if message.body == b"1":
            raise StopIteration("this one cannot go through a future")

    stats = consume(broker.url, queue, handler, on_error="reject")
    assert (stats["acked"], stats["rejected"], stats["errors"]) == (2, 1, 1)


def test_what_a_plain_handler_returns_is_awaited(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("returned")
    broker.publish(queue, numbered(10))
    done: list[bytes] = []

    async def later(consumer: Any, message: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        await asyncio.sleep(0)
        done.append(message.body)
        if len(done) == 10:
            consumer.stop()
        if message.body == b"5":
            raise ValueError("awaited, too")

    def plain(*arguments: Any) -> object:
        assert threading.current_thread() is not threading.main_thread()
        return later(*arguments)

    stats = consume(broker.url, queue, plain, on_error="reject")
    assert done == numbered(10)
    assert (stats["acked"], stats["rejected"]) == (9, 1)


async def returning(*arguments: object) -> object:
    return work(*arguments)


@pytest.mark.parametrize("handler", [makes_generator, returning])
def test_what_nothing_awaits_is_not_acked(broker: Node, new_queue: Declare, handler: Callable[..., Any]) -> None:
    queue = new_queue("returned")
    broker.publish(queue, numbered(10))
    ran.clear()
    with pytest.raises(ConfigurationError, match="handler returned the "):
        consume(broker.url, queue, handler, on_error="reject")
    assert ran == []
    eventually(lambda: broker.count(queue) == 10)


def test_a_plain_handler_that_hangs_is_left_when_its_time_is_over(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("hanging")
    broker.publish(queue, numbered(2))
    released = threading.Event()

    def handler(consumer: Any, message: Any) -> None:
        consumer.stop()
        released.wait(60)

    stats = consume(broker.url, queue, handler, shutdown_timeout=0.2, on_error="reject")
    assert not released.is_set()
    assert (stats["acked"], stats["rejected"]) == (0, 0)
    eventually(lambda: broker.count(queue) == 2)
    released.set()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("fairsched-")])
