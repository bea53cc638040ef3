"""Queues that are paused and resumed while a consumer runs, on a real broker: nothing is lost, nothing comes twice."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched import App, ConfigurationError, Consumer, aio


def consumers(broker: Node, queue: str) -> int:
    """Return the number of consumers that the broker counts."""
    with broker.connect() as channel:
        return channel.queue_declare(queue, passive=True).method.consumer_count


@pytest.mark.parametrize("options", [{}, {"prefetch": "auto"}, {"max_buffer_bytes": 100_000}])
def test_a_paused_queue_takes_in_nothing(broker: Node, new_queue: Declare, options: dict[str, Any]) -> None:
    gold, free = new_queue(), new_queue()
    with Running(broker.url, [gold, free], **options) as running:
        consumer = running.consumer
        eventually(lambda: consumer.state.ready)
        consumer.pause(gold)
        consumer.pause(gold)
        eventually(lambda: consumers(broker, gold) == 0)
        broker.publish(gold, numbered(50))
        broker.publish(free, numbered(50))
        eventually(lambda: running.acked == 50)
        assert {queue for queue, _ in running.processed} == {free}
        state = consumer.state
        assert (state.paused, state.consuming, state.ready) == ({gold}, {gold: False, free: True}, True)
        assert consumer.explain(gold).paused
        assert not consumer.explain(free).paused
        assert "the queue is paused" in str(consumer.explain(gold))
        assert broker.count(gold) == 50
        consumer.resume(gold)
        eventually(lambda: running.acked == 100)
        assert set(running.processed.values()) == {1}
        assert consumer.state.paused == frozenset()
        eventually(lambda: consumer.state.consuming == {gold: True, free: True})


def test_what_is_here_is_handled(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(30))
    with Consumer(broker.url, [queue], prefetch=20) as consumer:
        eventually(lambda: consumer.state.buffered == 20)
        consumer.pause(queue)
        eventually(lambda: consumers(broker, queue) == 0)
        messages = iter(consumer)
        for message in itertools.islice(messages, 19):
            message.ack()
        last = next(messages)
        # The window that comes with the resumption must not be beside what is here.
        consumer.resume(queue)
        assert consumer.state.buffered == 0
        assert consumer.explain(queue).unsettled in (1, 20)
        last.ack()
        bodies = []
        for message in itertools.islice(messages, 10):
            bodies.append(message.body)
            message.ack()
        assert bodies == numbered(30)[20:]


def test_it_stays_paused_on_another_connection(broker: Node, new_queue: Declare) -> None:
    gold, free = new_queue(), new_queue()
    with Proxy(broker.port) as proxy, Running(behind(proxy, broker.url), [gold, free]) as running:
        consumer = running.consumer
        eventually(lambda: consumer.state.ready)
        consumer.pause(gold)
        eventually(lambda: consumers(broker, gold) == 0)
        proxy.cut()
        eventually(lambda: consumer.stats()["reconnects"] == 1 and consumer.state.ready)
        broker.publish(gold, numbered(10))
        broker.publish(free, numbered(10))
        eventually(lambda: running.acked == 10)
        assert consumers(broker, gold) == 0
        consumer.resume(gold)
        eventually(lambda: running.acked == 20)
        assert set(running.processed.values()) == {1}


def test_a_queue_that_is_deleted_while_it_is_paused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    with Running(broker.url, [queue]) as running:
        eventually(lambda: running.consumer.state.ready)
        running.consumer.pause(queue)
        eventually(lambda: consumers(broker, queue) == 0)
        broker.delete(queue)
        running.consumer.resume(queue)
        eventually(lambda: repr(queue) in (running.consumer.state.last_error or ""))
        broker.declare(queue)
        broker.publish(queue, numbered(5))
        eventually(lambda: running.acked == 5)


def test_a_queue_that_is_missing_when_it_is_resumed(broker: Node, new_queue: Declare) -> None:
    there, missing = new_queue(), "not-there-yet"
    consumer = Consumer(broker.url, [there, missing])
    consumer.pause(missing)
    with consumer:
        consumer.resume(missing)
        eventually(lambda: missing in (consumer.state.last_error or ""))
        broker.declare(missing)
        try:
            eventually(lambda: consumer.state.consuming == {there: True, missing: True})
        finally:
            broker.delete(missing)


def test_a_stop_while_everything_is_paused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(30))
    with Consumer(broker.url, [queue], prefetch=20) as consumer:
        eventually(lambda: consumer.state.buffered == 20)
        consumer.pause(queue)
        consumer.stop()
        for message in consumer:
            message.ack()
    assert broker.count(queue) == 10
    consumer.resume(queue)


@pytest.mark.parametrize("every", [True, False])
def test_a_start_with_paused_queues(broker: Node, new_queue: Declare, every: bool) -> None:
    queues = [new_queue(), new_queue()]
    for queue in queues:
        broker.publish(queue, numbered(5))
    consumer = Consumer(broker.url, queues)
    for queue in queues if every else queues[1:]:
        consumer.pause(queue)
    assert consumer.state.paused == set(queues if every else queues[1:])
    with consumer:
        assert consumer.state.ready
        eventually(lambda: consumer.state.buffered == (0 if every else 5))
        for queue in queues:
            consumer.resume(queue)
        eventually(lambda: consumer.state.buffered == 10)


@pytest.mark.parametrize("seed", range(3))
def test_again_and_again_while_messages_come(broker: Node, new_queue: Declare, seed: int) -> None:
    queues = [new_queue(), new_queue()]
    chance = random.Random(seed)
    with Running(broker.url, queues, prefetch=dict.fromkeys(queues, 7)) as running:
        consumer = running.consumer
        eventually(lambda: consumer.state.ready)
        ended = threading.Event()

        def publish() -> None:
            for first in range(0, 2000, 100):
                for queue in queues:
                    broker.publish(queue, numbered(2000)[first : first + 100])
            ended.set()

        publishing = threading.Thread(target=publish)
        publishing.start()
        while not ended.is_set():
            chance.choice([consumer.pause, consumer.resume])(chance.choice(queues))
            for queue in queues:
                assert (consumer.explain(queue).unsettled or 0) <= 7
            ended.wait(chance.choice([0, 0, 0.001, 0.02]))
        publishing.join()
        for queue in queues:
            consumer.resume(queue)
        eventually(lambda: running.acked == 4000)
        assert set(running.processed.values()) == {1}
    assert [broker.count(queue) for queue in queues] == [0, 0]


def test_what_is_refused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    for consumer in (Consumer(broker.url, [queue]), aio.Consumer(broker.url, [queue])):
        with pytest.raises(ConfigurationError, match="queue 'other' is not consumed; there are 'q"):
            consumer.pause("other")
    with pytest.raises(RuntimeError, match="no consumer of this app is running"):
        App(broker.url).pause(queue)
