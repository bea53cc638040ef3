"""A consumer's reports of its state, and the answers to probes, on a real broker."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.declare import Declare
from support.ports import free_ports
from support.proxy import Proxy
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched import App, Consumer, aio
from fairsched.consumer import ConsumerState, client


def test_the_state_from_before_the_start_to_the_end(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    consumer = Consumer(broker.url, [queue])
    assert consumer.state == ConsumerState(consuming={queue: False})
    assert (consumer.state.ready, consumer.state.alive) == (False, True)
    before = datetime.now(UTC)
    with consumer:
        found = consumer.state
        assert (found.ready, found.alive, found.connected) == (True, True, True)
        assert (found.consuming, found.last_error, found.problem) == ({queue: True}, None, None)
        assert found.since is not None
        assert before <= found.since <= datetime.now(UTC)
        consumer.stop()
        found = consumer.state
        assert (found.ready, found.alive, found.stopping) == (False, True, True)
    found = consumer.state
    assert (found.ready, found.alive, found.connected, found.stopping) == (False, True, False, True)


def test_what_is_buffered_and_what_is_in_hand(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(10))
    with Consumer(broker.url, [queue]) as consumer:
        eventually(lambda: consumer.state.buffered == 10)
        messages = iter(consumer)
        first, second = next(messages), next(messages)
        assert (consumer.state.buffered, consumer.state.in_hand) == (8, 2)
        first.ack()
        second.defer()
        assert (consumer.state.buffered, consumer.state.in_hand) == (8, 1)
        second.ack()
        assert (consumer.state.buffered, consumer.state.in_hand) == (8, 0)


def test_a_lost_connection_and_another(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    with Proxy(broker.port) as proxy:
        url = broker.url.replace(str(broker.port), str(proxy.port))
        with Running(url, [queue]) as running:
            eventually(lambda: running.consumer.state.ready)
            opened = running.consumer.state.since
            proxy.accepting = False
            proxy.cut()
            eventually(lambda: not running.consumer.state.connected)
            lost = running.consumer.state
            assert (lost.ready, lost.alive, lost.consuming) == (False, True, {queue: False})
            assert opened < lost.since
            eventually(lambda: running.consumer.state.last_error)
            assert f"127.0.0.1:{proxy.port}" in running.consumer.state.last_error
            assert "guest:guest" not in str(running.consumer.state)
            proxy.accepting = True
            eventually(lambda: running.consumer.state.ready)
            found = running.consumer.state
            assert found.since >= lost.since
            assert found.last_error  # what happened can be read when it is over


def test_a_queue_that_is_deleted_is_not_consumed(broker: Node, new_queue: Declare) -> None:
    gone, stays = new_queue(), new_queue()
    with Running(broker.url, [gone, stays]) as running:
        eventually(lambda: running.consumer.state.ready)
        broker.delete(gone)
        eventually(lambda: running.consumer.state.consuming == {gone: False, stays: True})
        found = running.consumer.state
        assert (found.ready, found.alive, found.connected) == (False, True, True)
        assert repr(gone) in found.last_error
        broker.declare(gone)
        eventually(lambda: running.consumer.state.ready)


def test_a_window_that_is_shut_for_a_while_is_consumed(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    with Running(broker.url, [queue]) as running:
        eventually(lambda: running.consumer.state.ready)
        channel: Any = running.channel(queue)
        running.in_io_thread(lambda: channel.resize(0))
        eventually(lambda: not channel.consuming)
        assert running.consumer.state.ready
        running.in_io_thread(lambda: channel.resize(10))
        eventually(lambda: channel.consuming)
        assert running.consumer.state.ready


def test_an_io_thread_that_is_stuck(broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(1))
    released = threading.Event()
    monkeypatch.setattr(client, "STUCK", 1.5)

    def key(message: Any) -> str:
        released.wait(30)
        return "x"

    with Running(broker.url, [queue], key=key) as running:
        eventually(lambda: not running.consumer.state.alive)
        assert re.fullmatch(r"the I/O thread has been stuck for \d s", running.consumer.state.problem)
        released.set()
        eventually(lambda: running.consumer.state.alive)


def test_what_ended_a_consumer_is_a_problem(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(1))
    consumer = Consumer(broker.url, [queue])

    def handler(message: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        consumer.run(handler)
    assert (consumer.state.problem, consumer.state.alive, consumer.state.ready) == ("SystemExit: 3", False, False)


def test_the_state_of_an_asyncio_consumer(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(3))

    async def main() -> None:
        consumer = aio.Consumer(broker.url, [queue])
        assert not consumer.state.ready
        async with consumer:
            assert consumer.state.ready
            message = await consumer.get()
            assert consumer.state.in_hand == 1
            message.ack()
        assert consumer.state.stopping

    asyncio.run(main())


def test_the_state_of_an_app(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    app = App(broker.url)
    app.consumer(queue)(lambda message: None)
    assert app.state == ConsumerState()
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        eventually(lambda: app.state.ready)
        assert app.state.consuming == {queue: True}
    finally:
        app.stop()
        thread.join(40)
    assert app.state == ConsumerState()


# Probes ------------------------------------------------------------------------------------------------------------

WORKER = """
import threading
from fairsched import App

app = App(key={key})
released = threading.Event()

@app.consumer({queue!r})
def work(message):
    print("begun", flush=True)
    released.wait({seconds})
"""


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Ask as a kubelet does: by an address, without a name; 0 if no server listens."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": f"10.1.2.3:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    except OSError:
        return 0, ""
    finally:
        connection.close()


@contextmanager
def running(
    folder: Path, url: str, queue: str, *arguments: str, key: str = "None", seconds: float = 0.0
) -> Iterator[subprocess.Popen[str]]:
    (folder / "worker.py").write_text(WORKER.format(queue=queue, key=key, seconds=seconds))
    process = subprocess.Popen(
        [sys.executable, "-m", "fairsched.cli", "run", "worker:app", *arguments],
        cwd=folder, env={**os.environ, "FAIRSCHED_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_probes_of_a_worker(tmp_path: Path, broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    [port] = free_ports(1)
    with Proxy(broker.port) as proxy:
        url = broker.url.replace(str(broker.port), str(proxy.port))
        with running(tmp_path, url, queue, "--health-port", str(port), seconds=30) as worker:
            eventually(lambda: ask(port, "/readyz") == (200, "ok"))
            assert ask(port, "/healthz") == (200, "ok")
            assert ask(port, "/")[0] == 404
            proxy.accepting = False
            proxy.cut()
            eventually(lambda: ask(port, "/readyz") == (503, "not connected to a broker"))
            # The broker is away, and that is no reason to restart a worker.
            assert ask(port, "/healthz") == (200, "ok")
            proxy.accepting = True
            eventually(lambda: ask(port, "/readyz") == (200, "ok"))
            broker.delete(queue)
            eventually(lambda: ask(port, "/readyz") == (503, f"not consumed: {queue!r}"))
            broker.declare(queue)
            eventually(lambda: ask(port, "/readyz") == (200, "ok"))
            broker.publish(queue, [b"x"])
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun\n"
            # While it finishes it must not be killed.
            worker.send_signal(signal.SIGTERM)
            eventually(lambda: ask(port, "/readyz") == (503, "it was stopped"))
            assert ask(port, "/healthz") == (200, "ok")
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
    assert ask(port, "/healthz")[0] == 0


def test_probes_before_there_is_a_broker(tmp_path: Path) -> None:
    port, unused = free_ports(2)
    with running(tmp_path, f"amqp://127.0.0.1:{unused}", "q", "--health-port", str(port)):
        eventually(lambda: ask(port, "/healthz") == (200, "ok"))
        assert ask(port, "/readyz") == (503, "not connected to a broker")


def test_a_port_that_is_taken(tmp_path: Path, broker: Node) -> None:
    with running(tmp_path, broker.url, "q", "--health-port", str(broker.port)) as worker:
        assert worker.wait(30) == 2
        assert worker.stderr is not None
        assert worker.stderr.read().startswith(f"Error: cannot listen on port {broker.port}: ")
