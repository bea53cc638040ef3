"""Retries against a real broker: when messages come back, what of them, and that none is lost by a killed process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pika
import pytest
from click.testing import CliRunner
from support import retrying
from support.declare import Declare
from support.outcomes import Outcomes
from support.rabbitmq import Node, numbered
from support.waiting import eventually
from support.wiretables import Encoded, field, table

from fairsched import App, ConfigurationError, Consumer, Retry, aio
from fairsched.cli.group import cli
from fairsched.consumer.handling import retries


def letters(broker: Node, queue: str) -> list[tuple[bytes, pika.BasicProperties]]:
    """Take all messages out of a queue."""
    found = []
    with broker.connect() as channel:
        while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((one[2], one[1]))
    return found


@contextlib.contextmanager
def consuming(consumer: Consumer, handler: Callable[..., Any]) -> Iterator[None]:
    """Run a consumer in a thread, until the block ends."""
    thread = threading.Thread(target=consumer.run, args=[handler])
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()


def fail(message: Any) -> None:
    raise ValueError("bad")


@pytest.mark.usefixtures("either_way")
def test_a_message_comes_back_after_each_delay_and_is_dead_lettered(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, [b"one"], headers={"tenant": "a", "CC": []}, priority=4, message_id="m", expiration="60000")
    times: list[float] = []
    seen: list[dict[str, Any]] = []

    def handler(message: Any) -> None:
        times.append(time.monotonic())
        seen.append(message.headers)
        raise ValueError("bad")

    consumer = Consumer(broker.url, [queue], retry=Retry(4, backoff=(0.1, 0.2), jitter=False))
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert len(pauses) == 3
        # The broker's clock has whole milliseconds.
        assert all(pause > delay - 0.002 for pause, delay in zip(pauses, (0.1, 0.2, 0.2), strict=True))
        assert [headers.get("x-attempts") for headers in seen] == [None, 1, 2, 3]
        assert {headers["tenant"] for headers in seen} == {"a"}
        stats = consumer.stats()
        assert (stats["retried"], stats["acked"], stats["errors"]) == (3, 4, 4)
        [(body, properties)] = letters(broker, f"{queue}.dead-letter")
    assert body == b"one"
    assert (properties.priority, properties.message_id, properties.expiration) == (4, "m", None)
    headers = properties.headers
    assert headers["x-attempts"] == 4
    assert headers["x-exception"] == "ValueError: bad"
    assert headers["x-original-queue"] == headers["x-original-routing-key"] == queue
    assert headers["x-original-expiration"] == "60000"
    assert "x-death" not in headers


def test_what_succeeds_in_the_end_is_acknowledged(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(50))
    attempts: Counter[bytes] = Counter()

    def handler(message: Any) -> None:
        attempts[message.body] += 1
        if attempts[message.body] < 3:
            raise OSError("not yet")

    consumer = Consumer(broker.url, [queue], workers=4, retry=Retry(backoff=0.05))
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["acked"] == 150)
    assert set(attempts.values()) == {3}
    assert consumer.stats()["retried"] == 100
    assert broker.count(f"{queue}.dead-letter") == broker.count(queue) == 0


def test_a_worker_goes_on_while_messages_wait(broker: Node, new_queue: Declare) -> None:
    """A long delay holds up neither the worker nor the window."""
    queue = new_queue("retry")
    broker.publish(queue, [b"bad"] * 5 + numbered(20))
    done: list[bytes] = []

    def handler(message: Any) -> None:
        if message.body == b"bad":
            raise ValueError
        done.append(message.body)

    consumer = Consumer(broker.url, [queue], prefetch=2, retry=Retry(backoff=3600, jitter=False))
    with consuming(consumer, handler):
        eventually(lambda: len(done) == 20)
        eventually(lambda: consumer.stats()["acked"] == 25)
        assert broker.count(f"{queue}.retry.3600000") == 5


def test_failures_that_are_not_retried_are_dead_lettered_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(4))

    def handler(message: Any) -> None:
        raise [OSError, KeyError, ValueError, ConnectionResetError][int(message.body)]("no")

    consumer = Consumer(broker.url, [queue], retry=Retry(2, backoff=0.01, on=OSError, dead_letter="failed-{queue}"))
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["dead_lettered"] == 4)
        assert consumer.stats()["retried"] == 2
    found = {body: properties.headers["x-attempts"] for body, properties in letters(broker, f"failed-{queue}")}
    assert found == {b"0": 2, b"1": 1, b"2": 1, b"3": 2}


def test_the_dead_letter_exchange_of_the_queue(broker: Node, new_queue: Declare) -> None:
    morgue = new_queue("morgue")
    queue = new_queue("retry", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": morgue})
    broker.publish(queue, numbered(3))
    consumer = Consumer(broker.url, [queue], retry=Retry(2, backoff=0.01, dead_letter=False))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 3)
    eventually(lambda: broker.count(morgue) == 3)
    [(_, properties), *_] = letters(broker, morgue)
    assert properties.headers["x-death"][0]["reason"] == "rejected"


def test_a_queue_for_dead_letters_may_exist(broker: Node, new_queue: Declare) -> None:
    queue, morgue = new_queue("retry"), new_queue("morgue", arguments={"x-max-length": 10})
    broker.publish(queue, numbered(3))
    consumer = Consumer(broker.url, [queue], retry=Retry(1, dead_letter=morgue))
    with consuming(consumer, fail):
        eventually(lambda: broker.count(morgue) == 3)


def test_batches_are_retried_message_by_message(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(20))
    with Consumer(broker.url, [queue], retry=Retry(2, backoff=0.02)) as consumer:
        handled = 0
        for batch in consumer.batches(7):
            handled += len(batch)
            with contextlib.suppress(ValueError), batch:
                raise ValueError
            if handled == 40:
                break
        eventually(lambda: consumer.stats()["dead_lettered"] == 20)
    assert sorted(body for body, _ in letters(broker, f"{queue}.dead-letter")) == sorted(numbered(20))


def test_coroutines_are_retried(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(20))

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], workers=5, retry=Retry(2, backoff=0.02)) as consumer:

            async def handler(message: Any) -> None:
                await asyncio.sleep(0)
                raise ValueError

            task = asyncio.create_task(consumer.run(handler))
            await asyncio.to_thread(eventually, lambda: consumer.stats()["dead_lettered"] == 20)
            consumer.stop()
            await task
            return consumer.stats()

    stats = asyncio.run(main())
    assert (stats["retried"], stats["acked"]) == (20, 40)


def test_an_app_retries(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(2))
    app = App(broker.url, retry=Retry(1, dead_letter=f"{queue}-failed"))
    done = threading.Event()

    @app.consumer(queue)
    def handler(message: Any) -> None:
        if message.body == b"1":
            done.set()
        raise ValueError

    thread = threading.Thread(target=app.run)
    thread.start()
    assert done.wait(30)
    eventually(lambda: broker.count(f"{queue}-failed") == 2)
    app.stop()
    thread.join(30)


def test_headers_that_cannot_be_decoded_are_dead_lettered(broker: Node, new_queue: Declare) -> None:
    """Attempts could not be counted."""
    queue = new_queue("retry")
    nested = table(field(b"deep", b"F", b"\0\0\0\7\1nF\0\0\0\0"))
    for _ in range(150):
        inner = b"\1nF" + nested
        nested = len(inner).to_bytes(4, "big") + inner
    with broker.connect() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"x", Encoded(nested, app_id="app"))
    consumer = Consumer(broker.url, [queue], retry=Retry(5, backoff=0.01))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 1)
    assert broker.count(f"{queue}.dead-letter") == 1


@pytest.mark.parametrize("size", [5_000, 120_000])
def test_long_headers_are_copied_from_the_first_message_on(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """While the connection that publishes copies is opened, too."""
    queue = new_queue("retry")
    broker.publish(queue, numbered(3), headers={"long": "x" * size})
    consumer = Consumer(broker.url, [queue], retry=Retry(2, backoff=0.01))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 3)
    assert consumer.stats()["errors"] == 6
    assert not [record for record in caplog.records if "no copy" in record.getMessage()]


@pytest.mark.parametrize("dead_letter", [None, False])
def test_headers_without_room_for_a_count_are_dead_lettered(
    broker: Node, new_queue: Declare, dead_letter: Literal[False] | None
) -> None:
    """They were handled again and again, since no copy of them goes into a frame."""
    morgue = new_queue("morgue")
    queue = new_queue("retry", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": morgue})
    broker.publish(queue, numbered(3), headers={"long": "x" * 131_000, "CC": []}, expiration="60000")
    consumer = Consumer(broker.url, [queue], retry=Retry(5, backoff=0.01, dead_letter=dead_letter))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 3)
    assert consumer.stats()["errors"] == 3
    where = morgue if dead_letter is False else f"{queue}.dead-letter"
    eventually(lambda: broker.count(where) == 3)
    found = letters(broker, where)
    assert sorted(body for body, _ in found) == numbered(3)
    assert {len(properties.headers["long"]) for _, properties in found} == {131_000}
    if dead_letter is None:
        assert {tuple(properties.headers) for _, properties in found} == {("long",)}


def test_what_was_settled_before_it_failed_is_not_retried(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(3))

    def handler(message: Any) -> None:
        message.ack()
        raise ValueError

    consumer = Consumer(broker.url, [queue], retry=Retry(backoff=0.01))
    with consuming(consumer, handler):
        eventually(lambda: consumer.stats()["errors"] == 3)
    stats = consumer.stats()
    assert (stats["acked"], stats["retried"], stats["dead_lettered"]) == (3, 0, 0)


def test_a_deleted_queue_for_a_delay_is_declared_again(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    consumer = Consumer(broker.url, [queue], retry=Retry(backoff=0.3, jitter=False))
    times: list[float] = []

    def handler(message: Any) -> None:
        times.append(time.monotonic())
        if len(times) % 2:
            raise ValueError

    with consuming(consumer, handler):
        for number in (1, 2):
            broker.publish(queue, [b"x"])
            eventually(lambda number=number: consumer.stats()["acked"] == 2 * number)
            broker.delete(f"{queue}.retry.300")
    assert consumer.stats()["retried"] == 2


def test_a_queue_of_that_name_with_other_arguments_is_refused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.declare(f"{queue}.retry.1000")
    with pytest.raises(
        ConfigurationError, match=f"retry= of queue '{queue}' needs to declare '{queue}.retry.1000'.*406"
    ):
        Consumer(broker.url, [queue], retry=Retry(jitter=False)).run(fail)
    with Consumer(broker.url, [queue]):  # without, it is consumed
        pass


@pytest.mark.rabbitmq("users with permissions")
def test_a_user_that_may_not_declare_is_told_at_the_start(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    user = f"{queue}-user"
    url = broker.add_user(user, "secret")
    broker.permit(user, "nothing")
    with pytest.raises(ConfigurationError, match=r"needs to declare.*access to queue.*refused for user") as caught:
        Consumer(url, [queue], retry=Retry()).run(fail)
    assert "secret" not in str(caught.value)
    # What the page says is enough.
    own = rf"{queue}\.(retry\..*|dead-letter)"
    broker.permit(user, f"^{own}$", r"^amq\.default$", f"^({queue}|{own})$")
    broker.publish(queue, numbered(3))
    consumer = Consumer(url, [queue], retry=Retry(2, backoff=0.01))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 3)


def test_a_quorum_queue_retries(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry", arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    broker.publish(queue, numbered(5))
    consumer = Consumer(broker.url, [queue], retry=Retry(6, backoff=0.02))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 5)
    assert consumer.stats()["retried"] == 25
    assert {found.headers["x-attempts"] for _, found in letters(broker, f"{queue}.dead-letter")} == {6}


def test_a_stop_waits_until_copies_are_confirmed(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("retry")
    broker.publish(queue, numbered(200))
    consumer = Consumer(broker.url, [queue], retry=Retry(backoff=3600, jitter=False))
    seen: list[bytes] = []

    def handler(message: Any) -> None:
        seen.append(message.body)
        if len(seen) == 100:
            consumer.stop()
        raise ValueError

    consumer.run(handler)
    stats = consumer.stats()
    assert stats["retried"] == stats["acked"] == stats["errors"] == len(seen)
    assert broker.count(f"{queue}.retry.3600000") == len(seen)
    eventually(lambda: broker.count(queue) == 200 - len(seen))


def test_copies_wait_for_room_among_the_unconfirmed(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PublisherOptions", functools.partial(retries.PublisherOptions, confirm_window=2))
    queue = new_queue("retry")
    broker.publish(queue, numbered(500))
    consumer = Consumer(broker.url, [queue], workers=4, retry=Retry(2, backoff=0.02))
    with consuming(consumer, fail):
        eventually(lambda: consumer.stats()["dead_lettered"] == 500)
    assert consumer.stats()["retried"] == 500
    assert {body for body, _ in letters(broker, f"{queue}.dead-letter")} == set(numbered(500))


def test_a_copy_that_is_confirmed_too_late_counts_for_nothing(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue may have expired, and the copy with it: the message is not acknowledged, and another copy is made."""
    monkeypatch.setattr(retries, "SAFE", -1.0)
    queue = new_queue("retry")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url, [queue], retry=Retry(backoff=3600, jitter=False))
    with consuming(consumer, fail):
        eventually(lambda: broker.messages().get(f"{queue}.retry.3600000", 0) >= 2)
        assert consumer.stats()["acked"] == 0
        monkeypatch.undo()
        eventually(lambda: consumer.stats()["acked"] == 1)


def test_what_was_not_declared_lately_is_declared_again(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[str] = []
    declare = retries.Retries._declare

    def noting(self: Any, declaration: Any) -> None:
        declared.append(declaration.queue)
        declare(self, declaration)

    monkeypatch.setattr(retries.Retries, "_declare", noting)
    queue = new_queue("retry")
    consumer = Consumer(broker.url, [queue], retry=Retry(backoff=3600, jitter=False))
    with consuming(consumer, fail):
        for renewal, expected in ((60.0, 1), (60.0, 1), (0.0, 2)):
            monkeypatch.setattr(retries, "RENEWAL", renewal)
            before = consumer.stats()["acked"]
            broker.publish(queue, [b"x"])
            eventually(lambda before=before: consumer.stats()["acked"] == before + 1)
            assert declared == [f"{queue}.retry.3600000"] * expected


# Killed between two steps ---------------------------------------------------------------------------------------------

COUNT = 30


def run(broker: Node, queue: str, step: str = "", count: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, Path(retrying.__file__), broker.url, queue, step, str(count)],
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("step", "count"),
    # What is declared is not declared again so soon.
    [(step, count) for step in retrying.STEPS for count in (1, 40) if count == 1 or "declaration" not in step],
)
def test_nothing_is_lost_by_a_kill_between_two_steps(
    broker: Node, new_queue: Declare, outcomes: Outcomes, step: str, count: int
) -> None:
    queue = new_queue("killed")
    morgue = f"{queue}.dead-letter"
    broker.declare(morgue)
    broker.publish(queue, numbered(COUNT), delivery_mode=2)
    with run(broker, queue, step, count) as killed:
        assert killed.wait(60) == -9
    with run(broker, queue) as process:

        def over() -> bool:
            counts = broker.messages()
            waiting = sum(number for name, number in counts.items() if name.startswith(f"{queue}.retry."))
            return counts[queue] + waiting == 0 and counts[morgue] >= COUNT

        eventually(over, 60)
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = letters(broker, morgue)
    outcomes.note(
        "worker killed between two steps of a retry", "retries", (numbered(COUNT), [body for body, _ in found])
    )
    assert {body for body, _ in found} == set(numbered(COUNT))
    assert {properties.headers["x-attempts"] for _, properties in found} == {retrying.ATTEMPTS}
    assert broker.count(queue) == 0


@pytest.mark.chaos
def test_nothing_is_lost_with_the_broker(mortal: Node, caplog: pytest.LogCaptureFixture, outcomes: Outcomes) -> None:
    """Killed again and again while messages are retried, RabbitMQ has each of them in the end."""
    caplog.set_level(logging.CRITICAL)
    mortal.declare("retried")
    mortal.publish("retried", numbered(300), delivery_mode=2)
    consumer = Consumer(mortal.url, ["retried"], retry=Retry(4, backoff=(0.2, 1)))
    with consuming(consumer, fail):
        for part in (100, 300):
            eventually(lambda part=part: consumer.stats()["retried"] >= part)
            mortal.restart()
        kept: list[bytes] = []

        def complete() -> bool:
            kept.extend(body for body, _ in letters(mortal, "retried.dead-letter"))
            return set(kept) == set(numbered(300))

        try:
            eventually(complete, 60, "all are dead-lettered")
        finally:
            outcomes.note("broker killed twice", "retries", (numbered(300), kept))


# The examples of the page ---------------------------------------------------------------------------------------------


def examples(language: str = "python") -> list[str]:
    page = (Path(__file__).parents[2] / "docs/howto/retries.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_app_of_the_page_and_how_dead_letters_are_moved(broker: Node) -> None:
    broker.delete("orders", "orders.dead-letter")
    broker.declare("orders")
    broker.publish("orders", numbered(3))
    app_code, *_ = examples()
    (moving,) = examples("sh")
    calls: Counter[bytes] = Counter()

    def charge(body: bytes) -> None:
        calls[body] += 1
        if body != b"1" or calls[body] < 2:
            raise ConnectionError("refused")

    names: dict[str, Any] = {"url": broker.url, "charge": charge}
    exec(app_code.replace("(1, 300)", "(0.02, 300)"), names)
    thread = threading.Thread(target=names["app"].run)
    thread.start()
    eventually(lambda: names["app"].stats().get("dead_lettered") == 2)
    names["app"].stop()
    thread.join(30)
    assert calls == {b"0": 5, b"1": 2, b"2": 5}
    program, *arguments = shlex.split(moving)
    assert program == "fairsched"
    moved = CliRunner().invoke(cli, [*arguments, "--url", broker.url])
    assert moved.exit_code == 0, moved.output
    assert broker.count("orders") == 2
    assert [found.headers.get("x-attempts") for _, found in letters(broker, "orders")] == [None, None]


def test_the_consumer_of_the_page(broker: Node) -> None:
    broker.delete("gold", "free", "failed")
    broker.declare("gold", "free")
    broker.publish("gold", numbered(3))
    _, code, _ = examples()

    def handle(message: Any) -> None:
        if message.body == b"2":
            names["consumer"].stop()
        raise ValueError

    names: dict[str, Any] = {"url": broker.url, "handle": handle}
    exec(code, names)
    assert {found.headers["x-original-queue"] for _, found in letters(broker, "failed")} == {"gold"}


def test_the_queue_of_the_page_that_delays(broker: Node) -> None:
    """From RabbitMQ 4.3 on; before, the same code makes copies."""
    broker.delete("orders", "orders.failed")
    names: dict[str, Any] = {"url": broker.url}
    code = examples()[2].replace("(10, 30)", "(0.1, 0.3)")
    calls = itertools.count(1)

    def handle(message: Any) -> None:
        if next(calls) == 5:
            names["consumer"].stop()
        raise ValueError

    names["handle"] = handle
    declaring, consumer, running = code.partition("consumer = ")
    exec(declaring, names)
    broker.declare("orders", arguments=names["orders"].all_arguments)
    broker.publish("orders", [b"one"], delivery_mode=2)
    exec(consumer + running, names)
    assert [found.headers["x-attempts"] for _, found in letters(broker, "orders.failed")] == [5]
