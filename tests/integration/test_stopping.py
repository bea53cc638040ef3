"""Ending in good order: stops, signals, time-outs."""

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
from collections.abc import Callable

import pytest
from integration.rabbitmq import Node, eventually, numbered

from fairsched.consumer import Consumer

Declare = Callable[..., str]


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
