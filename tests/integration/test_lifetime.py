"""The unasked end of the I/O thread: errors, dropped consumers, closed event loops, forks."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import aio
from fairsched.consumer import Consumer


def io_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "fairsched-io"}


def boom(*_: object) -> None:
    raise RuntimeError("boom")


def leave(*_: object) -> None:
    raise SystemExit("leave")


def by_run(consumer: Consumer, handler: Callable[[object], None]) -> None:
    consumer.run(handler)


def by_iteration(consumer: Consumer, handler: Callable[[object], None]) -> None:
    with consumer:
        for message in consumer:
            handler(message)


def by_aio_run(consumer: aio.Consumer, handler: Callable[[object], None]) -> None:
    async def coroutine(message: object) -> None:
        handler(message)

    async def main() -> None:
        async with consumer:
            await consumer.run(coroutine)

    asyncio.run(main())


def by_aio_iteration(consumer: aio.Consumer, handler: Callable[[object], None]) -> None:
    async def main() -> None:
        async with consumer:
            async for message in consumer:
                handler(message)

    asyncio.run(main())


WAYS = [by_run, by_iteration, by_aio_run, by_aio_iteration]


def made(way: Callable[..., None], *arguments: object, **options: object) -> Consumer | aio.Consumer:
    return (aio.Consumer if "aio" in way.__name__ else Consumer)(*arguments, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("error", "kind"), [(boom, RuntimeError), (leave, SystemExit)])
def test_an_error_in_the_io_thread_reaches_the_user_and_frees_what_was_delivered(
    broker: Node, new_queue: Declare, way: Callable[..., None], error: Callable[..., None], kind: type[BaseException]
) -> None:
    queue = new_queue("error")
    broker.publish(queue, numbered(50))
    before = io_threads()
    consumer = made(way, broker.url, [queue])
    kept: list[object] = []

    def handler(message: object) -> None:
        message.defer()
        kept.append(message)
        if len(kept) == 50:
            consumer._client.io_thread._loop.add_callback_threadsafe(error)

    gc.disable()  # the socket is closed, not collected
    try:
        with pytest.raises(kind):
            way(consumer, handler)
        assert not io_threads() - before
        eventually(lambda: broker.count(queue) == 50)
        assert [message.ack() for message in kept] == [False] * 50
    finally:
        gc.enable()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", ["key", "cost", "ordering_key"])
def test_a_function_that_exits_in_the_io_thread_ends_the_consumer(
    broker: Node,
    new_queue: Declare,
    way: Callable[..., None],
    option: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = new_queue("exit")
    broker.publish(queue, numbered(50))
    before = io_threads()

    def function(message: object) -> int:
        if message.body == b"49":
            raise SystemExit("leave")
        return 1

    # Worker queues are served by `run` alone.
    options: dict[str, object] = {option: function}
    if option == "ordering_key" and way in (by_run, by_aio_run):
        options["workers"] = 2
    elif option == "ordering_key":
        options["key"] = function
    consumer = made(way, broker.url, [queue], connect_timeout=10, **options)
    with pytest.raises(SystemExit, match="leave"):
        way(consumer, lambda message: None)
    assert not io_threads() - before
    assert "SystemExit" in caplog.text
    eventually(lambda: broker.count(queue) >= 1)


def test_a_dropped_consumer_warns_and_ends(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("dropped")
    broker.publish(queue, numbered(50))
    before = io_threads()
    consumer = Consumer(broker.url, [queue])
    consumer.__enter__()
    eventually(lambda: consumer.stats()["buffered"] == 50)  # noqa: F821, deleted below
    with pytest.warns(ResourceWarning, match=r"Consumer .* was dropped"):  # noqa: PT031
        del consumer
        gc.collect()
        eventually(lambda: not io_threads() - before)
    eventually(lambda: broker.count(queue) == 50)


def test_a_dropped_async_consumer_warns_and_ends(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("dropped")
    broker.publish(queue, numbered(50))
    before = io_threads()

    async def main() -> None:
        consumer = aio.Consumer(broker.url, [queue])
        await consumer.__aenter__()
        await asyncio.to_thread(eventually, lambda: consumer.stats()["buffered"] == 50)

    with pytest.warns(ResourceWarning, match=r"Consumer .* was dropped"):  # noqa: PT031
        asyncio.run(main())
        gc.collect()
        eventually(lambda: not io_threads() - before)
    eventually(lambda: broker.count(queue) == 50)


def test_a_closed_event_loop_ends_its_consumer(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("loop")
    broker.publish(queue, numbered(50))
    before = io_threads()
    consumer = aio.Consumer(broker.url, [queue])

    async def main() -> None:
        await consumer.__aenter__()
        await asyncio.to_thread(eventually, lambda: consumer.stats()["buffered"] == 50)

    with pytest.warns(ResourceWarning, match="event loop"):  # noqa: PT031
        asyncio.run(main())
        eventually(lambda: not io_threads() - before)
    eventually(lambda: broker.count(queue) == 50)


def test_a_consumer_that_ended_or_never_began_warns_of_nothing(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("silent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Consumer(broker.url, [queue]) as consumer:
            pass
        del consumer
        Consumer(broker.url, [queue])
        aio.Consumer(broker.url, [queue])
        gc.collect()


FORKING = """
import os, signal, sys, threading, traceback
from fairsched.consumer import App, Consumer

def child(what):
    \"\"\"Do something in a child; print how it ended.\"\"\"
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # hangs are ended by it
        try:
            what()
            print("nothing", flush=True)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

url, queue, way = sys.argv[1:]
consumer = Consumer(url, [queue])
seen = []

def take(message):
    if not seen:
        print(child(message.ack), flush=True)
        for name in ("run", "iterate", "stop", "enter"):
            print(child(ways[name]), flush=True)
        print(child(lambda: consumer.__exit__(None, None, None)), flush=True)
    seen.append(message.body)
    if len(seen) == 50:
        consumer.stop()

ways = {
    "run": lambda: consumer.run(print),
    "iterate": lambda: next(iter(consumer)),
    "stop": lambda: consumer.stop(),
    "enter": lambda: consumer.__enter__(),
}
if way == "run":
    consumer.run(take)
else:
    with consumer:
        for message in consumer:
            with message:
                take(message)
print(consumer.stats()["acked"], sorted(seen, key=int) == [b"%d" % n for n in range(50)])
"""


@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_child_process_is_refused_and_the_parent_goes_on(broker: Node, new_queue: Declare, way: str) -> None:
    queue = new_queue("fork")
    broker.publish(queue, numbered(50))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), broker.url, queue, way],
        capture_output=True, check=False, text=True, timeout=90,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[1::2][:6] == ["0"] * 6, done
    refusals, closing = lines[0:10:2], lines[10]
    assert all(line.startswith("RuntimeError") and "fork" in line for line in refusals), done
    assert closing == "nothing"
    assert lines[-1] == "50 True"
    assert broker.count(queue) == 0


FORKING_APP = """
import os, signal, sys, threading
from fairsched.consumer import App

app = App(sys.argv[1])
seen = []

@app.consumer(sys.argv[2])
def handler(message):
    if not seen:
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            threading.Event().wait(30)
            os._exit(1)
        os.kill(pid, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    seen.append(message.body)
    if len(seen) == 2000:
        app.stop()

app.run()
print(len(seen))
"""


LEAVING = """
import os, sys
from fairsched.consumer import Consumer

with Consumer(sys.argv[1], [sys.argv[2]]) as consumer:
    for number, message in enumerate(consumer):
        if number == 0:
            pid = os.fork()
            if pid == 0:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        message.ack()
        if number == 49:
            consumer.stop()
print(consumer.stats()["acked"], consumer.stats()["reconnects"])
"""


def test_a_child_process_leaves_in_good_order(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("fork")
    broker.publish(queue, numbered(50))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEAVING), broker.url, queue],
        capture_output=True, check=False, text=True, timeout=90,
    )  # fmt: skip
    assert done.stdout.split() == ["7", "50", "0"], done
    assert done.stderr == ""


def test_a_signal_to_a_child_process_does_not_stop_the_parent(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("fork")
    broker.publish(queue, numbered(2000))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING_APP), broker.url, queue],
        capture_output=True, check=False, text=True, timeout=90,
    )  # fmt: skip
    assert done.stdout.split() == ["-15", "2000"], done
