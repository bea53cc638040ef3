"""Lost connections, lost channels, cancelled consumers, blocked connections, signals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from integration.rabbitmq import Node, eventually

from fairsched.consumer import Consumer

Declare = Callable[..., str]
MESSAGES = 50_000


@pytest.fixture
def mortal() -> Iterator[Node]:
    """A node that the test may kill."""
    node = Node()
    try:
        node.start()
        yield node
    finally:
        node.close()


class Running:
    """A consumer at work in a thread of its own, counting what it processed."""

    def __init__(self, url: str | list[str], queues: list[str], work: float = 0.0, **options: object) -> None:
        self.processed: Counter[tuple[str, bytes]] = Counter()
        self.consumer = Consumer(url, queues, **options)
        self.work = work
        self.error: BaseException | None = None
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.consumer.run(self._handle)
        except BaseException as error:
            self.error = error

    def _handle(self, message: object) -> None:
        if self.work:
            # Stands for work that waits.
            self._pause.wait(self.work)
        self.processed[message.queue, message.body] += 1

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "the consumer hangs"
        assert self.error is None

    @property
    def acked(self) -> int:
        return self.consumer.stats()["acked"]

    def subscription(self, queue: str) -> object:
        return self.consumer._machine.pump._current[queue]

    def in_io_thread(self, function: Callable[[], object]) -> None:
        self.consumer._machine.pump._loop.add_callback_threadsafe(function)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_no_message_is_lost_when_the_broker_is_killed_three_times(mortal: Node) -> None:
    queues = ["killed-a", "killed-b"]
    mortal.declare(*queues)
    for queue in queues:
        mortal.publish(queue, numbered(MESSAGES // 2), commit=True, delivery_mode=2)
    with Running(mortal.url, queues) as running:
        for part in (1, 2, 3):
            eventually(lambda part=part: len(running.processed) >= MESSAGES * part // 5, 60)
            mortal.restart()
        eventually(lambda: len(running.processed) == MESSAGES, 120, f"{len(running.processed)} processed")
        eventually(lambda: sum(mortal.count(queue) for queue in queues) == 0)
        stats = running.consumer.stats()
        # And it ends although there is no broker to say goodbye to.
        mortal.kill()
    assert set(running.processed) == {(queue, body) for queue in queues for body in numbered(MESSAGES // 2)}
    assert stats["reconnects"] >= 3


@pytest.mark.slow
def test_no_message_is_lost_when_channels_fail(broker: Node, new_queue: Declare) -> None:
    queues = [new_queue("channel") for _ in range(2)]
    for queue in queues:
        broker.publish(queue, numbered(MESSAGES // 2), delivery_mode=2)
    with Running(broker.url, queues) as running:
        for part in (1, 2, 3):
            eventually(lambda part=part: len(running.processed) >= MESSAGES * part // 5, 60)
            lost = running.subscription(queues[0])
            # The broker closes a channel on which an unknown delivery is acked.
            running.in_io_thread(lambda lost=lost: lost._channel.basic_ack(10**9))
            eventually(lambda lost=lost: not lost.alive)
        eventually(lambda: len(running.processed) == MESSAGES, 120)
        eventually(lambda: sum(broker.count(queue) for queue in queues) == 0)
        stats = running.consumer.stats()
    assert set(running.processed) == {(queue, body) for queue in queues for body in numbered(MESSAGES // 2)}
    assert stats["reconnects"] == 0


def test_what_a_lost_channel_delivered_is_settled_without_effect(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("stale")
    broker.publish(queue, numbered(5))
    first: list[object] = []
    again: list[object] = []
    consumer = Consumer(broker.url, [queue])

    def handler(message: object) -> None:
        message.defer()
        (again if message.redelivered else first).append(message)

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    try:
        eventually(lambda: len(first) == 5)
        pump = consumer._machine.pump
        lost = pump._current[queue]
        pump._loop.add_callback_threadsafe(lambda: lost._channel.basic_ack(10**9))
        eventually(lambda: len(again) == 5)
        assert not any(message.alive for message in first)
        assert [message.ack() for message in first] == [False] * 5
        assert consumer.stats()["stale_settlements"] == 5
        assert [message.ack() for message in again] == [True] * 5
    finally:
        consumer.stop()
        thread.join(30)
    assert broker.count(queue) == 0


def test_a_deleted_queue_is_consumed_again_when_it_is_back(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("deleted"), new_queue("other")
    broker.publish(queue, numbered(10))
    with Running(broker.url, [queue, other]) as running:
        eventually(lambda: running.acked == 10)
        broker.delete(queue)
        eventually(lambda: not running.subscription(queue).consuming)
        broker.publish(other, numbered(10))
        eventually(lambda: running.acked == 20, what="the other queue goes on")
        broker.declare(queue)
        broker.publish(queue, [b"back"])
        eventually(lambda: running.processed[queue, b"back"] == 1)
    assert broker.count(queue) == 0


def test_a_lost_connection_is_made_again(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("lost")
    broker.publish(queue, numbered(2000))
    with Running(broker.url, [queue], work=0.0005) as running:
        eventually(lambda: len(running.processed) > 200)
        broker.control("close_all_connections", "test")
        eventually(lambda: len(running.processed) == 2000)
        eventually(lambda: broker.count(queue) == 0)
        assert running.consumer.stats()["reconnects"] == 1


def test_long_handlers_do_not_delay_heartbeats(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("long")
    broker.publish(queue, numbered(2))
    # pika gives a silent peer five seconds of grace, RabbitMQ one more interval: 3 heartbeats and then some.
    with Running(broker.url + "?heartbeat=2", [queue], work=6.5) as running:
        eventually(lambda: len(running.processed) == 2)
        eventually(lambda: running.acked == 2)
        stats = running.consumer.stats()
    assert (stats["received"], stats["reconnects"]) == (2, 0)
    assert broker.count(queue) == 0


def test_a_handler_that_computes_does_not_delay_heartbeats(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("busy")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url + "?heartbeat=1", [queue])

    def handler(message: object) -> None:
        end = time.perf_counter() + 4
        while time.perf_counter() < end:
            pass
        consumer.stop()

    consumer.run(handler)
    assert (consumer.stats()["acked"], consumer.stats()["reconnects"]) == (1, 0)


def test_a_blocked_connection_goes_on_consuming(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("blocked")
    broker.publish(queue, numbered(100))
    with caplog.at_level(logging.INFO, "fairsched.consumer"), Running(broker.url, [queue], work=0.01) as running:
        eventually(lambda: len(running.processed) > 2)
        try:
            broker.control("set_vm_memory_high_watermark", "absolute", "1")
            # The broker blocks connections that publish, so this one does once.
            channel = running.subscription(queue)._channel
            running.in_io_thread(lambda: channel.basic_publish("", "no-such-queue", b"x"))
            eventually(lambda: "blocked the connection" in caplog.text)
            eventually(lambda: len(running.processed) == 100)
        finally:
            broker.control("set_vm_memory_high_watermark", "0.6")
        eventually(lambda: "unblocked the connection" in caplog.text)
        eventually(lambda: broker.count(queue) == 0)


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
    eventually(lambda: hasattr(consumer._machine, "pump") and consumer._machine.pump.last_error)
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


def started(broker: Node, queue: str, work: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), broker.url, queue, str(work)],
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


def test_amqps(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tls=True)
    try:
        node.start()
        node.declare("tls")
        node.publish("tls", [b"%d" % number + b"x" * 1000 for number in range(2000)])
        options = f"?ssl_options=%7B%27ca_certs%27%3A%27{node.certificate}%27%7D"
        with Running(node.tls_url + options, ["tls"]) as running:
            eventually(lambda: len(running.processed) == 2000)
        assert node.count("tls") == 0
        untrusting = Consumer(node.tls_url, ["tls"])
        with pytest.raises(Exception, match="certificate verify failed"):
            untrusting.run(lambda message: None)
    finally:
        node.close()
