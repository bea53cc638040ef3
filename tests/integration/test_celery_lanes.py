"""Lanes under a Celery worker: the tasks of a tenant do not wait for the flood of another, however long."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pika
import pytest
from support.frameworks import Jobs
from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import Lanes

_numbers = itertools.count()
QUIET = [f"quiet-{number}" for number in range(20)]


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(f"celery-lanes-{next(_numbers)}", key="header:tenant", buckets=4)


def jobs_of(broker: Broker, lanes: Lanes, done: Path, **shares: Any) -> Jobs:
    """Return jobs of an app whose queue has lanes; a worker prefetches four for each process."""
    named = {"name": lanes.name, "key": lanes.key, "buckets": lanes.buckets, "arguments": lanes.arguments}
    return Jobs("celery", broker.url, [lanes.name], done, {"lanes": named, "cost": "constant", **shares}, 8)


def spread(broker: Broker, lanes: Lanes, hot: Iterable[str] = ()) -> None:
    """Move what waits in the queue of lanes: of hot tenants to their own lanes, the rest to their buckets."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in (*lanes.bucket_names, *map(lanes.own_lane_of, hot)):
            queue = lanes.queue(name)
            channel.queue_declare(name, durable=True, arguments=dict(queue.arguments or {}))
        while True:
            method, properties, body = channel.basic_get(lanes.name)
            if method is None:
                return
            tenant = properties.headers["tenant"]
            lane = lanes.own_lane_of(tenant) if tenant in hot else lanes.bucket_of(tenant)
            channel.basic_publish("", lane, body, properties, mandatory=True)
            channel.basic_ack(method.delivery_tag)


def test_tasks_in_the_buckets_are_served_by_turns_of_tenants(broker: Broker, lanes: Lanes, tmp_path: Path) -> None:
    jobs = jobs_of(broker, lanes, tmp_path / "done")
    tenants = [tenant for tenant in QUIET if lanes.bucket_of(tenant) != lanes.bucket_of("flood")]
    jobs.send(f"for _ in range(300): send({lanes.name!r}, 'flood', 0.01, 'flood')")
    jobs.send(f"for tenant in {tenants!r}: send({lanes.name!r}, tenant, 0.01, tenant)")
    spread(broker, lanes)
    with jobs.worker():
        eventually(lambda: len(jobs.begun()) == 300 + len(tenants), 120)
    order = [name for name, _ in jobs.begun()]
    # Each bucket has a window of eight.
    assert max(place for place, name in enumerate(order) if name != "flood") < 100
