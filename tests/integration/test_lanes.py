"""Consumers of lanes: own lanes of tenants are found, found again, given up and never lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pika
import pytest
from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import App, ConfigurationError, Consumer, Lanes, Queue, Retry, aio
from fairsched.lanes import own_lanes, registry
from fairsched.lanes.announcement import ACTIVE, CLOSE, GONE, KEPT, NEW, Announcement, encode
from fairsched.metrics import ConsumerCollector

_numbers = itertools.count()
#: A bound for what takes milliseconds; benchmarks measure them.
SOON = 10.0


class Producer:
    """Declares, fills and announces own lanes.

    A publisher announces them before; but on a busy machine a lane would be idle, and deleted, before it is filled.
    """

    def __init__(self, broker: Broker, lanes: Lanes) -> None:
        self.broker, self.lanes = broker, lanes

    def open_lane(self, tenant: str, messages: int = 1) -> str:
        lane = self.lanes.own_lane_of(tenant)
        self.broker.declare(lane)
        self.fill(lane, tenant, messages)
        self.say(NEW, encode(Announcement(lane, tenant)))
        return lane

    def fill(self, queue: str, tenant: str, messages: int = 1) -> None:
        bodies = [f"{tenant} {number}".encode() for number in range(messages)]
        self.broker.publish(queue, bodies, headers={"tenant": tenant}, delivery_mode=2)

    def say(self, key: str, body: bytes) -> None:
        with self.broker.connect() as channel:
            channel.exchange_declare(self.lanes.registry, "direct", durable=True)
            channel.queue_declare(self.lanes.registry, durable=True)
            channel.queue_bind(self.lanes.registry, self.lanes.registry, NEW)
            channel.basic_publish(self.lanes.registry, key, body, pika.BasicProperties(delivery_mode=2))

    def entries(self) -> int:
        return self.broker.count(self.lanes.registry)

    def exists(self, queue: str) -> bool:
        try:
            self.broker.count(queue)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


class Worker:
    """A consumer that runs in a thread, and what it handled."""

    def __init__(self, url: str, lanes: Any, **options: Any) -> None:
        self.consumer = Consumer(url, lanes, **options)
        self.handled: list[tuple[str, bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._thread = threading.Thread(target=self.consumer.run, args=(self.handle,))

    def handle(self, message: Any) -> None:
        self.handled.append((message.queue, bytes(message.body)))
        self.gate.wait(60)

    @property
    def own(self) -> set[str]:
        """The own lanes that the broker lets it consume."""
        return {name for name, found in self.consumer.state.consuming.items() if found and ".tenant." in name}

    @property
    def hears(self) -> bool:
        found = self.consumer._client.lane_registry
        return found is not None and found.connected

    def __enter__(self) -> Worker:
        self._thread.start()
        eventually(lambda: self.consumer.state.ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.consumer.stop(now=True)
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def lanes(broker: Broker) -> Iterator[Lanes]:
    made = Lanes(f"orders{next(_numbers)}", key="header:tenant", buckets=2)
    yield made
    delete(broker, made)


def delete(broker: Broker, lanes: Lanes) -> None:
    broker.delete(*lanes.bucket_names, lanes.registry, *(lanes.own_lane_of(tenant) for tenant in "abcx"))
    with broker.connect() as channel:
        channel.exchange_delete(lanes.registry)
        channel.exchange_delete(lanes.layout)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lanes be idle after two seconds."""
    monkeypatch.setattr(own_lanes, "IDLE", 2.0)


@pytest.fixture
def busy_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the registry more often, and connect again sooner."""
    monkeypatch.setattr(registry, "BEAT", 0.5)
    monkeypatch.setattr("fairsched.amqp.backoff.LONGEST", 0.5)


def test_a_new_lane_is_served_at_once(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as one, Worker(broker.url, lanes) as two:
        eventually(lambda: one.hears and two.hears)
        began = time.monotonic()
        lane = producer.open_lane("a", 20)
        eventually(lambda: len(one.handled) + len(two.handled) == 20)
        assert time.monotonic() - began < SOON
        assert {queue for queue, _ in one.handled + two.handled} == {lane}
        eventually(lambda: one.own == two.own == {lane})
        assert one.consumer.stats()["lanes"] == {lanes.name: 1}


def test_buckets_and_lanes_are_one_slot_of_a_tenant(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes, tenants={"a": 3}) as worker:
        eventually(lambda: worker.hears)
        producer.fill(lanes.bucket_of("a"), "a", 5)
        producer.open_lane("a", 5)
        eventually(lambda: len(worker.handled) == 10)
        slots = worker.consumer.stats()["slots"]
        assert {name: slot.served for name, slot in slots.items() if slot.served} == {"a": 10}
        assert worker.consumer.explain("a").weight == 3
        assert worker.consumer.explain(lanes.own_lane_of("a")).window
        metrics = {
            (sample.name, sample.labels.get("queue")): sample.value
            for family in ConsumerCollector(worker.consumer).collect()
            for sample in family.samples
        }
        assert metrics["fairsched_own_lanes", None] == metrics["fairsched_lane_registry_connected", None] == 1
        consumed = {queue for name, queue in metrics if name == "fairsched_queue_consumed"}
        assert consumed == {*lanes.bucket_names}


def test_the_window_of_a_lane_is_by_the_weight_of_its_tenant(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes, tenants={"a": 10, "*": 2}, prefetch=100) as worker:
        eventually(lambda: worker.hears)
        found = [producer.open_lane(tenant) for tenant in "ab"]
        eventually(lambda: worker.own == {*found})
        windows = worker.consumer._client.windows()
        # Of 100 in the proportion 10 : 2 : 2 : 2, and then 10 : 2 : 2 : 2 : 2; the buckets keep theirs.
        assert [windows[name] for name in (*found, *lanes.bucket_names)] == [71, 12, 50, 50]
        worker.consumer.set_weight("a", 4)
        # Now 4 : 2 : 2 : 2.
        eventually(lambda: worker.consumer._client.windows()[found[0]] == 40)
        windows = worker.consumer._client.windows()
        assert [windows[name] for name in (found[1], *lanes.bucket_names)] == [12, 50, 50]
        # The lane that is announced once more, and one that is found later, are consumed with the new weight.
        producer.say(NEW, encode(Announcement(found[0], "a")))
        client = worker.consumer._client
        assert client.add_queues({found[0]: Queue(found[0], weight=10, retry=False)})[found[0]].done()
        assert client.settings.weights[found[0]] == 4


def test_lanes_are_found_again_by_another_worker(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    found = {producer.open_lane(tenant, 3) for tenant in "abc"}
    producer.open_lane("a", 2)  # announced twice
    with Worker(broker.url, lanes) as one, Worker(broker.url, lanes) as two:
        eventually(lambda: one.own == two.own == found)
        eventually(lambda: len(one.handled) + len(two.handled) == 11)
    assert producer.entries() == 3
    producer.fill(lanes.own_lane_of("b"), "b")
    with Worker(broker.url, lanes) as three:
        eventually(lambda: three.handled == [(lanes.own_lane_of("b"), b"b 0")])


def test_lanes_are_found_again_after_a_restart_of_the_broker(mortal: Broker) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=2)
    producer = Producer(mortal, lanes)
    with Worker(mortal.url, lanes) as worker:
        eventually(lambda: worker.hears)
        lane = producer.open_lane("a")
        eventually(lambda: worker.own == {lane})
        mortal.restart_cleanly()
        eventually(lambda: worker.own == {lane} and worker.hears, 60)
        producer.fill(lane, "a", 3)
        other = producer.open_lane("b")
        eventually(lambda: Counter(queue for queue, _ in worker.handled) == {lane: 4, other: 1})
    assert producer.entries() == 2


def test_registry_messages_of_others_do_no_harm(broker: Broker, lanes: Lanes, caplog: pytest.LogCaptureFixture) -> None:
    producer = Producer(broker, lanes)
    bad = [b"", b"{}", b"[" * 9999, b'{"lane": "other.tenant.x"}', json.dumps({"lane": lanes.bucket_names[0]}).encode()]
    for body in bad:
        producer.say(NEW, body)
    lane = lanes.own_lane_of("x")
    producer.say(NEW, encode(Announcement(lane, "x")))  # which does not exist
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: worker.hears and producer.entries() == 0)
        for key, body in itertools.product((NEW, ACTIVE, CLOSE, GONE, KEPT, "other"), bad):
            producer.say(key, body)
        for key in (ACTIVE, CLOSE, GONE, KEPT):
            producer.say(key, encode(Announcement(lane, "x")))
        found = producer.open_lane("a")
        eventually(lambda: worker.own == {found} and worker.handled == [(found, b"a 0")])
        # None of these deletes a lane, or has its worker leave it for good.
        for key in (CLOSE, GONE):
            producer.say(key, encode(Announcement(found, "a")))
        producer.fill(found, "a")
        eventually(lambda: len(worker.handled) == 2)
    assert caplog.text.count("message ignored") == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_that_come_to_a_worker_by_another_exchange_do_no_harm(
    broker: Broker, lanes: Lanes, caplog: pytest.LogCaptureFixture, ordered: bool
) -> None:
    """Any client may bind its exchange to the registry."""
    lanes = replace(lanes, ordered=ordered)
    with Worker(broker.url, lanes) as worker, broker.connect() as channel:
        part = worker.consumer._client.lane_membership if ordered else worker.consumer._client.lane_registry
        assert part is not None
        eventually(lambda: part.connected)
        channel.exchange_declare("foreign", "fanout", auto_delete=True)
        channel.exchange_bind(lanes.registry, "foreign")
        for key in (NEW, CLOSE, "here"):
            channel.basic_publish("foreign", key, b"{}")
        eventually(lambda: "message ignored: its exchange is 'foreign'" in caplog.text)
        assert part.connected
        lane = Producer(broker, lanes).open_lane("a") if not ordered else lanes.bucket_of("a")
        Producer(broker, lanes).fill(lane, "b")
        eventually(lambda: (lane, b"b 0") in worker.handled)
    assert "failed" not in caplog.text
    # The registry keeps one of them, too, and a worker that counts the lanes anew reads it there.
    assert caplog.text.count("message ignored: its exchange is") == 1


def test_an_idle_lane_is_deleted_by_agreement(broker: Broker, lanes: Lanes, impatient: None) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as one, Worker(broker.url, lanes) as two:
        eventually(lambda: one.hears and two.hears)
        lane = producer.open_lane("a", 4)
        eventually(lambda: one.own == two.own == {lane})
        eventually(lambda: not producer.exists(lane))
        eventually(lambda: not one.own and not two.own)
        assert len(one.handled) + len(two.handled) == 4
        assert one.consumer.stats()["lanes"] == {lanes.name: 0}
        # It comes again as soon as its tenant does.
        producer.open_lane("a", 4)
        eventually(lambda: len(one.handled) + len(two.handled) == 8)
    eventually(lambda: producer.entries() <= 2)
    with Worker(broker.url, lanes) as three:
        eventually(lambda: three.hears and producer.entries() <= 1)


def test_a_paused_lane_is_still_paused_when_it_comes_back(broker: Broker, lanes: Lanes, impatient: None) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: worker.hears)
        lane = producer.open_lane("a")
        eventually(lambda: len(worker.handled) == 1)
        worker.consumer.pause(lane)
        producer.fill(lane, "a", 3)
        # For the worker it is idle; the broker refuses to delete it, and it comes back.
        eventually(lambda: lane not in worker.consumer.state.consuming)
        eventually(lambda: lane in worker.consumer.state.consuming)
        producer.fill(lanes.bucket_of("b"), "b")
        eventually(lambda: len(worker.handled) == 2)
        assert worker.consumer.state.paused == {lane}
        assert broker.count(lane) == 3
        worker.consumer.resume(lane)
        eventually(lambda: len(worker.handled) == 5)


def test_a_paused_lane_that_is_given_up_can_be_resumed(broker: Broker, lanes: Lanes, impatient: None) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: worker.hears)
        lane = producer.open_lane("a")
        eventually(lambda: len(worker.handled) == 1)
        worker.consumer.pause(lane)
        eventually(lambda: not producer.exists(lane) and lane not in worker.consumer.state.consuming)
        worker.consumer.resume(lane)
        producer.open_lane("a")
        eventually(lambda: len(worker.handled) == 2)


@pytest.mark.parametrize("name", ["bucket.0", "tenant.a", "lanes"])
def test_lanes_are_neither_added_nor_removed_alone(broker: Broker, lanes: Lanes, name: str) -> None:
    queue = f"{lanes.name}.{name}"
    with Worker(broker.url, lanes) as worker:
        before = worker.consumer.state.consuming
        for change in (worker.consumer.add_queue, worker.consumer.remove_queue):
            with pytest.raises(ConfigurationError, match=f"queue '{queue}' belongs to lanes '{lanes.name}'"):
                change(queue)
        assert worker.consumer.state.consuming == before


def test_a_lane_with_a_message_in_hand_is_not_deleted(
    broker: Broker, lanes: Lanes, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairsched")
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as holder, Worker(broker.url, lanes) as idle:
        eventually(lambda: holder.hears and idle.hears)
        idle.gate.clear()
        holder.gate.clear()
        lane = producer.open_lane("a")
        eventually(lambda: len(holder.handled) + len(idle.handled) == 1)
        other = idle if holder.handled else holder
        # The other one proposes, hears that the lane is active, and consumes it again.
        eventually(lambda: f"queue {lane!r} is not consumed any more" in caplog.text)
        eventually(lambda: other.own == {lane})
        assert producer.exists(lane)
        for worker in (holder, idle):
            worker.gate.set()
        eventually(lambda: holder.consumer.stats()["acked"] + idle.consumer.stats()["acked"] == 1)
        assert len(holder.handled) + len(idle.handled) == 1


def test_a_lane_that_an_operator_deletes_is_forgotten(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: worker.hears)
        lane = producer.open_lane("a")
        eventually(lambda: worker.own == {lane})
        broker.delete(lane)
        eventually(lambda: worker.consumer.stats()["lanes"] == {lanes.name: 0})
        eventually(lambda: lane not in worker.consumer.state.consuming)
        assert worker.consumer.state.ready
        producer.open_lane("a", 2)
        eventually(lambda: len(worker.handled) == 3)
    assert producer.exists(lane)


def test_a_registry_that_an_operator_deletes_is_written_again(broker: Broker, lanes: Lanes, busy_beat: None) -> None:
    producer = Producer(broker, lanes)
    with Worker(broker.url, lanes) as one, Worker(broker.url, lanes) as two:
        eventually(lambda: one.hears and two.hears)
        found = {producer.open_lane(tenant) for tenant in "ab"}
        eventually(lambda: one.own == two.own == found)
        broker.delete(lanes.registry)
        eventually(lambda: producer.exists(lanes.registry) and producer.entries() >= 2)
        with broker.connect() as channel:
            channel.exchange_delete(lanes.registry)
        eventually(lambda: producer.entries() == 2)
        third = producer.open_lane("c")
        eventually(lambda: one.own == two.own == {*found, third})
    with Worker(broker.url, lanes) as three:
        eventually(lambda: three.own == {*found, third})


def test_a_lane_that_was_announced_while_nobody_heard(broker: Broker, lanes: Lanes, busy_beat: None) -> None:
    with Worker(broker.url, lanes) as worker:
        eventually(lambda: worker.hears)
        lane = lanes.own_lane_of("a")
        broker.declare(lane)
        # Only the registry queue has it, not the queue of announcements of this worker.
        broker.publish(lanes.registry, [encode(Announcement(lane, "a"))])
        eventually(lambda: worker.own == {lane})


def test_the_registry_is_read_when_its_reader_dies(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    lane = producer.open_lane("a")
    reader = (
        "import pika, sys, time\n"
        "channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()\n"
        "channel.basic_consume(sys.argv[2], lambda *_: print('reads', flush=True), exclusive=True)\n"
        "channel.start_consuming()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", reader, broker.url, lanes.registry], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "reads\n"
        with Worker(broker.url, lanes) as worker:
            eventually(lambda: worker.hears)
            other = producer.open_lane("b")  # announcements are heard meanwhile
            eventually(lambda: worker.own == {other})
            process.send_signal(signal.SIGKILL)
            process.wait()
            eventually(lambda: worker.own == {lane, other})


def test_retries_of_an_own_lane_come_back_to_the_bucket(broker: Broker, lanes: Lanes) -> None:
    producer = Producer(broker, lanes)
    seen: list[str] = []

    def fail_twice(message: Any) -> None:
        seen.append(message.queue)
        if len(seen) < 3:
            raise ValueError("not yet")

    consumer = Consumer(broker.url, lanes, retry=Retry(max_attempts=3, backoff=0.2, jitter=False))
    thread = threading.Thread(target=consumer.run, args=(fail_twice,))
    thread.start()
    try:
        eventually(lambda: consumer.state.ready)
        lane = producer.open_lane("a")
        eventually(lambda: len(seen) == 3)
        assert seen == [lane, lanes.bucket_of("a"), lanes.bucket_of("a")]
        eventually(lambda: consumer.stats()["acked"] == 3)
        assert consumer.stats()["dead_lettered"] == 0
    finally:
        consumer.stop()
        thread.join(30)
        broker.delete(f"{lanes.bucket_of('a')}.retry.200", f"{lanes.bucket_of('a')}.retry.400")


def test_apps_handle_all_lanes_alike(broker: Broker, lanes: Lanes) -> None:
    app, seen = App(broker.url), []

    @app.consumer(lanes)
    def handle(message: Any) -> None:
        seen.append(message.queue)

    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        eventually(lambda: app.state.ready)
        producer = Producer(broker, lanes)
        producer.fill(lanes.bucket_names[0], "x")
        lane = producer.open_lane("a")
        eventually(lambda: sorted(seen) == sorted([lane, lanes.bucket_names[0]]))
    finally:
        app.stop()
        thread.join(30)


def test_asyncio(broker: Broker, lanes: Lanes) -> None:
    lane = Producer(broker, lanes).open_lane("a", 2)
    seen: list[str] = []

    async def consume() -> None:
        async with aio.Consumer(broker.url, lanes) as consumer:
            async for message in consumer:
                with message:
                    seen.append(message.queue)
                if len(seen) == 2:
                    consumer.stop()

    asyncio.run(consume())
    assert seen == [lane, lane]


@contextlib.contextmanager
def without_permission(broker: Broker, lanes: Lanes) -> Iterator[str]:
    """Yield the URL of a user who may use the buckets, and nothing else."""
    url = broker.add_user("buckets", "secret")
    try:
        broker.permit("buckets", rf"^{lanes.name}\.bucket.*")  # type: ignore[attr-defined]
        yield url
    finally:
        broker.delete_user("buckets")  # type: ignore[attr-defined]


@pytest.mark.rabbitmq("users with permissions")
def test_without_permission_the_buckets_are_consumed(
    broker: Broker, lanes: Lanes, busy_beat: None, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(broker, lanes)
    with without_permission(broker, lanes) as url, Worker(url, lanes) as worker:
        text = f"are neither found nor given up until {lanes.registry} can be used"
        eventually(lambda: text in caplog.text)
        producer.fill(lanes.bucket_names[0], "a", 3)
        eventually(lambda: len(worker.handled) == 3)
        lane = producer.open_lane("a")
        broker.permit("buckets")  # type: ignore[attr-defined]
        eventually(lambda: worker.own == {lane}, 60)
        assert caplog.text.count(text) == 1
