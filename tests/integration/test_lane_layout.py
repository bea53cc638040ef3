"""Programs that use the same lanes with other buckets, key or order: the second one is refused at its start."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from support.frameworks import Jobs
from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Lanes, Publisher, aio
from fairsched.lanes import membership, registry
from fairsched.lanes.layout import layout_request
from fairsched.lanes.relay import Relay

_numbers = itertools.count()


@pytest.fixture
def name(broker: Broker) -> Iterator[str]:
    """The name of lanes, which are deleted at the end."""
    found = f"layout-{next(_numbers)}"
    yield found
    lanes = Lanes(found, key="header:tenant", buckets=4)
    broker.delete(*lanes.bucket_names, lanes.registry, found)
    with broker.connect() as channel:
        for exchange in lanes.layout, lanes.registry:
            channel.exchange_delete(exchange)


def publish(url: str, lanes: Lanes) -> None:
    with Publisher(url, lanes=lanes) as publisher:
        publisher.publish(b"x", lanes.name, headers={"tenant": "a"})


def publish_by_asyncio(url: str, lanes: Lanes) -> None:
    async def run() -> None:
        async with aio.Publisher(url, lanes=lanes) as publisher:
            await publisher.publish(b"x", lanes.name, headers={"tenant": "a"})

    asyncio.run(run())


def consume(url: str, lanes: Lanes) -> None:
    with Consumer(url, lanes):
        pass


def consume_by_asyncio(url: str, lanes: Lanes) -> None:
    async def run() -> None:
        async with aio.Consumer(url, lanes):
            pass

    asyncio.run(run())


def spread(url: str, lanes: Lanes) -> None:
    moving = Relay(url, lanes)
    moving.stop()
    moving.run()


PROGRAMS = [publish, publish_by_asyncio, consume, consume_by_asyncio, spread]
OTHERS: list[dict[str, Any]] = [{"buckets": 4}, {"key": "property:app_id"}, {"ordered": True}]


@pytest.mark.parametrize("second", PROGRAMS)
@pytest.mark.parametrize("first", [publish, consume])
def test_the_second_program_is_refused(
    broker: Broker, name: str, first: Callable[..., None], second: Callable[..., None]
) -> None:
    broker.declare(name)  # for the relay
    lanes = Lanes(name, key="header:tenant", buckets=2)
    first(broker.url, lanes)
    second(broker.url, lanes)
    for other in OTHERS:
        options = {"key": "header:tenant", "buckets": 2, **other}
        with pytest.raises(ConfigurationError) as refused:
            second(broker.url, Lanes(name, **options))
        text = str(refused.value)
        ordered = options.get("ordered", False)
        assert f"have buckets={options['buckets']}, key={options['key']!r}, ordered={ordered} here" in text
        assert "other programs use them with buckets=2, key='header:tenant', ordered=False" in text


def test_a_celery_worker_is_refused(broker: Broker, name: str, tmp_path: Path) -> None:
    publish(broker.url, Lanes(name, key="header:tenant", buckets=2))
    others = {"name": name, "key": "header:tenant", "buckets": 4, "arguments": {}}
    jobs = Jobs("celery", broker.url, [name], tmp_path / "done", {"lanes": others, "cost": "constant"}, 8)
    with jobs.worker() as process:
        assert process.wait(30) != 0
    assert "have buckets=4, key='header:tenant', ordered=False here" in jobs.log()


def test_after_the_exchange_is_deleted_all_may_change(broker: Broker, name: str) -> None:
    before, after = (Lanes(name, key="header:tenant", buckets=number) for number in (2, 4))
    publish(broker.url, before)
    with pytest.raises(ConfigurationError):
        consume(broker.url, after)
    with broker.connect() as channel:
        channel.exchange_delete(before.layout)
    consume(broker.url, after)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_worker_says_so_if_the_others_change_while_it_runs(
    broker: Broker, name: str, ordered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.2)
    monkeypatch.setattr(membership, "COMPARISON", 0.2)
    before, after = (Lanes(name, key="header:tenant", buckets=number, ordered=ordered) for number in (2, 4))

    def replaced() -> bool:
        """Whether the others were sooner than the worker, which declares its layout again when it finds none."""
        with broker.connect() as channel:
            channel.exchange_delete(before.layout)
            try:
                channel.exchange_declare(**layout_request(after))
            except pika.exceptions.ChannelClosedByBroker:
                return False
        return True

    with caplog.at_level(logging.ERROR, "fairsched"), Consumer(broker.url, before) as consumer:
        eventually(replaced)
        eventually(lambda: "with buckets=4" in caplog.text and "consuming anyway" in caplog.text)
        assert consumer.state.ready


def test_a_publisher_says_so_after_its_connection_was_lost(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = (Lanes(name, key="header:tenant", buckets=number) for number in (2, 4))
    with caplog.at_level(logging.ERROR, "fairsched"), Publisher(broker.url, lanes=before) as publisher:
        with broker.connect() as channel:
            channel.exchange_delete(before.layout)
            channel.exchange_declare(**layout_request(after))
        broker.close_connections()
        eventually(lambda: "with buckets=4" in caplog.text and "publishing anyway" in caplog.text)
        publisher.publish(b"x", name, headers={"tenant": "a"}).result(30)


@pytest.mark.rabbitmq("users with permissions")
def test_without_permission_nothing_is_compared(broker: Broker, name: str) -> None:
    before, after = (Lanes(name, key="header:tenant", buckets=number) for number in (2, 4))
    publish(broker.url, before)
    user = f"{name}-user"
    url = broker.add_user(user, "secret")
    broker.permit(user, ".*bucket.*")  # type: ignore[attr-defined]
    try:
        publish(url, after)
        with Consumer(url, after) as consumer:
            message = consumer.get(10)
            assert message.body == b"x"
            message.ack()
    finally:
        broker.delete_user(user)  # type: ignore[attr-defined]
