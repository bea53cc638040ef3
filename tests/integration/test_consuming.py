"""A consumer's treatment of messages, against a real broker."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.running import busy
from support.waiting import eventually

from fairsched.consumer import App, Consumer, from_pika
from fairsched.consumer.requeueing.pace import FIRST


@pytest.mark.steady
def test_a_drained_consumer_sleeps(broker: Node, new_queue: Declare) -> None:
    queues = [new_queue("idle") for _ in range(10)]
    for queue in queues:
        broker.publish(queue, numbered(100))
    handled = []
    consumer = Consumer(broker.url, queues)
    thread = threading.Thread(target=consumer.run, args=(lambda message: handled.append(message.body),))
    thread.start()
    try:
        eventually(lambda: len(handled) == 1000 and consumer.stats()["acked"] == 1000)
        eventually(lambda: not any(slot.held for slot in consumer.stats()["slots"].values()))
        before = time.process_time()
        assert not threading.Event().wait(3.0)
        assert time.process_time() - before < 0.05 * 3.0
    finally:
        consumer.stop()
        thread.join(30)
    assert all(broker.count(queue) == 0 for queue in queues)


@pytest.mark.usefixtures("either_way")
def test_one_failure_is_settled_by_policy_and_the_rest_is_acked(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    dead = new_queue("dead")
    queue = new_queue("fail", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    broker.publish(queue, numbered(1000))
    seen: list[bytes] = []
    consumer = Consumer(broker.url, [queue], on_error="reject")

    def handler(message: object) -> None:
        seen.append(message.body)
        if len(seen) == 1000:
            consumer.stop()
        if message.body == b"500":
            raise ValueError("cannot do this one")

    with caplog.at_level(logging.ERROR, "fairsched.consumer"):
        consumer.run(handler)
    stats = consumer.stats()
    assert (stats["acked"], stats["rejected"], stats["errors"]) == (999, 1, 1)
    assert sorted(seen, key=int) == numbered(1000)
    eventually(lambda: broker.count(dead) == 1)
    assert broker.count(queue) == 0
    assert [record.getMessage() for record in caplog.records if "cannot do this one" in record.getMessage()]
    assert sum("Traceback" in (record.exc_text or "") for record in caplog.records) == 1


def test_each_failing_message_has_one_traceback(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is redelivered when it is seen for the first time."""
    queue = new_queue("trace")
    broker.publish(queue, numbered(3))
    with broker.connect() as channel:
        # Another consumer has them first, and goes away.
        for _ in range(2):
            channel.basic_get(queue)
    eventually(lambda: broker.count(queue) == 3)
    attempts: Counter[bytes] = Counter()

    def settle(message: object, error: Exception) -> None:
        attempts[message.body] += 1
        message.nack(requeue=attempts[message.body] < 3)
        if attempts.total() == 9:
            consumer.stop()

    def handler(message: object) -> None:
        raise ValueError(f"no {message.body.decode()}")

    consumer = Consumer(broker.url, [queue], on_error=settle)
    with caplog.at_level(logging.ERROR, "fairsched.consumer"):
        consumer.run(handler)
    assert attempts == {b"0": 3, b"1": 3, b"2": 3}
    traced = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sorted(traced) == ["no 0", "no 1", "no 2"]
    assert len(caplog.records) == 9


@pytest.mark.parametrize(
    ("policy", "outcome"), [("requeue", "nacked"), ("reject", "rejected"), (lambda m, e: m.nack(False), "rejected")]
)
def test_on_error(broker: Node, new_queue: Declare, policy: object, outcome: str) -> None:
    queue = new_queue("policy")
    broker.publish(queue, numbered(2))
    attempts: Counter[bytes] = Counter()
    consumer = Consumer(broker.url, [queue], on_error=policy)
    last = 3 if policy == "requeue" else 2

    def handler(message: object) -> None:
        attempts[message.body] += 1
        if attempts.total() == last:
            consumer.stop()
        if message.body == b"0" and attempts[b"0"] == 1:
            raise RuntimeError("once")

    consumer.run(handler)
    stats = consumer.stats()
    assert stats[outcome] == 1
    assert stats["acked"] == last - 1
    assert broker.count(queue) == 0


def test_an_on_error_function_that_does_not_settle_requeues(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("policy")
    broker.publish(queue, [b"x"])
    calls: list[str] = []
    consumer = Consumer(broker.url, [queue], on_error=lambda message, error: calls.append(str(error)))

    def handler(message: object) -> None:
        if message.redelivered:
            consumer.stop()
        else:
            raise RuntimeError("first time")

    consumer.run(handler)
    assert calls == ["first time"]
    assert (consumer.stats()["nacked"], consumer.stats()["acked"]) == (1, 1)


@pytest.mark.usefixtures("either_way")
def test_a_handler_may_settle_itself_and_twice(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("self")
    broker.publish(queue, numbered(4))
    answers: list[tuple[bool, bool]] = []
    consumer = Consumer(broker.url, [queue])
    settle = {b"0": "ack", b"1": "reject", b"2": "nack", b"3": "ack"}

    def handler(message: object) -> None:
        if message.redelivered:
            consumer.stop()
        elif message.body == b"2":
            answers.append((message.nack(), message.ack()))
        else:
            answers.append((getattr(message, settle[message.body])(), message.nack()))

    consumer.run(handler)
    assert answers == [(True, False)] * 4
    stats = consumer.stats()
    assert (stats["acked"], stats["nacked"], stats["rejected"]) == (3, 1, 1)
    assert broker.count(queue) == 0


@pytest.mark.usefixtures("either_way")
def test_messages_carry_what_was_published(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("carry")
    broker.publish(queue, [b""], headers={"tenant": "a", "n": 5}, app_id="app", message_id="m1", delivery_mode=2)
    broker.publish(queue, [b"y" * 400_000])
    messages = []
    with Consumer(broker.url, [queue]) as consumer:
        for message in consumer:
            message.ack()
            messages.append(message)
            if len(messages) == 2:
                consumer.stop()
    first, second = messages
    assert (first.body, first.headers, first.properties.app_id) == (b"", {"tenant": "a", "n": 5}, "app")
    assert (first.queue, first.exchange, first.routing_key) == (queue, "", queue)
    assert (first.delivery_tag, first.redelivered, first.delivery.delivery_tag) == (1, False, 1)
    assert (second.body, second.headers, second.delivery_tag) == (b"y" * 400_000, {}, 2)
    assert "y" not in repr(second).replace(queue, "").replace("bytes", "")


def test_iteration_ends_after_a_stop_and_gives_back_what_it_leaves(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("iterate")
    broker.publish(queue, numbered(100))
    with Consumer(broker.url, [queue], prefetch=10) as consumer:
        for number, message in enumerate(consumer, 1):
            with message:
                assert message.body == b"%d" % (number - 1)
            if number == 30:
                break
    assert consumer.stats()["acked"] == 30
    eventually(lambda: broker.count(queue) == 70)

    with Consumer(broker.url, [queue], prefetch=10) as consumer:
        rest = []
        for message in consumer:
            with message:
                rest.append(message.body)
            if len(rest) == 5:
                consumer.stop()
    # What was buffered is finished, what was not delivered stays.
    assert 5 <= len(rest) <= 5 + 2 * 10
    eventually(lambda: broker.count(queue) == 70 - len(rest))


def test_an_exception_in_a_with_block_settles_by_policy_and_goes_on(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("with")
    broker.publish(queue, [b"x"])
    consumer = Consumer(broker.url, [queue], on_error="reject")

    def fail() -> None:
        with consumer, next(iter(consumer)):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert consumer.stats()["rejected"] == 1
    assert broker.count(queue) == 0


@pytest.mark.usefixtures("either_way")
def test_many_workers_settle_out_of_order_exactly(broker: Node, new_queue: Declare) -> None:
    queues = {new_queue("pool"): 3, new_queue("pool"): 1}
    for queue in queues:
        broker.publish(queue, numbered(1000))
    handled: Counter[tuple[str, bytes]] = Counter()
    threads: set[str] = set()
    guard = threading.Lock()
    consumer = Consumer(broker.url, queues, workers=8)

    def handler(message: object) -> None:
        busy(int(message.body) % 7 * 1e-5)
        with guard:
            threads.add(threading.current_thread().name)
            handled[message.queue, message.body] += 1
            if handled.total() == 2000:
                consumer.stop()

    consumer.run(handler)
    assert set(handled.values()) == {1}
    assert len(threads) == 8
    assert consumer.stats()["acked"] == 2000
    assert all(broker.count(queue) == 0 for queue in queues)


def test_deferred_messages_are_settled_from_other_threads(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("defer")
    broker.publish(queue, numbered(50))
    kept = []
    consumer = Consumer(broker.url, [queue], prefetch=100)
    thread = threading.Thread(target=consumer.run, args=(lambda message: (message.defer(), kept.append(message)),))
    thread.start()
    try:
        eventually(lambda: len(kept) == 50)
        assert consumer.stats()["acked"] == 0
        for message in reversed(kept):
            assert message.ack()
        eventually(lambda: consumer.stats()["acked"] == 50)
    finally:
        consumer.stop()
        thread.join(30)
    assert broker.count(queue) == 0


@pytest.mark.usefixtures("either_way")
def test_a_pika_callback_settles_as_with_pika(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("pika")
    broker.publish(queue, numbered(3), app_id="app")
    seen = []
    consumer = Consumer(broker.url, [queue])

    def callback(channel: object, method: object, properties: object, body: bytes) -> None:
        seen.append((method.routing_key, properties.app_id, body))
        if body == b"0":
            channel.basic_ack(delivery_tag=method.delivery_tag)
        elif body == b"1":
            channel.connection.add_callback_threadsafe(lambda: channel.basic_ack(method.delivery_tag))
        else:
            channel.basic_nack(method.delivery_tag, requeue=False)
            consumer.stop()

    consumer.run(from_pika(callback))
    assert seen == [(queue, "app", body) for body in numbered(3)]
    assert (consumer.stats()["acked"], consumer.stats()["rejected"]) == (2, 1)


def test_an_app_gives_each_queue_its_handler(broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    gold, free = new_queue("gold"), new_queue("free")
    broker.publish(gold, numbered(30))
    broker.publish(free, numbered(30))
    app = App(prefetch=40)
    seen: Counter[str] = Counter()

    @app.consumer(gold, weight=3)
    def on_gold(message: object) -> None:
        count("gold")

    @app.consumer(free)
    def on_free(message: object) -> None:
        count("free")

    def count(name: str) -> None:
        seen[name] += 1
        if seen.total() == 60:
            app.stop()

    monkeypatch.setenv("FAIRSCHED_URL", broker.url)
    app.run()
    assert seen == {"gold": 30, "free": 30}
    assert app.weights == {gold: 3, free: 1}


def test_a_message_that_always_fails_does_not_come_all_the_time(broker: Node, new_queue: Declare) -> None:
    """Nor does it hold up others, nor a stop."""
    queue = new_queue("bad")
    broker.publish(queue, [b"bad", *numbered(200)])
    bad: list[float] = []
    done: set[bytes] = set()
    consumer = Consumer(broker.url, [queue], prefetch=20)

    def handler(message: object) -> None:
        if message.body == b"bad":
            bad.append(time.monotonic())
            raise ValueError
        done.add(message.body)

    thread = threading.Thread(target=consumer.run, args=[handler])
    thread.start()
    eventually(lambda: len(bad) == 7)
    pauses = [after - before for before, after in itertools.pairwise(bad)]
    assert all(pause > 0.9 * FIRST * 2**number for number, pause in enumerate(pauses[1:]))
    assert done == set(numbered(200))
    consumer.stop()
    thread.join(30)
    assert consumer.stats()["acked"] == 200
    eventually(lambda: broker.count(queue) == 1)
