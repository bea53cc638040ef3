"""Retries of quorum queues that delay and count them: from RabbitMQ 4.3 on without copies, before by copies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from support import attempting
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Queue, Retry, aio
from fairsched.consumer.requeueing import late_returns

pytestmark = pytest.mark.rabbitmq("quorum queues")

_numbers = itertools.count()


def new_name() -> str:
    return f"delayed-{next(_numbers)}"


def delayed(broker: Node) -> bool:
    """Whether the broker delays; an older one ignores the arguments."""
    return broker.version >= (4, 3)


def fail(message: Any) -> None:
    raise ValueError("bad")


@contextlib.contextmanager
def consuming(consumer: Consumer, handler: Any) -> Iterator[None]:
    """Run a consumer in a thread, until the block ends."""
    thread = threading.Thread(target=consumer.run, args=[handler])
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()


def letters(broker: Node, queue: str) -> list[tuple[bytes, pika.BasicProperties]]:
    """Take all messages out of a queue."""
    found = []
    with broker.connect() as channel:
        while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((one[2], one[1]))
    return found


def queues_of(broker: Node, queue: str) -> set[str]:
    """The queues that retries of a queue have made."""
    return {name for name in broker.messages() if name.startswith(f"{queue}.")}


def delaying(broker: Node, retry: Retry, **options: Any) -> Queue:
    """A queue that makes the delays of a rule, and is declared already."""
    found = Queue(new_name(), arguments=retry.queue_arguments, retry=retry, **options)
    broker.declare(found.name, arguments=found.all_arguments)
    return found


@pytest.mark.usefixtures("either_way")
def test_a_message_comes_back_after_each_delay_and_is_dead_lettered(broker: Node) -> None:
    retry = Retry(4, backoff=(0.2, 0.5), jitter=False)
    queue = delaying(broker, retry)
    broker.publish(queue.name, [b"one"], headers={"tenant": "a"}, priority=4, message_id="m", delivery_mode=2)
    times: list[float] = []

    def handler(message: Any) -> None:
        times.append(time.monotonic())
        raise ValueError("bad")

    consumer = Consumer(broker.url, [queue])
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
        stats = consumer.stats()
        assert (stats["retried"], stats["errors"], stats["retry_failures"]) == (3, 4, 0)
        # Those that were returned, and the one of which a copy is in the other queue.
        assert (stats["nacked"], stats["acked"]) == ((3, 1) if delayed(broker) else (0, 4))
        made = {f"{queue.name}.dead-letter"}
        assert queues_of(broker, queue.name) == (
            made if delayed(broker) else {*made, *(f"{queue.name}.retry.{delay}" for delay in (200, 400, 500))}
        )
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(pause > delay - 0.002 for pause, delay in zip(pauses, (0.2, 0.4, 0.5), strict=True))
    [(body, properties)] = letters(broker, f"{queue.name}.dead-letter")
    headers = properties.headers
    assert (body, properties.priority, properties.message_id, headers["tenant"]) == (b"one", 4, "m", "a")
    assert (headers["x-attempts"], headers["x-exception"]) == (4, "ValueError: bad")
    assert headers["x-original-queue"] == headers["x-original-routing-key"] == queue.name
    assert not {"x-delivery-count", "x-acquired-count", "x-death"} & headers.keys()


def test_many_messages_have_all_their_attempts(broker: Node) -> None:
    retry = Retry(3, backoff=0.2, jitter=False, dead_letter=False)
    queue = delaying(broker, retry, dead_letter=None)
    broker.publish(queue.name, numbered(300), delivery_mode=2)
    calls: Counter[bytes] = Counter()

    def handler(message: Any) -> None:
        calls[message.body] += 1
        if calls[message.body] < 3:
            raise OSError("not yet")

    consumer = Consumer(broker.url, [queue], workers=4)
    with consuming(consumer, handler):
        eventually(lambda: len(calls) == 300 and set(calls.values()) == {3})
        eventually(lambda: consumer.stats()["acked"] == (300 if delayed(broker) else 900))
    assert consumer.stats()["retried"] == 600
    eventually(lambda: broker.left(queue.name) == 0)


def test_coroutines_and_batches_are_retried_so(broker: Node) -> None:
    retry = Retry(2, backoff=0.2, jitter=False)
    queue, other = delaying(broker, retry), delaying(broker, retry)
    broker.publish(queue.name, numbered(20), delivery_mode=2)
    broker.publish(other.name, numbered(20), delivery_mode=2)

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], workers=5) as consumer:

            async def handler(message: Any) -> None:
                await asyncio.sleep(0)
                raise ValueError

            task = asyncio.create_task(consumer.run(handler))
            await asyncio.to_thread(eventually, lambda: consumer.stats()["dead_lettered"] == 20)
            consumer.stop()
            await task
            return consumer.stats()

    assert asyncio.run(main())["retried"] == 20
    with Consumer(broker.url, [other]) as consumer:
        handled = 0
        for batch in consumer.batches(7):
            handled += len(batch)
            with contextlib.suppress(ValueError), batch:
                raise ValueError
            if handled == 40:
                break
        eventually(lambda: consumer.stats()["dead_lettered"] == 20)
    for name in (queue.name, other.name):
        assert sorted(body for body, _ in letters(broker, f"{name}.dead-letter")) == sorted(numbered(20))


def test_what_is_returned_uses_no_attempt(broker: Node) -> None:
    retry = Retry(2, backoff=0.2, jitter=False)
    queue = delaying(broker, retry)
    broker.publish(queue.name, [b"x"], delivery_mode=2)
    seen: list[dict[str, Any]] = []

    def handler(message: Any) -> None:
        seen.append(message.headers)
        if len(seen) <= 5:
            message.nack()
            return
        raise ValueError

    consumer = Consumer(broker.url, [queue])
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
    assert len(seen) == 7
    [(_, properties)] = letters(broker, f"{queue.name}.dead-letter")
    assert properties.headers["x-attempts"] == 2


def test_attempts_by_copies_are_added(broker: Node) -> None:
    """Those of before the broker was upgraded."""
    queue = delaying(broker, Retry(5, backoff=0.2, jitter=False))
    headers = {"x-attempts": 3, "x-original-queue": queue.name}
    broker.publish(queue.name, [b"x"], headers=headers, delivery_mode=2)
    consumer = Consumer(broker.url, [queue])
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
    assert consumer.stats()["errors"] == 2
    [(_, properties)] = letters(broker, f"{queue.name}.dead-letter")
    assert properties.headers["x-attempts"] == 5


def test_the_count_of_another_queue_is_none_of_this_one(broker: Node) -> None:
    """RabbitMQ passes it on with what it dead-letters from one quorum queue to another."""
    retry = Retry(3, backoff=0.2, jitter=False)
    queue = delaying(broker, retry)
    before = new_name()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue.name, "x-queue-type": "quorum"}
    broker.declare(before, arguments=arguments)
    broker.publish(before, [b"x"], delivery_mode=2)
    with broker.connect() as channel:
        for requeue in (True, True, True, False):
            eventually(lambda: broker.count(before) == 1)
            channel.basic_reject(channel.basic_get(before)[0].delivery_tag, requeue)
    eventually(lambda: broker.count(queue.name) == 1)
    consumer = Consumer(broker.url, [queue])
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
    assert consumer.stats()["errors"] == 3


def test_a_queue_that_was_declared_otherwise_is_an_error(broker: Node, new_queue: Declare) -> None:
    retry = Retry(5, backoff=0.2, jitter=False)
    queue = new_queue("other", arguments={"x-queue-type": "quorum"})
    with pytest.raises(ConfigurationError, match=r"is to be declared, which the broker refused: .*406"):
        Consumer(broker.url, [Queue(queue, arguments=retry.queue_arguments, retry=retry)]).run(fail)


def test_a_policy_that_overrules_it_is_noticed(broker: Node, caplog: pytest.LogCaptureFixture) -> None:
    """What was not delayed is copied from then on, and no attempt is lost."""
    retry = Retry(4, backoff=2, jitter=False)
    queue = delaying(broker, retry)
    if delayed(broker):
        broker.set_policy(queue.name, {"delayed-retry-type": "disabled", "delayed-retry-min": 1})
    broker.publish(queue.name, [b"x"], delivery_mode=2)
    times: list[float] = []

    def handler(message: Any) -> None:
        times.append(time.monotonic())
        raise ValueError

    consumer = Consumer(broker.url, [queue])
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert len(pauses) == 3
    assert all(pause > 1.99 for pause in pauses[1 if delayed(broker) else 0 :])
    said = [text for record in caplog.records if "after it was rejected" in (text := record.getMessage())]
    assert len(said) == (1 if delayed(broker) else 0)
    assert all(f"of queue '{queue.name}' came back" in text for text in said)
    [(_, properties)] = letters(broker, f"{queue.name}.dead-letter")
    assert properties.headers["x-attempts"] == 4


@pytest.mark.parametrize("kind", ["all", "returned", "failed"])
def test_a_policy_that_delays_returns_is_noticed(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(late_returns, "LATE", 0.5)
    queue = new_queue("returned", arguments={"x-queue-type": "quorum", "x-delivery-limit": 1000})
    if delayed(broker):
        broker.set_policy(queue, {"delayed-retry-type": kind, "delayed-retry-min": 700})
    broker.publish(queue, [b"x"], delivery_mode=2)
    consumer = Consumer(broker.url, [queue], on_error="requeue")
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["errors"] >= 5)
    said = [
        text
        for record in caplog.records
        if "delays messages that this consumer returns" in (text := record.getMessage())
    ]
    assert len(said) == (1 if delayed(broker) and kind != "failed" else 0)


class Attempting:
    """Workers in processes that die, and what they wrote down: the body of each message when its handler is called."""

    def __init__(self, broker: Node, path: Path, messages: list[bytes]) -> None:
        self.broker, self.path, self.messages = broker, path, messages
        self.queue = delaying(broker, attempting.RETRY).name
        self.dead = f"{self.queue}.dead-letter"
        broker.declare(self.dead)
        path.touch()
        broker.publish(self.queue, messages, delivery_mode=2)

    @contextlib.contextmanager
    def worker(self, prefetch: int, step: str = "") -> Iterator[subprocess.Popen[bytes]]:
        program = [
            sys.executable,
            attempting.__file__,
            self.broker.url,
            self.queue,
            str(self.path),
            str(prefetch),
            step,
        ]
        with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def done(self) -> bool:
        return self.broker.count(self.dead) >= len(self.messages)

    def die(self, prefetch: int, step: str) -> None:
        """Have a worker die at a step, unless nothing is left for it to do."""
        with self.worker(prefetch, step) as process:
            eventually(lambda: process.poll() is not None or self.done)

    def end(self, prefetch: int) -> list[tuple[bytes, pika.BasicProperties]]:
        """Have a worker handle what is left, and return the dead letters."""
        with self.worker(prefetch):
            eventually(lambda: self.done)
            eventually(lambda: self.broker.left(self.queue) == 0)
        return letters(self.broker, self.dead)

    @property
    def calls(self) -> Counter[bytes]:
        return Counter(self.path.read_bytes().split())


def test_attempts_are_exact_over_kills_of_the_worker(broker: Node, tmp_path: Path) -> None:
    """It is killed in a handler, and before the reject: each call is one attempt, whatever becomes of it.

    With a window of one message: a second one comes when the broker has the reject of the first.
    """
    attempts = Attempting(broker, tmp_path / "calls", sorted(numbered(20)))
    for step in itertools.islice(itertools.cycle(attempting.STEPS), 9):
        attempts.die(1, step)
    found = attempts.end(1)
    assert {body for body, _ in found} == {*attempts.messages}
    if delayed(broker):  # before, a copy may be there twice, and an attempt that a kill ends is not counted
        assert sorted(body for body, _ in found) == attempts.messages
        assert attempts.calls == dict.fromkeys(attempts.messages, attempting.RETRY.max_attempts)
        assert {properties.headers["x-attempts"] for _, properties in found} == {attempting.RETRY.max_attempts}


def test_no_message_is_handled_once_more_and_none_is_lost(broker: Node, tmp_path: Path) -> None:
    """With a window: each death uses an attempt of all that the worker had."""
    attempts = Attempting(broker, tmp_path / "calls", numbered(60))
    for step in (*attempting.STEPS, *attempting.STEPS):
        attempts.die(20, step)
    found = attempts.end(20)
    assert {body for body, _ in found} == {*attempts.messages}
    if delayed(broker):
        assert len(found) == len(attempts.messages)
        assert max(attempts.calls.values()) <= attempting.RETRY.max_attempts


def test_a_message_that_kills_its_worker_ends_as_a_dead_letter(broker: Node, tmp_path: Path) -> None:
    attempts = Attempting(broker, tmp_path / "calls", [b"poison"])
    for _ in range(attempting.RETRY.max_attempts):
        attempts.die(1, "in the handler")
    assert attempts.calls == {b"poison": attempting.RETRY.max_attempts}
    if not delayed(broker):
        attempts.die(1, "in the handler")
        assert attempts.calls == {b"poison": attempting.RETRY.max_attempts + 1}
        return
    [(body, properties)] = attempts.end(1)
    assert attempts.calls == {b"poison": attempting.RETRY.max_attempts}
    assert body == b"poison"
    assert properties.headers["x-attempts"] == attempting.RETRY.max_attempts
    assert properties.headers["x-exception"].startswith(
        "ConnectionFailed: the connection or the process of the consumer"
    )
