"""Weights that change while a consumer runs, on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node
from support.running import Running
from support.waiting import eventually

from fairsched import App, CoDel, ConfigurationError, Consumer, Limit, Retry, Tenant, aio
from fairsched.cli.reloading import Reload
from fairsched.config.settings import Settings


def quanta(consumer: Any) -> dict[Any, int]:
    return {name: slot.quantum for name, slot in consumer.stats()["slots"].items()}


@pytest.mark.steady
def test_shares_follow_the_weight(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()
    for queue in (gold, free):
        broker.publish(queue, [b"x"] * 600)
    with Consumer(broker.url, {gold: 1, free: 1}) as consumer:
        eventually(lambda: consumer.state.buffered == 500)
        messages = iter(consumer)

        def take(count: int) -> Counter[str]:
            found: Counter[str] = Counter()
            for message in itertools.islice(messages, count):
                with message:
                    found[message.queue] += 1
            return found

        assert take(20) == {gold: 10, free: 10}
        consumer.set_weight(gold, 4)
        found = take(100)
        assert abs(found[gold] - 80) <= 4
        consumer.set_weight(free, 12)
        found = take(100)
        assert abs(found[free] - 75) <= 12
    assert quanta(consumer) == {gold: 1, free: 3}


def test_windows_follow_the_weight(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()
    with Running(broker.url, [gold, free]) as running:
        eventually(lambda: running.consumer.state.ready)

        def windows() -> list[int]:
            channels: list[Any] = [running.channel(name) for name in (gold, free)]
            return [channel.prefetch.window for channel in channels]

        assert windows() == [250, 250]
        running.consumer.set_weight(gold, 4)
        eventually(lambda: windows() == [400, 100])
        broker.publish(gold, [b"x"] * 1000)
        broker.publish(free, [b"x"] * 1000)
        eventually(lambda: running.acked == 2000)
        assert set(running.processed.values()) == {1000}


def test_a_window_of_its_own_stays(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()
    with Running(broker.url, [gold, free], prefetch={gold: 10, free: 20}) as running:
        eventually(lambda: running.consumer.state.ready)
        running.consumer.set_weight(gold, 4)
        done = threading.Event()
        running.consumer._client.io_thread._loop.add_callback_threadsafe(done.set)
        assert done.wait(30)
        channels: list[Any] = [running.channel(name) for name in (gold, free)]
        assert [channel.window for channel in channels] == [10, 20]


@pytest.mark.parametrize("options", [{"prefetch": "auto"}, {"max_buffer_bytes": 100_000}, {"cost": "time"}])
def test_every_kind_of_window_goes_on(broker: Node, new_queue: Declare, options: dict[str, Any]) -> None:
    gold, free = new_queue(), new_queue()
    with Running(broker.url, [gold, free], **options) as running:
        eventually(lambda: running.consumer.state.ready)
        for weight in (4, 1, 9):
            running.consumer.set_weight(gold, weight)
            broker.publish(gold, [b"x" * 100] * 300)
            broker.publish(free, [b"x" * 100] * 300)
        eventually(lambda: running.acked == 1800)


def test_what_is_refused_changes_nothing() -> None:
    consumer = Consumer("amqp://nobody", {"gold": 40, "free": 4})
    for name, weight, said in [
        ("silver", 4, "queue 'silver' is not consumed; there are gold, free"),
        ("gold", 0, "weight of 'gold' must be a whole number of at least 1, got 0"),
        ("gold", True, "got True"),
        ("gold", 1.5, "got 1.5"),
        ("gold", 2**62 + 1, "weight of 'gold' is too large"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            consumer.set_weight(name, weight)  # type: ignore[arg-type]
    assert quanta(consumer) == {"gold": 10, "free": 1}
    consumer.set_weight("free", 8)
    assert quanta(consumer) == {"gold": 5, "free": 1}


def test_tenants() -> None:
    consumer = Consumer("amqp://nobody", ["q"], key="header:tenant", tenants={"a": 40, "*": 4})
    consumer.set_weight("a", 80)
    consumer.set_weight("new", 8)
    assert quanta(consumer) == {"a": 20, "new": 2}
    with pytest.raises(ConfigurationError, match="weight of 'a' must be a multiple of 4"):
        consumer.set_weight("a", 6)
    with pytest.raises(ConfigurationError, match=r"weight of '\*', all other tenants, cannot change while .* got 8"):
        consumer.set_weight("*", 8)
    assert quanta(consumer) == {"a": 20, "new": 2}


def test_worker_queues() -> None:
    consumer = Consumer("amqp://nobody", {"a": 1, "b": 1}, ordering_key="header:x", workers=3)
    consumer.set_weight("a", 7)
    assert [
        {name: slot.quantum for name, slot in worker_queue.stats().items()}
        for worker_queue in consumer._client.worker_queues.queues
    ] == [{"a": 7, "b": 1}] * 3


def test_from_many_threads_at_once() -> None:
    names = [f"q{number}" for number in range(8)]
    consumer = Consumer("amqp://nobody", names)
    barrier = threading.Barrier(8)

    def change(name: str, weight: int) -> None:
        barrier.wait(30)
        for _ in range(50):
            consumer.set_weight(name, weight)

    threads = [threading.Thread(target=change, args=(name, 3 + number)) for number, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert quanta(consumer) == {name: 3 + number for number, name in enumerate(names)}


class Acting(str):
    """A tenant whose hash does something, once."""

    act: Callable[[], object] | None
    __slots__ = ("act",)

    def __hash__(self) -> int:
        act, self.act = getattr(self, "act", None), None
        if act is not None:
            act()
        return str.__hash__(self)


def in_time(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_tenant_whose_hash_changes_a_weight() -> None:
    consumer = Consumer("amqp://nobody", ["q"], key="header:tenant", tenants={"a": 4})
    tenant = Acting("new")
    changes = {tenant: 3}
    tenant.act = lambda: consumer.set_weight("a", 7)
    in_time(lambda: consumer._client.set_weights(changes))
    found = quanta(consumer)
    assert (found["a"], found["new"]) == (7, 3)


def test_a_tenant_whose_hash_waits_for_a_stop_elsewhere() -> None:
    consumer = Consumer("amqp://nobody", ["q"], key="header:tenant", tenants={"a": 4})
    tenant = Acting("new")

    def act() -> None:
        stopping = threading.Thread(target=consumer.stop, daemon=True)
        stopping.start()
        stopping.join(10)
        assert not stopping.is_alive()

    changes = {tenant: 3}
    tenant.act = act
    in_time(lambda: consumer._client.set_weights(changes))
    assert consumer.state.stopping
    assert quanta(consumer)["new"] == 3


def test_a_destructor_may_call_the_consumer_wherever_it_runs() -> None:
    """The collector runs destructors between any two instructions, those that hold a lock of ours too."""
    consumer = Consumer("amqp://nobody", ["q"], retry=Retry(), codel=CoDel())
    client = consumer._client
    assert client._retries is not None
    assert client.shedding is not None
    guards = [client._guard, client._pace._guard, client._retries._guard, client.shedding._guard]

    def run() -> None:
        for guard in guards:
            with guard:
                consumer.stats()
                consumer.set_weight("q", 2)
                consumer.stop()
                assert consumer.state.stopping

    in_time(run)


def test_asyncio(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()

    async def main() -> None:
        async with aio.Consumer(broker.url, [gold, free]) as consumer:
            consumer.set_weight(gold, 3)
            assert quanta(consumer) == {gold: 3, free: 1}

    asyncio.run(main())


def test_an_app() -> None:
    app = App("amqp://nobody")
    app.consumer("gold", weight=2)(lambda message: None)
    app.set_weight("gold", 3)
    assert app.weights == {"gold": 3}
    with pytest.raises(ConfigurationError, match="no handler for queue 'free'; there are \\['gold'\\]"):
        app.set_weight("free", 3)
    with pytest.raises(ConfigurationError, match="got 0"):
        app.set_weight("gold", 0)
    assert app.weights == {"gold": 3}


def test_a_new_weight_leaves_limit_and_band_of_a_tenant() -> None:
    tenants = {"a": Tenant(weight=2, limit=Limit(3), band=0)}
    consumer = Consumer("amqp://nobody", ["q"], key="header:tenant", tenants=tenants)
    consumer.set_weight("a", 7)
    assert consumer._client.settings.tenants == {"a": Tenant(weight=7, limit=Limit(3), band=0)}
    (worker_queue,) = consumer._client.worker_queues.queues
    assert worker_queue.stats()["a"].quantum == 7
    assert worker_queue.limit_stats()["a"].concurrency == 3


# SIGHUP ------------------------------------------------------------------------------------------------------------

WORKER = """
from fairsched import App

app = App()

def work(message):
    print({{name: slot.quantum for name, slot in app.stats()["slots"].items()}}, flush=True)

app.consumer({gold!r}, weight=40)(work)
app.consumer({free!r}, weight=4)(work)
"""


def test_sighup_applies_the_weights_of_the_file(tmp_path: Path, broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()
    (tmp_path / "worker.py").write_text(WORKER.format(gold=gold, free=free))
    file, output = tmp_path / "fairsched.toml", tmp_path / "output"
    file.write_text(f"queues = {{{gold} = 1, {free} = 1}}\nprefetch = 10")
    with output.open("w") as stream:
        worker = subprocess.Popen(
            [sys.executable, "-m", "fairsched.cli", "run", "worker:app"], cwd=tmp_path, stdin=subprocess.DEVNULL,
            env={**os.environ, "FAIRSCHED_URL": broker.url}, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:

        def quanta_are(first: int, second: int) -> None:
            before = output.read_text().count("\n")
            broker.publish(gold, [b"x"])
            said = str({gold: first, free: second})
            eventually(lambda: said in "".join(output.read_text().splitlines(keepends=True)[before:]), what=said)

        def reload(text: str, *said: str) -> None:
            before = len(output.read_text())
            file.write_text(text)
            worker.send_signal(signal.SIGHUP)
            for line in said:
                eventually(lambda: line in output.read_text()[before:], what=line)  # noqa: B023

        quanta_are(1, 1)
        reload(
            f"queues = {{{gold} = 6, {free} = 2}}\nprefetch = 20",
            f"SIGHUP: weights are now {gold}=6, {free}=2",
            "SIGHUP: without effect until the next start: prefetch",
        )
        quanta_are(3, 1)
        reload("queues = {", "ERROR fairsched.cli.reloading: SIGHUP: the weights stay as they are: file fairsched.toml")
        reload(f"queues = {{{gold} = 0, {free} = 2}}", "SIGHUP: the weights stay as they are: queues must be")
        reload("queues = {nobody = 1}", "SIGHUP: the weights stay as they are: no handler for queue 'nobody'")
        reload(
            f"queues = {{{gold} = 6}}\nprefetch = 10", f"until the next start: queues {free}", "no weight has changed"
        )
        quanta_are(3, 1)
        reload(
            f"queues = {{{gold} = {{weight = 6, prefetch = 7, time_limit = 5}}, {free} = 2}}\nprefetch = 10",
            f"until the next start: prefetch, time_limit of queue '{gold}'",
            "no weight has changed",
        )
        # Without weights in the file they are those of the app.
        reload("prefetch = 10", f"SIGHUP: weights are now {gold}=40, {free}=4")
        quanta_are(10, 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in output.read_text()


def test_reloading_applies_the_weights_of_tenants_and_says_what_it_cannot_apply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "fairsched.toml"
    file.write_text('[tenants]\na = 2\n"*" = 1\n')
    app = App("amqp://nobody", key="header:tenant")
    app.consumer("q")(lambda message: None)
    settings = Settings.load(file=file, environ={})
    app._consumer = app.make_consumer(**settings.consumer_options())
    reload = Reload(app, {}, file, settings)
    assert quanta(app._consumer) == {"a": 2}
    file.write_text('[tenants]\na = {weight = 3, limit = 4}\nb = 5\n"*" = 2\n')
    caplog.set_level("INFO")
    reload()
    assert [record.getMessage() for record in caplog.records] == [
        "SIGHUP: without effect until the next start: limit of tenant 'a'",
        "SIGHUP: without effect until the next start: weight of tenant '*'",
        "SIGHUP: weights are now a=3, b=5",
    ]
    assert quanta(app._consumer) == {"a": 3, "b": 5}
    file.write_text("")
    reload()
    assert quanta(app._consumer) == {"a": 1, "b": 1}
