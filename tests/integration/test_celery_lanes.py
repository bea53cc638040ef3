"""Lanes under a Celery worker: the tasks of a tenant do not wait for the flood of another, however long."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import celery
import kombu
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from support.frameworks import Jobs
from support.kombu_workers import TRANSPORTS
from support.proxy import Proxy, behind
from support.rabbitmq import Broker
from support.relaying import running
from support.waiting import eventually

from fairsched import Lanes
from fairsched.lanes.announcement import NEW, Announcement, encode
from fairsched.lanes.relay import Relay

_numbers = itertools.count()
QUIET = [f"quiet-{number}" for number in range(20)]


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(f"celery-lanes-{next(_numbers)}", key="header:tenant", buckets=4)


def jobs_of(broker: Broker, lanes: Lanes, done: Path, url: str = "") -> Jobs:
    """Return jobs of an app whose queue has lanes; a worker prefetches four for each process."""
    arguments = dict(lanes.arguments or {})
    named = {"name": lanes.name, "key": lanes.key, "buckets": lanes.buckets, "arguments": arguments}
    return Jobs("celery", url or broker.url, [lanes.name], done, {"lanes": named, "cost": "constant"}, 8)


def open_lanes(channel: BlockingChannel, lanes: Lanes, hot: Collection[str]) -> None:
    """Declare lanes, as who places messages does; and announce those of hot tenants."""
    channel.confirm_delivery()
    channel.exchange_declare(lanes.registry, durable=True)
    channel.queue_declare(lanes.registry, durable=True)
    channel.queue_bind(lanes.registry, lanes.registry, NEW)
    for name in lanes.bucket_names:
        channel.queue_declare(name, durable=True, arguments=lanes.queue(name).arguments)
    for tenant in hot:
        name = lanes.own_lane_of(tenant)
        channel.queue_declare(name, durable=True, arguments=lanes.queue(name).arguments)
        channel.basic_publish(lanes.registry, NEW, encode(Announcement(name, tenant)), mandatory=True)


def spread(broker: Broker, lanes: Lanes, hot: Collection[str] = ()) -> None:
    """Move what waits in the queue of lanes: of hot tenants to their own lanes, the rest to their buckets."""
    with broker.connect() as channel:
        open_lanes(channel, lanes, hot)
        while True:
            method, properties, body = channel.basic_get(lanes.name)
            if method is None:
                return
            tenant = properties.headers["tenant"]
            lane = lanes.own_lane_of(tenant) if tenant in hot else lanes.bucket_of(tenant)
            channel.basic_publish("", lane, body, properties, mandatory=True)
            channel.basic_ack(method.delivery_tag)


def send_to(broker: Broker, lane: str, tenant: str, names: Iterable[str], busy: float = 0, **options: object) -> None:
    """Send tasks as if they had been moved to a lane."""
    with celery.Celery(broker=broker.url) as app:
        app.conf.broker_transport_options = {"confirm_publish": True}
        for name in names:
            app.send_task(
                "work", (name, busy), queue=kombu.Queue(lane, no_declare=True), headers={"tenant": tenant}, **options
            )


def place_of_last_quiet(jobs: Jobs) -> int:
    """Return how many tasks had begun when the last task of a quiet tenant began."""
    return max(place for place, (name, _) in enumerate(jobs.begun()) if name != "flood")


def test_tasks_in_the_buckets_are_served_by_turns_of_tenants(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    tenants = [tenant for tenant in QUIET if lanes.bucket_of(tenant) != lanes.bucket_of("flood")]
    jobs.send(f"for _ in range(300): send({lanes.name!r}, 'flood', 0.01, 'flood')")
    jobs.send(f"for tenant in {tenants!r}: send({lanes.name!r}, tenant, 0.01, tenant)")
    spread(broker, lanes)
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 300 + len(tenants), 120)
    # Each bucket has a window of eight.
    assert place_of_last_quiet(jobs) < 100


def test_a_lane_of_a_hot_tenant_is_found_when_the_worker_starts(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    jobs.send(f"for _ in range(300): send({lanes.name!r}, 'flood', 0.01, 'flood')")
    jobs.send(f"for tenant in {QUIET!r}: send({lanes.name!r}, tenant, 0.01, tenant)")
    spread(broker, lanes, ["flood"])
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 300 + len(QUIET), 60)
    assert place_of_last_quiet(jobs) < 100


def test_a_lane_that_is_new_is_found_while_the_worker_runs(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    with jobs.worker():
        jobs.send(f"send({lanes.name!r}, 'first', 0, 'first')")
        eventually(lambda: len(jobs.begun()) == 1, 60)
        for tenant in "a", "b":
            lane = lanes.own_lane_of(tenant)
            with broker.connect() as channel:
                open_lanes(channel, lanes, [tenant])
            send_to(broker, lane, tenant, [f"{tenant}-{number}" for number in range(20)])
            eventually(lambda lane=lane: broker.left(lane) == 0, 10)
    assert Counter(name[0] for name, _ in jobs.begun()) == {"f": 1, "a": 20, "b": 20}


def test_a_relay_keeps_a_flood_from_quiet_tenants(
    broker: Broker, lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers, relay and worker, each as users run it: the tasks are published to one queue."""
    monkeypatch.setenv("TRANSPORT", TRANSPORTS["fairsched"])  # of the worker
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    jobs.send(f"for _ in range(1500): send({lanes.name!r}, 'flood', 0.01, 'flood')")
    relay = Relay(broker.url, lanes)
    with running(relay):
        eventually(lambda: relay.stats()["moved"] == 1500, 60)
        with jobs.worker():
            eventually(lambda: len(jobs.begun()) >= 50, 60)
            jobs.send(f"for tenant in {QUIET!r}: send({lanes.name!r}, tenant, 0.01, tenant)")
            sent = len(jobs.begun())
            eventually(lambda: len(jobs.begun()) == 1500 + len(QUIET), 60)
    assert sent < 1400
    assert place_of_last_quiet(jobs) < sent + 100
    eventually(lambda: not broker.left(lanes.name, *lanes.bucket_names, lanes.own_lane_of("flood")))


def names_of(jobs: Jobs) -> set[str]:
    return {name for name, _ in jobs.begun()}


def filled(broker: Broker, lanes: Lanes, count: int = 100) -> set[str]:
    """Put tasks of 10 ms into two buckets and an own lane; return their names."""
    with broker.connect() as channel:
        open_lanes(channel, lanes, ["flood"])
    expected = set()
    for lane in lanes.bucket_names[0], lanes.bucket_names[1], lanes.own_lane_of("flood"):
        names = [f"{lane}-{number}" for number in range(count)]
        send_to(broker, lane, lane, names, 0.01)
        expected |= set(names)
    return expected


def test_a_worker_that_is_killed_loses_no_task(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    expected = filled(broker, lanes)
    with jobs.worker() as worker:
        eventually(lambda: len(jobs.begun()) >= 60, 60)
        worker.kill()
        worker.wait()
    with jobs.worker():
        eventually(lambda: names_of(jobs) == expected, 60)
        eventually(lambda: not broker.left(*lanes.bucket_names, lanes.own_lane_of("flood")))


def test_a_lost_connection_loses_no_task_and_lanes_are_found_again(
    broker: Broker, lanes: Lanes, tmp_path: Path
) -> None:
    with Proxy(broker.port) as proxy:
        jobs = jobs_of(broker, lanes, tmp_path / "done", url=behind(proxy, broker.url))
        expected = filled(broker, lanes)
        with jobs.worker():
            eventually(lambda: len(jobs.begun()) >= 60, 60)
            proxy.cut()
            eventually(lambda: names_of(jobs) == expected, 60)
            with broker.connect() as channel:
                open_lanes(channel, lanes, ["late"])
            send_to(broker, lanes.own_lane_of("late"), "late", ["late"])
            eventually(lambda: "late" in names_of(jobs), 60)


def test_a_warm_shutdown_hands_back_what_has_not_begun(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    expected = filled(broker, lanes)
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) >= 60, 60)
    begun = jobs.begun()
    assert len(begun) == len(names_of(jobs)) < len(expected)
    left = len(expected) - len(begun)
    # None is lost; and no more are repeated than the two processes had in hand, since tasks acknowledge late.
    eventually(lambda: left <= broker.left(*lanes.bucket_names, lanes.own_lane_of("flood")) <= left + 2)


def test_lanes_are_consumed_as_long_as_their_queue(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    control = celery.Celery(broker=broker.url).control
    with broker.connect() as channel:
        open_lanes(channel, lanes, ["flood"])
    places, channels = [lanes.bucket_names[3], lanes.own_lane_of("flood")], []

    def tell(command: Any) -> None:
        # Not a connection of the pool: another test may have had the broker close those.
        with celery.Celery(broker=broker.url).connection_for_write() as connection:
            [answer] = command(lanes.name, reply=True, limit=1, timeout=60, connection=connection)
        assert "ok" in next(iter(answer.values()))

    def active() -> list[Any]:
        with celery.Celery(broker=broker.url).connection_for_write() as connection:
            [queues] = control.inspect(limit=1, timeout=60, connection=connection).active_queues().values()
        return list(queues)

    with jobs.worker():
        for turn in range(2):
            for lane in places:
                send_to(broker, lane, "flood", [f"{lane}-{turn}"])
            eventually(lambda turn=turn: len(jobs.begun()) == 4 * turn + 2, 60)
            tell(control.cancel_consumer)
            # Celery answers before it has cancelled anything, and lists a queue until the broker has confirmed its end.
            eventually(lambda: not active(), 60)
            for lane in places:
                send_to(broker, lane, "flood", [f"{lane}-{turn}-later"])
            assert not active()
            assert [broker.count(lane) for lane in places] == [1, 1]
            tell(control.add_consumer)
            eventually(lambda turn=turn: len(jobs.begun()) == 4 * turn + 4, 60)
            channels.append(broker.channels())
    # One for each queue, and not one more each time.
    assert channels[0] == channels[1]


def test_a_retry_goes_where_its_producer_published_the_task(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    """Its lane may be gone by then."""
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    with broker.connect() as channel:
        open_lanes(channel, lanes, ["acme"])
    lane = kombu.Queue(lanes.own_lane_of("acme"), no_declare=True)
    with jobs.worker():
        celery.Celery(broker=broker.url).send_task("again", queue=lane, headers={"tenant": "acme"})
        eventually(lambda: len(jobs.begun()) == 2, 60)
    assert [name for name, _ in jobs.begun()] == [f"0:acme:{lanes.name}", f"1:acme:{lanes.name}"]


def test_lanes_of_quorum_queues_are_consumed_and_tasks_wait_for_their_time(broker: Broker, tmp_path: Path) -> None:
    lanes = Lanes(
        f"celery-quorum-{next(_numbers)}", key="header:tenant", buckets=2, arguments={"x-queue-type": "quorum"}
    )
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    with broker.connect() as channel:
        open_lanes(channel, lanes, ["acme"])
    with jobs.worker():
        for lane in (*lanes.bucket_names, lanes.own_lane_of("acme")):
            send_to(broker, lane, "acme", [f"{lane}-later"], countdown=1)
            send_to(broker, lane, "acme", [f"{lane}-{number}" for number in range(20)])
        eventually(lambda: len(jobs.begun()) == 63, 60)
    assert not broker.left(*lanes.bucket_names, lanes.own_lane_of("acme"))


def test_an_idle_lane_is_given_up_but_not_while_a_task_of_it_runs(
    broker: Broker, lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE", "2")
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    lane = lanes.own_lane_of("acme")
    with jobs.worker():
        for name in "first", "second":
            with broker.connect() as channel:
                open_lanes(channel, lanes, ["acme"])
            send_to(broker, lane, "acme", [name], 7)
            eventually(lambda name=name: name in names_of(jobs), 60)
            # It has run for several times as long as a lane is idle.
            assert lane in broker.messages()
            eventually(lambda: lane not in broker.messages(), 60)
    assert [name for name, _ in jobs.begun()] == ["first", "second"]
