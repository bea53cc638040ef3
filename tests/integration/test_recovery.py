"""Lost connections, lost channels, cancelled consumers, blocked connections."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from support.declare import Declare
from support.outcomes import Outcomes
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched.consumer import Consumer

MESSAGES = 30_000


def note(outcomes: Outcomes, fault: str, running: Running, queues: list[str]) -> None:
    processed = {queue: [body for at, body in running.processed.elements() if at == queue] for queue in queues}
    outcomes.note(fault, "consumer, two queues", *((numbered(MESSAGES // 2), found) for found in processed.values()))


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(280)
def test_no_message_is_lost_when_the_broker_is_killed_three_times(mortal: Node, outcomes: Outcomes) -> None:
    queues = ["killed-a", "killed-b"]
    mortal.declare(*queues)
    for queue in queues:
        mortal.publish(queue, numbered(MESSAGES // 2), delivery_mode=2)
    with Running(mortal.url, queues) as running:
        for part in (1, 2, 3):
            eventually(lambda part=part: len(running.processed) >= MESSAGES * part // 5, 60)
            mortal.restart()
            # The next part may be here already: a broker that dies before it is found again counts once.
            eventually(lambda part=part: running.consumer.stats()["reconnects"] >= part)
        eventually(lambda: len(running.processed) == MESSAGES, 120, f"{len(running.processed)} processed")
        eventually(lambda: sum(mortal.count(queue) for queue in queues) == 0)
        stats = running.consumer.stats()
        # And it ends although there is no broker to say goodbye to.
        mortal.kill()
    note(outcomes, "broker killed three times", running, queues)
    assert set(running.processed) == {(queue, body) for queue in queues for body in numbered(MESSAGES // 2)}
    assert stats["reconnects"] >= 3


@pytest.mark.slow
@pytest.mark.chaos
def test_no_message_is_lost_when_channels_fail(broker: Node, new_queue: Declare, outcomes: Outcomes) -> None:
    queues = [new_queue("channel") for _ in range(2)]
    for queue in queues:
        broker.publish(queue, numbered(MESSAGES // 2), delivery_mode=2)
    with Running(broker.url, queues) as running:
        for part in (1, 2, 3):
            eventually(lambda part=part: len(running.processed) >= MESSAGES * part // 5, 60)
            # The other queue alone may have come that far while this one still waits for its next channel.
            eventually(lambda: running.channel(queues[0]).consuming)
            lost = running.channel(queues[0])
            # The broker closes a channel on which an unknown delivery is acked.
            running.in_io_thread(lambda lost=lost: lost._channel.basic_ack(10**9))
            eventually(lambda lost=lost: not lost.alive)
        eventually(lambda: len(running.processed) == MESSAGES, 120)
        eventually(lambda: sum(broker.count(queue) for queue in queues) == 0)
        stats = running.consumer.stats()
    note(outcomes, "channel closed three times", running, queues)
    assert set(running.processed) == {(queue, body) for queue in queues for body in numbered(MESSAGES // 2)}
    assert stats["reconnects"] == 0


@pytest.mark.usefixtures("either_way")
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
        io_thread = consumer._client.io_thread
        lost = io_thread.channels.by_queue[queue]
        io_thread._loop.add_callback_threadsafe(lambda: lost._channel.basic_ack(10**9))
        eventually(lambda: len(again) == 5)
        assert not any(message.alive for message in first)
        assert [message.ack() for message in first] == [False] * 5
        assert consumer.stats()["stale_settlements"] == 5
        assert [message.ack() for message in again] == [True] * 5
    finally:
        consumer.stop()
        thread.join(30)
    assert broker.count(queue) == 0


@pytest.mark.usefixtures("either_way")
def test_a_deleted_queue_is_consumed_again_when_it_is_back(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("deleted"), new_queue("other")
    broker.publish(queue, numbered(10))
    with Running(broker.url, [queue, other]) as running:
        eventually(lambda: running.acked == 10)
        broker.delete(queue)
        eventually(lambda: not running.channel(queue).consuming)
        broker.publish(other, numbered(10))
        eventually(lambda: running.acked == 20, what="the other queue goes on")
        broker.declare(queue)
        broker.publish(queue, [b"back"])
        eventually(lambda: running.processed[queue, b"back"] == 1)
    assert broker.count(queue) == 0


@pytest.mark.usefixtures("either_way")
def test_a_lost_connection_is_made_again(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("lost")
    broker.publish(queue, numbered(2000))
    with Running(broker.url, [queue], work=0.0005) as running:
        eventually(lambda: len(running.processed) > 200)
        # However long that takes, there is work left when the connection goes.
        running.work = 0.1
        broker.close_connections()
        running.work = 0.0005
        eventually(lambda: len(running.processed) == 2000)
        eventually(lambda: broker.count(queue) == 0)
        assert running.consumer.stats()["reconnects"] == 1


@pytest.mark.parametrize("queues", [1, 4])
def test_a_link_that_is_cut_within_the_first_windows_makes_progress(
    broker: Node, new_queue: Declare, queues: int
) -> None:
    names = [new_queue("short") for _ in range(queues)]
    for name in names:
        broker.publish(name, [body + b" " * 10_000 for body in numbered(400 // queues)])
    with Proxy(broker.port) as proxy:
        # A tenth of what the windows let the broker send at once.
        proxy.allowance = 400_000
        with Running(behind(proxy, broker.url), names, prefetch=400) as running:
            eventually(lambda: len(running.processed) == 400, what="all messages are handled")
            # What was acked on a connection that was then cut may come once more.
            proxy.allowance = None
            proxy.cut()
            eventually(lambda: broker.left(*names) == 0)


def test_a_link_that_is_cut_while_queues_are_subscribed_makes_progress(broker: Node, new_queue: Declare) -> None:
    names = [new_queue("short") for _ in range(30)]
    for name in names:
        broker.publish(name, [body + b" " * 10_000 for body in numbered(5)])
    with Proxy(broker.port) as proxy:
        proxy.allowance = 200_000
        with Running(behind(proxy, broker.url), names) as running:
            eventually(lambda: len(running.processed) == 150, what="all messages are handled")
            # What was acked on a connection that was then cut may come once more.
            proxy.allowance = None
            proxy.cut()
            eventually(lambda: broker.left(*names) == 0)


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


@pytest.mark.steady
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
    with caplog.at_level(logging.INFO, "fairsched"), Running(broker.url, [queue], work=0.01) as running:
        eventually(lambda: len(running.processed) > 2)
        # However long the next takes, there is work left when the connection is blocked.
        running.work = 1.0
        try:
            broker.raise_memory_alarm()
            # The broker blocks connections that publish, so this one does once.
            channel = running.channel(queue)._channel
            running.in_io_thread(lambda: channel.basic_publish("", "no-such-queue", b"x"))
            eventually(lambda: "blocked the connection" in caplog.text)
            assert len(running.processed) < 100
            running.work = 0.01
            eventually(lambda: len(running.processed) == 100)
        finally:
            broker.clear_memory_alarm()
        eventually(lambda: "unblocked the connection" in caplog.text)
        eventually(lambda: broker.count(queue) == 0)
