"""Queues that are added to a consumer and removed from it while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.waiting import eventually, reach, reach_in_loop

from fairsched import (
    App,
    ConfigurationError,
    ConnectionFailed,
    Consumer,
    Limit,
    Publisher,
    Queue,
    QueueNotFound,
    QueueSource,
    Retry,
    ShutDown,
    aio,
)  # fmt: skip

_numbers = itertools.count()


def unused(prefix: str = "changing") -> str:
    """Return the name of a queue that does not exist."""
    return f"{prefix}-unused-{next(_numbers)}"


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    """Call a function in a thread; the list gets what it raised, or None."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def taken(consumer: Consumer, count: int) -> list[Any]:
    return [consumer.get(timeout=30) for _ in range(count)]


def ready(broker: Node, name: str, count: int) -> Callable[[], bool]:
    """Return whether a queue has so many messages that are ready."""
    return lambda: broker.count(name) == count


class TestAdding:
    def test_a_queue_is_consumed_when_the_call_returns(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, numbered(10))
        with Consumer(broker.url, [first]) as consumer:
            consumer.add_queue(second)
            assert consumer.state.consuming == {first: True, second: True}
            assert sorted(message.body for message in taken(consumer, 10)) == sorted(numbered(10))

    def test_a_queue_is_declared_if_its_options_say_so(self, broker: Node, new_queue: Declare) -> None:
        name = unused()
        with Consumer(broker.url, [new_queue()]) as consumer:
            consumer.add_queue(Queue(name, durable=True, dead_letter=f"{name}.dead"))
            broker.publish(name, [b"x"])
            assert consumer.get(timeout=30).queue == name
        assert broker.count(f"{name}.dead") == 0
        broker.delete(name, f"{name}.dead")

    def test_before_the_start(self, broker: Node, new_queue: Declare) -> None:
        first, second, third = new_queue(), new_queue(), new_queue()
        consumer = Consumer(broker.url, [first])
        consumer.add_queue(second)
        consumer.add_queue(Queue(third, weight=2))
        consumer.remove_queue(first)
        with consumer:
            assert consumer.state.consuming == {second: True, third: True}
        assert list(consumer.stats()["slots"]) == [second, third]

    def test_what_is_buffered_of_other_queues_stays_and_so_do_their_windows(
        self, broker: Node, new_queue: Declare
    ) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(first, numbered(100))
        with Consumer(broker.url, [first], prefetch=40) as consumer:
            eventually(lambda: consumer.state.buffered == 40)
            consumer.add_queue(Queue(second, weight=3))
            assert consumer._client.windows() == {first: 40, second: 30}
            assert consumer.stats()["received"] == 40
            assert [message.body for message in taken(consumer, 40)] == list(numbered(100))[:40]

    def test_shares_are_exact_whatever_the_new_weight(self, broker: Node, new_queue: Declare) -> None:
        first, second, third = new_queue(), new_queue(), new_queue()
        for name in (first, second, third):
            broker.publish(name, numbered(200))
        with Consumer(broker.url, {first: 2, second: 4}, prefetch=400) as consumer:
            consumer.add_queue(Queue(third, weight=3, prefetch=200))
            eventually(lambda: consumer.state.buffered == 533)
            served = Counter(message.queue for message in taken(consumer, 180))
        assert [round(served[name] / 20) for name in (first, second, third)] == [2, 4, 3]

    def test_a_queue_that_does_not_exist_changes_nothing(self, broker: Node, new_queue: Declare) -> None:
        first, missing = new_queue(), unused()
        with Consumer(broker.url, [first]) as consumer:
            before = consumer._client.windows()
            with pytest.raises(QueueNotFound, match=f"queue '{missing}' does not exist"):
                consumer.add_queue(missing)
            assert consumer.state.consuming == {first: True}
            assert (list(consumer.stats()["slots"]), consumer._client.windows()) == ([first], before)
            broker.declare(missing)
            consumer.add_queue(missing)
            assert consumer.state.consuming == {first: True, missing: True}
            broker.publish(first, [b"x"])
            assert consumer.get(timeout=30).body == b"x"

    def test_a_refused_declaration_changes_nothing(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with Consumer(broker.url, [first]) as consumer:
            with pytest.raises(ConfigurationError, match=f"queue '{second}' is to be declared, which the broker ref"):
                consumer.add_queue(Queue(second, arguments={"x-max-length": 1}))
            assert consumer.state.consuming == {first: True}
            consumer.add_queue(second)

    def test_a_queue_that_another_has_for_itself_is_an_error(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with (
            Consumer(broker.url, [Queue(second, exclusive=True, prefetch=1)]),
            Consumer(broker.url, [first]) as consumer,
        ):
            with pytest.raises(ConnectionFailed, match=f"queue '{second}' cannot be consumed"):
                consumer.add_queue(second)
            assert consumer.state.consuming == {first: True}

    def test_twice(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with Consumer(broker.url, [first]) as consumer:
            consumer.add_queue(Queue(second, weight=2))
            consumer.add_queue(Queue(second, weight=2))
            with pytest.raises(ConfigurationError, match=f"queue '{second}' is consumed already, with other options"):
                consumer.add_queue(Queue(second, weight=3))
            consumer.set_weight(second, 3)
            consumer.add_queue(Queue(second, weight=3))
            assert consumer.state.consuming == {first: True, second: True}

    def test_an_added_queue_has_its_options(self, broker: Node, new_queue: Declare) -> None:
        first, limited, retried = new_queue(), new_queue(), new_queue()
        broker.publish(limited, numbered(5))
        with Consumer(broker.url, [first]) as consumer:
            consumer.add_queue(Queue(limited, limit=Limit(concurrency=1)))
            message = consumer.get(timeout=30)
            with pytest.raises(queue.Empty):
                consumer.get(timeout=0.05)
            message.ack()
            assert consumer.get(timeout=30).queue == limited
            consumer.add_queue(Queue(retried, retry=Retry(max_attempts=2, backoff=0.05, jitter=False)))
            broker.publish(retried, [b"again"])
            tries = []
            eventually(lambda: tries.append(consumer.get(timeout=30)) or tries[-1].queue == retried)
            tries[-1].fail(ValueError("once"))
            eventually(lambda: tries.append(consumer.get(timeout=30)) or tries[-1].queue == retried)
            assert tries[-1].headers["x-attempts"] == 1

    def test_after_the_stop(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with Consumer(broker.url, [first]) as consumer:
            consumer.stop()
            with pytest.raises(ShutDown):
                consumer.add_queue(second)
            with pytest.raises(ShutDown):
                consumer.remove_queue(first)
        with pytest.raises(RuntimeError, match="closed"):
            consumer.add_queue(second)

    def test_many_at_once_while_others_are_consumed(self, broker: Node, new_queue: Declare) -> None:
        first = new_queue()
        names = [new_queue() for _ in range(60)]
        broker.publish(first, numbered(2000))
        with Consumer(broker.url, [first]) as consumer:
            threads = [in_thread(lambda name=name: consumer.add_queue(name)) for name in names]
            assert len(taken(consumer, 400)) == 400
            for thread, _ in threads:
                thread.join(60)
            assert [outcome for _, outcome in threads] == [[None]] * len(names)
            assert consumer.state.consuming == dict.fromkeys([first, *names], True)


class TestRemoving:
    def test_what_is_buffered_returns_and_what_is_in_hand_can_be_settled(
        self, broker: Node, new_queue: Declare
    ) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(first, numbered(20))
        broker.publish(second, numbered(20))
        with Consumer(broker.url, [first, second], prefetch=40) as consumer:
            eventually(lambda: consumer.state.buffered == 40)
            messages = {message.queue: message for message in taken(consumer, 2)}
            thread, outcome = in_thread(lambda: consumer.remove_queue(second))
            eventually(ready(broker, second, 19))
            assert not outcome
            assert messages[second].ack()
            thread.join(30)
            assert outcome == [None]
            assert consumer.state.consuming == {first: True}
            assert list(consumer.stats()["slots"]) == list(consumer._client.windows()) == [first]
            assert [message.body for message in taken(consumer, 19)] == list(numbered(20))[1:]
            assert broker.left(second) == 19
            for call in (consumer.remove_queue, consumer.explain, consumer.pause):
                with pytest.raises(ConfigurationError, match=f"queue '{second}' is not consumed"):
                    call(second)

    def test_with_tenants_only_the_messages_of_the_queue_leave(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        for tenant in ("a", "b"):
            broker.publish(first, numbered(5), headers={"tenant": tenant})
            broker.publish(second, numbered(5), headers={"tenant": tenant})
        with Consumer(broker.url, [first, second], key="header:tenant", subkey=lambda message: "x") as consumer:
            eventually(lambda: consumer.state.buffered == 20)
            consumer.remove_queue(second)
            found = [(message.slot, message.body) for message in taken(consumer, 10)]
            assert broker.left(second) == 10
        assert sorted(found) == sorted((tenant, body) for tenant in "ab" for body in numbered(5))

    def test_what_is_not_settled_in_time_returns(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"held"])
        with Consumer(broker.url, [first, second], shutdown_timeout=0.2) as consumer:
            message = consumer.get(timeout=30)
            consumer.remove_queue(second)
            assert not message.ack()
            eventually(ready(broker, second, 1))

    def test_a_handler_removes_its_own_queue(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"last"])
        consumer = Consumer(broker.url, [first, second])

        def handle(message: Any) -> None:
            message.ack()
            consumer.remove_queue(message.queue)
            consumer.stop()

        consumer.run(handle)
        assert broker.left(second) == 0

    def test_the_last_queue_and_another_after_it(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"x"])
        with Consumer(broker.url, [first]) as consumer:
            consumer.remove_queue(first)
            assert (consumer.state.consuming, consumer.state.ready) == ({}, True)
            with pytest.raises(queue.Empty):
                consumer.get(timeout=0.05)
            consumer.add_queue(second)
            assert consumer.get(timeout=30).queue == second

    def test_a_paused_queue_comes_back_unpaused(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"x"])
        with Consumer(broker.url, [first, second]) as consumer:
            consumer.pause(second)
            consumer.remove_queue(second)
            assert consumer.state.paused == frozenset()
            consumer.add_queue(second)
            assert consumer.get(timeout=30).queue == second

    def test_adding_waits_for_a_removal(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"held"])
        with Consumer(broker.url, [first, second]) as consumer:
            message = consumer.get(timeout=30)
            removal = consumer._client.begin_removal(second)
            addition, outcome = in_thread(lambda: consumer.add_queue(Queue(second, weight=5)))
            assert not removal.done()
            message.ack()
            removal.result(30)
            addition.join(30)
            assert outcome == [None]
            assert consumer.state.consuming == {first: True, second: True}
            assert consumer.stats()["slots"][second].quantum == 5

    def test_a_deleted_queue(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with Consumer(broker.url, [first, second]) as consumer:
            broker.delete(second)
            consumer.remove_queue(second)
            assert consumer.state.consuming == {first: True}

    def test_messages_held_back_after_failures_return(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"fails"])
        with Consumer(broker.url, [first, second]) as consumer:
            for _ in range(6):
                consumer.get(timeout=30).fail(ValueError("always"))
            eventually(lambda: consumer._client.held_back() == 1)
            consumer.remove_queue(second)
            assert consumer._client.held_back() == 0
            eventually(ready(broker, second, 1))

    def test_settlements_are_sent_before_the_channel_is_closed(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, numbered(300))
        with Consumer(broker.url, [first, second], prefetch=200) as consumer:
            for message in taken(consumer, 50):
                message.ack()
            consumer.remove_queue(second)
            eventually(ready(broker, second, 250))


class TestLostConnections:
    def test_an_addition_waits_for_the_next_connection(self, broker: Node, new_queue: Declare) -> None:
        first, second, third = new_queue(), new_queue(), unused()
        with Proxy(broker.port) as proxy, Consumer(behind(proxy, broker.url), [first]) as consumer:
            proxy.accepting = False
            proxy.cut()
            eventually(lambda: not consumer.state.connected)
            calls = [
                in_thread(lambda: consumer.add_queue(second)),
                in_thread(lambda: consumer.add_queue(Queue(third, durable=True))),
            ]
            eventually(lambda: len(consumer.state.consuming) == 3)
            assert [outcome for _, outcome in calls] == [[], []]
            proxy.accepting = True
            for thread, _ in calls:
                thread.join(60)
            assert [outcome for _, outcome in calls] == [[None], [None]]
            eventually(lambda: consumer.state.consuming == {first: True, second: True, third: True})

    def test_an_addition_is_given_up_in_time(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        with (
            Proxy(broker.port) as proxy,
            Consumer(behind(proxy, broker.url), [first], connect_timeout=1.0) as consumer,
        ):
            proxy.accepting = False
            proxy.cut()
            eventually(lambda: not consumer.state.connected)
            with pytest.raises(ConnectionFailed, match=f"queue '{second}' was not consumed"):
                consumer.add_queue(second)
            assert list(consumer.state.consuming) == [first]
            proxy.accepting = True
            eventually(lambda: consumer.state.consuming == {first: True})

    def test_a_removal_ends_with_the_connection(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, numbered(10))
        with Proxy(broker.port) as proxy, Consumer(behind(proxy, broker.url), [first, second]) as consumer:
            message = consumer.get(timeout=30)
            removal = consumer._client.begin_removal(second)
            assert not removal.done()
            proxy.cut()
            removal.result(30)
            eventually(lambda: consumer.state.consuming == {first: True})
            assert (message.ack(), consumer.state.buffered) == (False, 0)
            eventually(ready(broker, second, 10))

    @pytest.mark.parametrize("seed", range(4))
    def test_cuts_in_the_midst_of_changes(self, broker: Node, new_queue: Declare, seed: int) -> None:
        chance = random.Random(seed)
        first, others = new_queue(), [new_queue() for _ in range(20)]
        with (
            Proxy(broker.port) as proxy,
            Consumer(behind(proxy, broker.url), [first], shutdown_timeout=5) as consumer,
        ):
            for _ in range(3):
                calls = [in_thread(lambda name=name: consumer.add_queue(name)) for name in others]
                reach(lambda: len(consumer.state.consuming) > chance.randrange(1, 15))
                proxy.cut()
                for thread, outcome in calls:
                    thread.join(60)
                    assert outcome == [None]
                calls = [in_thread(lambda name=name: consumer.remove_queue(name)) for name in others]
                reach(lambda: len(consumer.state.consuming) < chance.randrange(8, 21))
                proxy.cut()
                for thread, outcome in calls:
                    thread.join(60)
                    assert outcome == [None]
            eventually(lambda: consumer.state.consuming == {first: True})
            broker.publish(first, [b"x"])
            assert consumer.get(timeout=30).body == b"x"


class Ledger:
    """Messages that were handled, by queue and body."""

    def __init__(self) -> None:
        self.handled: Counter[tuple[str, bytes]] = Counter()
        self.redelivered: set[tuple[str, bytes]] = set()
        self._guard = threading.Lock()

    def handle(self, message: Any) -> None:
        with self._guard:
            self.handled[message.queue, message.body] += 1
            if message.redelivered:
                self.redelivered.add((message.queue, message.body))


def change(consumer: Consumer, names: list[str], seed: int) -> None:
    """Add and remove queues at random; other threads do so too."""
    chance = random.Random(seed)
    for _ in range(40):
        name = chance.choice(names)
        with contextlib.suppress(ConfigurationError):  # it is there already, or not any more
            if chance.random() < 0.5:
                consumer.add_queue(Queue(name, weight=chance.choice([1, 1, 2, 7])))
            else:
                consumer.remove_queue(name)


def publish(url: str, names: list[str], count: int) -> set[tuple[str, bytes]]:
    """Publish numbered messages to queues at random."""
    chance = random.Random(count)
    found = [(chance.choice(names), str(number).encode()) for number in range(count)]
    with Publisher(url) as publisher:
        for name, body in found:
            publisher.publish(body, name, headers={"tenant": body.decode()[-1]})
    return set(found)


@pytest.mark.parametrize("options", [{}, {"key": "header:tenant"}, {"prefetch": "auto"}, {"prefetch": 5}], ids=str)
def test_nothing_is_lost_or_doubled_by_random_changes(
    broker: Node, new_queue: Declare, options: dict[str, Any]
) -> None:
    names, ledger = [new_queue() for _ in range(8)], Ledger()
    consumer = Consumer(broker.url, names[:2], workers=3, shutdown_timeout=20, **options)
    running, ended = in_thread(lambda: consumer.run(ledger.handle))
    changers = [in_thread(lambda seed=seed: change(consumer, names, seed)) for seed in range(3)]
    expected = publish(broker.url, names, 3000)
    for thread, outcome in changers:
        thread.join(60)
        assert outcome == [None]
    for name in names:
        if name not in consumer.state.consuming:
            consumer.add_queue(name)
    eventually(lambda: ledger.handled.keys() == expected, what="every message is handled")
    consumer.stop()
    running.join(60)
    assert ended == [None]
    assert {found for found, count in ledger.handled.items() if count > 1} <= ledger.redelivered
    assert broker.left(*names) == 0


class TestAsyncio:
    def test_queues_come_and_go(self, broker: Node, new_queue: Declare) -> None:
        first, second, missing = new_queue(), new_queue(), unused()
        broker.publish(second, numbered(4))

        async def main() -> None:
            async with aio.Consumer(broker.url, [first]) as consumer:
                await asyncio.gather(*(consumer.add_queue(second) for _ in range(3)))
                message = await consumer.get()
                with pytest.raises(QueueNotFound, match=missing):
                    await consumer.add_queue(missing)
                removal = asyncio.ensure_future(consumer.remove_queue(second))
                await asyncio.sleep(0)
                message.ack()
                await removal
                assert consumer.state.consuming == {first: True}
                with pytest.raises(ConfigurationError, match="not consumed"):
                    await consumer.remove_queue(second)

        asyncio.run(main())
        assert broker.left(second) == 3

    def test_cancelling_does_not_undo_it(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()

        async def main() -> None:
            async with aio.Consumer(broker.url, [first]) as consumer:
                adding = asyncio.ensure_future(consumer.add_queue(second))
                await asyncio.sleep(0)
                adding.cancel()
                await reach_in_loop(lambda: consumer.state.consuming.get(second))

        asyncio.run(main())

    def test_a_coroutine_is_a_source(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        answers = [[first], [first, second], [second]]

        async def source() -> list[str]:
            await asyncio.sleep(0)
            return answers[0]

        async def main() -> None:
            async with aio.Consumer(broker.url, QueueSource(source, every=0.02)) as consumer:
                while answers:
                    await reach_in_loop(lambda: consumer.state.consuming == dict.fromkeys(answers[0], True))
                    if len(answers) == 1:
                        return
                    del answers[0]

        asyncio.run(main())


class TestSources:
    def test_new_queues_are_added_missing_ones_removed_and_weights_changed(
        self, broker: Node, new_queue: Declare
    ) -> None:
        first, second, own = new_queue(), new_queue(), new_queue()
        answer: Any = {first: 1}
        with Consumer(broker.url, [QueueSource(lambda: answer, every=0.02), own]) as consumer:
            eventually(lambda: consumer.state.consuming == {own: True, first: True})
            answer = {first: 3, second: {"prefetch": 7}}
            eventually(lambda: consumer.state.consuming == {own: True, first: True, second: True})
            assert consumer.stats()["slots"][first].quantum == 3
            assert consumer._client.windows()[second] == 7
            answer = {second: {"prefetch": 9}}
            eventually(lambda: consumer._client.windows().get(second) == 9)
            eventually(lambda: consumer.state.consuming == {own: True, second: True})

    @pytest.mark.parametrize("bad", [[], {}, 5, {"x": "y"}, None, ValueError("no"), [""]], ids=repr)
    def test_a_bad_answer_changes_nothing_and_is_logged_once(
        self, broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture, bad: Any
    ) -> None:
        first, second = new_queue(), new_queue()
        answer: Any = [first]
        asked = 0

        def source() -> Any:
            nonlocal asked
            asked += 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        with caplog.at_level(logging.ERROR), Consumer(broker.url, QueueSource(source, every=0.01)) as consumer:
            eventually(lambda: consumer.state.consuming == {first: True})
            answer, before = bad, asked
            eventually(lambda: asked > before + 3)
            assert consumer.state.consuming == {first: True}
            answer = [second]
            eventually(lambda: consumer.state.consuming == {second: True})
        assert len([one for one in caplog.messages if "the queues stay as they are" in one]) == 1

    def test_functions_that_are_made_anew_keep_their_queue(
        self, broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, asked, prefetch = new_queue(), 0, 5

        def source() -> Any:
            nonlocal asked
            asked += 1
            return [Queue(first, on_error=lambda message, _error: message.reject(), prefetch=prefetch)]

        with caplog.at_level(logging.ERROR), Consumer(broker.url, QueueSource(source, every=0.01)) as consumer:
            eventually(lambda: consumer.state.consuming == {first: True})
            channel, before = consumer._client.io_thread.channels.by_queue[first], asked
            eventually(lambda: asked > before + 5)
            assert consumer._client.io_thread.channels.by_queue[first] is channel
            prefetch = 7
            eventually(lambda: consumer._client.windows().get(first) == 7, what="another option still counts")
        assert len([one for one in caplog.messages if "makes another function" in one]) == 1

    def test_a_queue_that_does_not_exist_is_tried_again(self, broker: Node, new_queue: Declare) -> None:
        first, missing = new_queue(), unused()
        with Consumer(broker.url, QueueSource(lambda: [missing, first], every=0.02)) as consumer:
            eventually(lambda: consumer.state.consuming.get(first))
            broker.declare(missing)
            eventually(lambda: consumer.state.consuming == {first: True, missing: True})

    def test_a_source_that_blocks_keeps_nothing_from_its_end(self, broker: Node, new_queue: Declare) -> None:
        first, never = new_queue(), threading.Event()
        try:
            with Consumer(broker.url, never.wait) as consumer:
                consumer.add_queue(first)
                began = time.monotonic()
            assert time.monotonic() - began < 5
        finally:
            never.set()

    def test_a_file_is_read_again(self, broker: Node, new_queue: Declare, tmp_path: Path) -> None:
        first, second = new_queue(), new_queue()
        path = tmp_path / "queues.json"
        path.write_text(json.dumps([first]))
        with Consumer(broker.url, QueueSource(path, every=0.02)) as consumer:
            eventually(lambda: consumer.state.consuming == {first: True})
            path.write_text(json.dumps({first: 2, second: {"weight": 4}}))
            eventually(lambda: consumer.state.consuming == {first: True, second: True})
            path.unlink()
            assert consumer.state.consuming == {first: True, second: True}


class TestApp:
    def test_an_app_handles_the_queues_of_a_source_and_added_ones(self, broker: Node, new_queue: Declare) -> None:
        first, second, third = new_queue(), new_queue(), new_queue()
        app = App(broker.url)
        found: list[tuple[str, str]] = []

        @app.consumer(QueueSource(lambda: [first], every=0.02))
        def of_source(message: Any) -> None:
            found.append(("source", message.queue))

        @app.consumer(second)
        def of_second(message: Any) -> None:
            found.append(("second", message.queue))

        running, outcome = in_thread(app.run)
        eventually(lambda: app.state.consuming == {first: True, second: True})
        app.add_queue(third, lambda message: found.append(("third", message.queue)))
        for name in (first, second, third):
            broker.publish(name, [b"x"])
        expected = {("source", first), ("second", second), ("third", third)}
        eventually(lambda: set(found) == expected)
        app.remove_queue(third)
        assert app.state.consuming == {first: True, second: True}
        app.stop()
        running.join(30)
        assert outcome == [None]


def test_bytes_are_bounded_for_queues_of_a_source(broker: Node, new_queue: Declare) -> None:
    first = new_queue()
    broker.publish(first, [bytes(1000)] * 100)
    with Consumer(broker.url, QueueSource(lambda: [first], every=0.05), max_buffer_bytes=20_000) as consumer:
        eventually(lambda: consumer.state.buffered > 10, what="the window opens once the size is known")
        assert consumer.state.buffered <= 20


def test_a_key_function_cannot_wait_for_a_queue(broker: Node, new_queue: Declare) -> None:
    first, second = new_queue(), new_queue()
    errors: list[BaseException] = []

    def key(message: Any) -> str:
        try:
            consumer.add_queue(second)
        except RuntimeError as error:
            errors.append(error)
        return "x"

    broker.publish(first, [b"x"])
    consumer = Consumer(broker.url, [first], key=key)
    with consumer:
        consumer.get(timeout=30)
    assert "runs in the I/O thread" in str(errors[0])
