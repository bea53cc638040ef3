"""Clearing up queues: dead letters return, messages move or are dropped, and none is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from support.rabbitmq import Broker
from support.relaying import taken_messages
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Publisher, QueueNotFound, Retry
from fairsched.cli import exits
from fairsched.cli.group import cli
from fairsched.sweeping import sweep as sweep_module
from fairsched.sweeping.condition import Condition
from fairsched.sweeping.origin import queue_of_origin
from fairsched.sweeping.sweep import Sweep

NewQueue = Callable[..., str]


def put(broker: Broker, queue: str, tenants: list[str]) -> None:
    with Publisher(broker.url) as publisher:
        for number, tenant in enumerate(tenants):
            publisher.publish(b"%d" % number, queue, headers={"tenant": tenant})


def numbers_in(broker: Broker, queue: str) -> list[int]:
    return [int(message.body) for message in taken_messages(broker, queue)]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


# Moving and dropping --------------------------------------------------------------------------------------------------


def test_what_meets_the_condition_moves_and_all_else_stays_in_order(broker: Broker, new_queue: NewQueue) -> None:
    source, target = new_queue("from"), new_queue("to")
    tenants = random.Random(1).choices(["acme", "other"], k=3000)
    put(broker, source, tenants)
    sweep = Sweep(broker.url, source, [Condition("header:tenant=acme")], target)
    sweep.run()
    wanted = [number for number, tenant in enumerate(tenants) if tenant == "acme"]
    assert (sweep.total, sweep.seen, sweep.matched, sweep.done) == (3000, 3000, len(wanted), len(wanted))
    assert numbers_in(broker, target) == wanted
    assert numbers_in(broker, source) == [number for number, tenant in enumerate(tenants) if tenant == "other"]


def test_further_channels_hold_what_stays(broker: Broker, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_WINDOW", 20)
    monkeypatch.setattr(sweep_module, "_HELD", 10)
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["other"] * 500 + ["acme"] * 5 + ["other"] * 95)
    sweep = Sweep(broker.url, source, [Condition("header:tenant=acme")], target)
    sweep.run()
    assert (sweep.seen, sweep.done) == (600, 5)
    assert len(sweep._holders) > 10
    assert numbers_in(broker, target) == list(range(500, 505))
    assert numbers_in(broker, source) == [*range(500), *range(505, 600)]


def test_dropping(broker: Broker, new_queue: NewQueue) -> None:
    source = new_queue("from")
    put(broker, source, ["a", "b", "a", "c"])
    result = run("drop", source, "--where", "header:tenant~^[ac]$", "--url", broker.url)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"queue {source}: 3 of 4 messages match, 3 dropped\n"
    assert numbers_in(broker, source) == [1]


def test_dropping_needs_a_condition(broker: Broker, new_queue: NewQueue) -> None:
    source = new_queue("from")
    put(broker, source, ["a"])
    assert run("drop", source, "--url", broker.url).exit_code == exits.USAGE
    assert broker.count(source) == 1


@pytest.mark.parametrize("command", [["drop"], ["replay"], ["move", "target"]])
def test_a_dry_run_changes_nothing(broker: Broker, new_queue: NewQueue, command: list[str]) -> None:
    source, target = new_queue("from"), new_queue("target")
    put(broker, source, ["acme", "b", "acme"])
    name, *rest = command
    arguments = [name, source, *[target for _ in rest], "--where", "header:tenant=acme", "--dry-run"]
    result = run(*arguments, "--url", broker.url)
    assert result.exit_code == 0, result.output
    assert f"queue {source}: 2 of 3 messages match, none " in result.stdout
    assert broker.left(target) == 0
    assert numbers_in(broker, source) == [0, 1, 2]


def test_large_and_odd_messages_move_byte_for_byte(broker: Broker, new_queue: NewQueue) -> None:
    source, target = new_queue("from"), new_queue("to")
    sent: list[tuple[bytes, dict[str, Any]]] = [
        (bytes(3 << 20), {"priority": 3, "type": "large", "headers": {"n": 1.5}}),
        (b"", {}),
        (b"x", {"headers": {"tenant": None, "list": [1, "a", {"b": True}]}, "expiration": "3600000"}),
    ]
    with Publisher(broker.url) as publisher:
        for body, properties in sent:
            publisher.publish(body, source, **properties)
            publisher.publish(body, target, **properties)
    Sweep(broker.url, source, (), target).run()
    found = [(message.body, message.raw_properties[12:]) for message in taken_messages(broker, target)]
    assert found[:3] == found[3:]
    assert [body for body, _ in found[3:]] == [body for body, _ in sent]


def test_what_comes_during_the_pass_is_left(broker: Broker, new_queue: NewQueue) -> None:
    """A message that returns to its queue again and again does not keep the pass from ending."""
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["a"] * 50)
    sweep = Sweep(broker.url, source, (), target)
    with Publisher(broker.url) as publisher:
        sweep._conditions = (lambda message: publisher.publish(b"7", source) is not None,)  # type: ignore[assignment]
        sweep.run()
    assert (sweep.seen, sweep.done) == (50, 50)
    assert broker.count(target) == 50
    assert broker.count(source) == 50


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("held", [30, 100])
def test_what_returns_during_the_pass_is_looked_at(broker: Broker, new_queue: NewQueue, kind: str, held: int) -> None:
    """A consumer that was killed has messages that are in no count when the pass begins, even all of them."""
    source, target = new_queue("from", arguments={"x-queue-type": kind}), new_queue("to")
    put(broker, source, ["a"] * 100)
    with broker.connect() as channel:
        for _ in range(held):
            channel.basic_get(source)
        eventually(lambda: broker.count(source) == 100 - held)
        sweep = Sweep(broker.url, source, (), target)
        look = sweep._look

        def look_and_return(session: Any) -> None:
            look(session)
            assert sweep.total == 100 - held
            channel.basic_nack(0, multiple=True, requeue=True)
            # Some of what is left was published after the pass began.
            put(broker, source, ["late"] * 5)

        sweep._look = look_and_return  # type: ignore[method-assign]
        sweep.run()
    assert (sweep.seen, sweep.done, sweep.total) == (100, 100, 100)
    assert sorted(numbers_in(broker, target)) == list(range(100))
    assert numbers_in(broker, source) == list(range(5))


def test_what_fails_again_is_left_after_a_dry_run(broker: Broker, new_queue: NewQueue) -> None:
    """The dry run had all messages, so the count does not tell those that it returns from those that are new."""
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["a"] * 50)
    Sweep(broker.url, source, (), target, dry_run=True).run()
    sweep = Sweep(broker.url, source, (), target)
    with Publisher(broker.url) as publisher:
        again = lambda message: publisher.publish(message.body, source) is not None  # noqa: E731
        sweep._conditions = (again,)  # type: ignore[assignment]
        sweep.run()
    assert (sweep.seen, sweep.done) == (50, 50)
    assert sorted(numbers_in(broker, source)) == list(range(50))


def test_a_dry_run_hides_nothing_from_the_next_pass(broker: Broker, new_queue: NewQueue) -> None:
    source, target = new_queue("from"), new_queue("to")
    count = 20_000
    broker.publish(source, [b"%d" % number for number in range(count)])
    for dry_run in (True, True, False):
        sweep = Sweep(broker.url, source, (), target, dry_run=dry_run)
        sweep.run()
        assert sweep.seen == count
    assert broker.left(target) == sweep.done == count
    assert broker.left(source) == 0


# Dead letters ---------------------------------------------------------------------------------------------------------


def test_our_dead_letters_return_and_are_tried_again(broker: Broker, new_queue: NewQueue) -> None:
    queue = new_queue("work")
    letters = f"{queue}.dead-letter"
    put(broker, queue, ["acme"])
    attempts: list[int | None] = []
    for _ in range(2):
        with Consumer(broker.url, [queue], retry=Retry(2, backoff=0.01)) as consumer:
            for _ in range(2):
                message = consumer.get(timeout=30)
                assert message is not None
                attempts.append(message.headers.get("x-attempts"))
                with contextlib.suppress(ValueError), message:
                    raise ValueError("no")
            eventually(lambda: broker.count(letters) == 1)
            eventually(lambda: broker.left(queue) == 0)  # the broker has the acknowledgement, too
        result = run("replay", letters, "--where", "header:x-exception~ValueError", "--url", broker.url)
        assert (result.exit_code, result.stdout) == (
            0, f"queue {letters}: 1 of 1 messages match, 1 returned\n  1 to {queue}\n",
        )  # fmt: skip
    assert attempts == [None, 1, None, 1]
    (letter,) = taken_messages(broker, queue)
    assert letter.headers["tenant"] == "acme"
    assert not {"x-attempts", "x-exception"} & letter.headers.keys()
    broker.delete(letters)


def test_what_the_broker_dead_lettered_returns_to_the_queue_of_its_latest_death(
    broker: Broker, new_queue: NewQueue
) -> None:
    letters = new_queue("letters")
    queues = [
        new_queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters})
        for _ in range(3)
    ]
    with broker.connect() as channel:
        for number, queue in enumerate(queues):
            headers = {"x-original-queue": "earlier", "tenant": "t"}
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers=headers))
    for queue in queues:
        with Consumer(broker.url, [queue]) as consumer:
            message = consumer.get(timeout=10)
            assert message is not None
            message.reject()
    eventually(lambda: broker.count(letters) == 3)
    sweep = Sweep(broker.url, letters, (), queue_of_origin, replay=True)
    sweep.run()
    assert sweep.destinations == Counter(queues)
    for number, queue in enumerate(queues):
        (message,) = taken_messages(broker, queue)
        assert message.body == b"%d" % number
        assert message.headers == {"x-original-queue": "earlier", "tenant": "t"}


def test_what_has_no_origin_or_whose_queue_is_gone_stays(broker: Broker, new_queue: NewQueue) -> None:
    letters, there = new_queue("letters"), new_queue("there")
    with Publisher(broker.url) as publisher:
        publisher.publish(b"0", letters)
        publisher.publish(b"1", letters, headers={"x-original-queue": "not-there"})
        publisher.publish(b"2", letters, headers={"x-original-queue": there})
        publisher.publish(b"3", letters, headers={"x-original-queue": letters})
    result = run("replay", letters, "--url", broker.url)
    assert result.exit_code == exits.LEFT
    assert "1 stay: there is no queue 'not-there'" in result.output
    assert "2 stay: they do not say which other queue they came from" in result.output
    assert numbers_in(broker, there) == [2]
    assert sorted(numbers_in(broker, letters)) == [0, 1, 3]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_queues_that_do_not_exist(broker: Broker, new_queue: NewQueue) -> None:
    with pytest.raises(QueueNotFound):
        Sweep(broker.url, "not-there", (), new_queue("to")).run()
    source = new_queue("from")
    put(broker, source, ["a"])
    with pytest.raises(QueueNotFound):
        Sweep(broker.url, source, (), "not-there").run()
    assert broker.count(source) == 1


def test_a_queue_cannot_be_moved_to_itself(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="'same' cannot be moved to itself"):
        Sweep(broker.url, "same", (), "same")


@pytest.mark.parametrize("name", ["", "q" * 256, "\udcff"])
def test_a_name_that_no_queue_can_have_is_refused(name: str) -> None:
    for names in ((name, "to"), ("from", name)):
        with pytest.raises(ConfigurationError, match="a queue name has 1 to 255 bytes of text, got "):
            Sweep("amqp://localhost", names[0], (), names[1])


@pytest.mark.rabbitmq("streams")
def test_a_stream_is_refused(broker: Broker, new_queue: NewQueue) -> None:
    stream = "swept-stream"
    broker.declare(stream, arguments={"x-queue-type": "stream"})
    try:
        put(broker, stream, ["a"])
        with pytest.raises(ConfigurationError, match="queue 'swept-stream' is a stream"):
            Sweep(broker.url, stream, (), new_queue("to")).run()
    finally:
        broker.delete(stream)


def test_an_empty_expression_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="what follows ~ in condition 'header:tenant~' must be a regular"):
        Condition("header:tenant~")


def test_a_full_queue_refuses_and_nothing_is_lost(broker: Broker, new_queue: NewQueue) -> None:
    source = new_queue("from")
    target = new_queue("full", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    put(broker, source, ["a"] * 10)
    result = run("move", source, target, "--url", broker.url)
    assert result.exit_code == exits.LEFT
    kept, moved = numbers_in(broker, source), numbers_in(broker, target)
    assert sorted(kept + moved) == list(range(10))
    assert len(moved) == 3


def test_other_consumers_have_the_rest(broker: Broker, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_QUIET", 0.2)
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["a"] * 10)
    sweep = Sweep(broker.url, source, (), target)
    look = sweep._look

    def look_and_take(session: Any) -> None:
        look(session)
        channel.basic_get(source)

    with broker.connect() as channel:
        sweep._look = look_and_take  # type: ignore[method-assign]
        sweep.run()
        assert (sweep.total, sweep.done) == (10, 9)


# Faults ---------------------------------------------------------------------------------------------------------------


def test_kill_9_and_again(broker: Broker, new_queue: NewQueue) -> None:
    """Five passes are killed at random moments; the sixth moves the rest."""
    count = 20_000
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["a", "b"] * (count // 2))
    chance = random.Random(3)
    command = [sys.executable, "-m", "fairsched.cli", "move", source, target, "--where", "header:tenant=a"]
    for _ in range(5):
        before = broker.left(target)
        process = subprocess.Popen([*command, "--url", broker.url], env=os.environ)
        least = before + chance.randint(1, 1500)
        eventually(lambda at=least, one=process: one.poll() is not None or broker.count(target) >= at, 60)
        process.send_signal(signal.SIGKILL)
        process.wait()  # the next one begins while the broker still returns what this one had
    assert subprocess.run([*command, "--url", broker.url], check=False, timeout=120).returncode == 0
    moved, left = Counter(numbers_in(broker, target)), Counter(numbers_in(broker, source))
    assert set(moved) == set(range(0, count, 2))
    assert left == Counter(range(1, count, 2))
    assert moved.total() - len(moved) <= 5 * 4000  # at most what was under way at each death


def test_a_signal_ends_it_in_good_order(broker: Broker, new_queue: NewQueue) -> None:
    count = 50_000
    source, target = new_queue("from"), new_queue("to")
    put(broker, source, ["a"] * count)
    command = [sys.executable, "-m", "fairsched.cli", "move", source, target, "--url", broker.url]
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, text=True)
    eventually(lambda: broker.count(target) > 100, 60)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    moved = broker.left(target)
    assert moved + broker.left(source) == count  # nothing twice
    assert f"{moved:,} moved" in said
