"""Ending in good order: stops, signals, time-outs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched import aio, from_pika
from fairsched.consumer import Consumer


@pytest.mark.usefixtures("either_way")
def test_stop_requeues_what_is_not_done_in_time(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("late")
    broker.publish(queue, numbered(20))
    release = threading.Event()
    started = threading.Event()
    consumer = Consumer(broker.url, [queue], shutdown_timeout=0.3)

    def handler(message: object) -> None:
        started.set()
        release.wait(30)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    assert started.wait(30)
    consumer.stop()
    thread.join(20)
    assert not thread.is_alive()
    eventually(lambda: broker.count(queue) == 20)
    release.set()
    eventually(lambda: consumer.stats()["stale_settlements"] == 1)


def test_the_second_stop_leaves_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("twice")
    broker.publish(queue, numbered(20))
    release = threading.Event()
    started = threading.Event()
    consumer = Consumer(broker.url, [queue])

    def handler(message: object) -> None:
        started.set()
        release.wait(30)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    assert started.wait(30)
    consumer.stop()
    consumer.stop()
    thread.join(10)
    assert not thread.is_alive()
    eventually(lambda: broker.count(queue) == 20)
    release.set()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("now", [False, True])
def test_stop_in_full_flow_loses_and_repeats_nothing(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture, now: bool
) -> None:
    # Bodies that the pieces of the stream cut through, so that some deliveries take pika's way and some ours.
    queues = [new_queue("flow") for _ in range(4)]
    for queue in queues:
        broker.publish(queue, [body + b" " * 3000 for body in numbered(1000)])
    processed: Counter[tuple[str, bytes]] = Counter()
    consumer = Consumer(broker.url, queues, prefetch=400)

    def handler(message: object) -> None:
        processed[message.queue, message.body] += 1
        if len(processed) == 300:
            consumer.stop(now)

    with caplog.at_level(logging.WARNING):
        consumer.run(handler)
    assert set(processed.values()) == {1}
    assert 300 <= len(processed) < 4000
    assert consumer.stats()["acked"] == len(processed)
    eventually(lambda: sum(broker.count(queue) for queue in queues) == 4000 - len(processed))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_stop_before_a_connection_exists() -> None:
    consumer = Consumer("amqp://127.0.0.1:1/", ["q"], connect_timeout=30)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(lambda message: None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: hasattr(consumer._client, "io_thread") and consumer._client.io_thread.last_error)
    consumer.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert errors == []


@pytest.mark.parametrize("attempt", range(10))
def test_a_consumer_stopped_before_it_runs_does_nothing(broker: Node, new_queue: Declare, attempt: int) -> None:
    # Ten times, because the end meets the connection in different states.
    queue = new_queue("before")
    broker.publish(queue, numbered(3))
    consumer = Consumer(broker.url, [queue])
    consumer.stop()
    consumer.run(lambda message: None)
    assert consumer.stats()["acked"] == 0
    eventually(lambda: broker.count(queue) == 3)


class Deferred:
    """Handlers that keep their messages, and a thread that acks them when the consumer has nothing else left to do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[Callable[[], object]] = []
        self.idle = threading.Event()
        self.consumer: Consumer | aio.Consumer
        self._settler = threading.Thread(target=self._settle)

    def keep(self, ack: Callable[[], object]) -> None:
        self.kept.append(ack)
        if len(self.kept) == self.count:
            self.idle.set()
            self.consumer.stop()

    def _settle(self) -> None:
        assert self.idle.wait(30)
        eventually(lambda: self.consumer._client._closed, what="the consumer has nothing left but to wait for these")
        for ack in self.kept:
            ack()

    def handler(self, message: object) -> None:
        message.defer()
        self.keep(message.ack)

    async def coroutine(self, message: object) -> None:
        self.handler(message)

    def callback(self, channel: object, method: object, properties: object, body: bytes) -> None:
        self.keep(lambda: channel.connection.add_callback_threadsafe(lambda: channel.basic_ack(method.delivery_tag)))

    def by_run(self, url: str, queue: str) -> None:
        self._run(url, queue, self.handler)

    def by_from_pika(self, url: str, queue: str) -> None:
        self._run(url, queue, from_pika(self.callback))

    def _run(self, url: str, queue: str, handler: Callable[[object], object]) -> None:
        self.consumer = Consumer(url, [queue])
        self.consumer.run(handler)

    def by_iteration(self, url: str, queue: str) -> None:
        with Consumer(url, [queue]) as self.consumer:
            for message in self.consumer:
                self.handler(message)

    def by_aio_run(self, url: str, queue: str) -> None:
        async def main() -> None:
            async with aio.Consumer(url, [queue]) as self.consumer:
                await self.consumer.run(self.coroutine)

        asyncio.run(main())

    def by_aio_iteration(self, url: str, queue: str) -> None:
        async def main() -> None:
            async with aio.Consumer(url, [queue]) as self.consumer:
                async for message in self.consumer:
                    self.handler(message)

        asyncio.run(main())

    def consume(self, way: str, url: str, queue: str) -> None:
        self._settler.start()
        getattr(self, way)(url, queue)
        self._settler.join()


WAYS = ["by_run", "by_from_pika", "by_iteration", "by_aio_run", "by_aio_iteration"]


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_waits_for_deferred_messages(broker: Node, new_queue: Declare, way: str) -> None:
    queue = new_queue("deferred")
    broker.publish(queue, numbered(20))
    deferred = Deferred(20)
    deferred.consume(way, broker.url, queue)
    stats = deferred.consumer.stats()
    assert (stats["acked"], stats["stale_settlements"]) == (20, 0)
    assert broker.count(queue) == 0


def test_deferred_messages_that_are_not_settled_in_time_return(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("deferred")
    broker.publish(queue, numbered(20))
    consumer = Consumer(broker.url, [queue], shutdown_timeout=1.0)
    kept: list[object] = []

    def handler(message: object) -> None:
        message.defer()
        kept.append(message)
        if len(kept) == 20:
            consumer.stop()

    begin = time.monotonic()
    consumer.run(handler)
    assert time.monotonic() - begin < 10
    assert "20 messages that were handed out were not settled within the shutdown timeout of 1 s" in caplog.text
    eventually(lambda: broker.count(queue) == 20)


def test_another_stop_does_not_wait_for_deferred_messages(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("deferred")
    broker.publish(queue, numbered(20))
    deferred = Deferred(20)
    runs = threading.Thread(target=deferred.by_run, args=(broker.url, queue))
    runs.start()
    assert deferred.idle.wait(30)
    eventually(lambda: deferred.consumer._client._closed)
    begin = time.monotonic()
    deferred.consumer.stop()
    runs.join(30)
    assert time.monotonic() - begin < 5
    eventually(lambda: broker.count(queue) == 20)


@pytest.mark.usefixtures("either_way")
def test_a_stop_now_returns_what_is_buffered_and_lets_handlers_finish(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("now")
    broker.publish(queue, numbered(20))
    started, release = threading.Barrier(3), threading.Event()
    consumer = Consumer(broker.url, [queue], workers=2)

    def handler(message: object) -> None:
        started.wait(30)
        assert release.wait(30)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    started.wait(30)
    consumer.stop(now=True)
    eventually(lambda: broker.count(queue) == 18, what="what is buffered returns while handlers run")
    assert thread.is_alive()
    release.set()
    thread.join(30)
    stats = consumer.stats()
    assert (stats["acked"], stats["nacked"], stats["stale_settlements"]) == (2, 18, 0)
    assert broker.count(queue) == 18


def test_an_async_stop_now_lets_handlers_finish(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("now")
    broker.publish(queue, numbered(20))

    async def main() -> dict[str, object]:
        running = 0
        release = asyncio.Event()
        async with aio.Consumer(broker.url, [queue], workers=2) as consumer:

            async def handler(message: object) -> None:
                nonlocal running
                running += 1
                if running == 2:
                    consumer.stop(now=True)
                    await asyncio.to_thread(eventually, lambda: broker.count(queue) == 18)
                    release.set()
                await release.wait()

            await consumer.run(handler)
        return consumer.stats()

    stats = asyncio.run(main())
    assert (stats["acked"], stats["nacked"], stats["stale_settlements"]) == (2, 18, 0)
    assert broker.count(queue) == 18


@pytest.mark.steady
def test_a_stop_on_a_half_open_link_keeps_to_its_time_and_blames_no_handler(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("silent")
    broker.publish(queue, numbered(20))
    with Proxy(broker.port) as proxy:
        with Running(behind(proxy, broker.url), [queue], shutdown_timeout=3.0) as running:
            eventually(lambda: running.acked == 20)
            eventually(lambda: broker.left(queue) == 0)
            proxy.silence()
            begin = time.monotonic()
        # Not once more for each thing that is not answered; nor until a heartbeat is missed.
        assert time.monotonic() - begin < 5.5
    assert "did not confirm" in caplog.text
    assert "handed out" not in caplog.text
    assert "handlers" not in caplog.text


def test_a_handler_that_is_not_done_is_named_when_the_time_is_over(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("silent")
    broker.publish(queue, numbered(20))
    started, release = threading.Barrier(3), threading.Event()
    consumer = Consumer(broker.url, [queue], shutdown_timeout=1.0, workers=4)

    def handler(message: object) -> None:
        if message.body in (b"0", b"1"):
            started.wait(30)
            release.wait(30)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    started.wait(30)
    consumer.stop()
    thread.join(30)
    release.set()
    assert "2 messages that were handed out were not settled within the shutdown timeout of 1 s" in caplog.text
    eventually(lambda: broker.count(queue) == 2)


PROGRAM = """
import sys, threading
from fairsched.consumer import App
app = App(sys.argv[1], shutdown_timeout=20)
pause = threading.Event()
done = []

@app.consumer(sys.argv[2])
def handler(message):
    pause.wait(float(sys.argv[3]))
    done.append(message.body)
    print("done", message.body.decode(), flush=True)

app.run()
print("left", flush=True)
"""


#: The same, but it also says when it begins.
ANNOUNCING = PROGRAM.replace("    pause.wait(", '    print("begun", flush=True)\n    pause.wait(')


def started(broker: Node, queue: str, work: float, program: str = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), broker.url, queue, str(work)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_what_is_here_and_leaves_the_rest(
    broker: Node, new_queue: Declare, number: signal.Signals
) -> None:
    queue = new_queue("signal")
    broker.publish(queue, numbered(3000))
    with started(broker, queue, 0.001) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(50)]
        process.send_signal(number)
        rest = process.stdout.readlines()
        assert process.wait(40) == 0
    done = [line for line in first + rest if line.startswith("done")]
    assert rest[-1] == "left\n"
    assert len(done) < 3000
    # Everything that was processed is acked, and nothing else.
    eventually(lambda: broker.count(queue) == 3000 - len(done))


def test_the_second_signal_leaves_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("signal")
    broker.publish(queue, numbered(100))
    with started(broker, queue, 0.5) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("done")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.readlines()
        assert process.wait(40) == 0
        assert time.monotonic() - begin < 10
    done = 1 + sum(line.startswith("done") for line in rest)
    assert done < 10
    eventually(lambda: broker.count(queue) >= 100 - done - 1)


def test_the_second_signal_lets_a_handler_finish_and_the_third_does_not(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("signal")
    broker.publish(queue, numbered(100))
    with started(broker, queue, 1.0) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("done")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.readlines()
        assert process.wait(40) == 0
    done = 1 + sum(line.startswith("done") for line in rest)
    # The handler that ran was waited for, and its message is acked.
    eventually(lambda: broker.count(queue) == 100 - done)
    with started(broker, queue, 60.0, ANNOUNCING) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        begin = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            # Equal signals that are pending at a time are one.
            eventually(lambda number=number: not pending(process.pid, number))
        assert process.wait(40) == 0
        assert time.monotonic() - begin < 10
    eventually(lambda: broker.count(queue) == 100 - done)


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that has not taken it yet."""
    with open(f"/proc/{pid}/status") as status:
        masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


@pytest.mark.usefixtures("either_way")
def test_a_quorum_queue_hears_of_what_was_handled_before_a_stop(broker: Node, new_queue: Declare) -> None:
    """It forgets settlements that come last of hundreds, right before the end of the channel."""
    for _ in range(5):
        queue = new_queue("quorum", arguments={"x-queue-type": "quorum"})
        broker.publish(queue, numbered(400), delivery_mode=2)
        handled: Counter[bytes] = Counter()
        consumer = Consumer(broker.url, [queue])

        def handler(message: object, handled: Counter[bytes] = handled, consumer: Consumer = consumer) -> None:
            handled[message.body] += 1
            if len(handled) == 100:
                consumer.stop(now=True)

        consumer.run(handler)
        eventually(lambda queue=queue: broker.count(queue) >= 300)
        # The one that was in its handler is settled behind the others that go back.
        assert broker.count(queue) <= 301
