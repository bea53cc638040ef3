"""An asyncio publisher or consumer belongs to one event loop: its use in another one, and before it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fairsched import Broker, aio
from fairsched.cli.broker import Session

ANOTHER = "belongs to the event loop in which it was opened, and this is another one"


@pytest.fixture
def url() -> Iterator[str]:
    with Broker() as broker:
        with Session(broker.url) as session:
            session.declare("q", {})
        yield broker.url


def refused(call: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match=ANOTHER):
                await call()

    asyncio.run(main())


def test_a_publisher_in_another_loop(url: str) -> None:
    publisher = aio.Publisher(url, confirm_window=1)

    async def first() -> None:
        await publisher.open()
        await publisher.publish(b"1", "q")
        await publisher.flush()

    with asyncio.Runner() as own:
        own.run(first())
        for call in (publisher.close, publisher.flush, publisher.open, lambda: publisher.publish(b"2", "q")):
            refused(call)
        assert publisher.stats()["published"] == 1
        own.run(publisher.close())


def test_a_publisher_that_was_never_opened(url: str) -> None:
    publisher = aio.Publisher(url)
    asyncio.run(publisher.close())
    asyncio.run(publisher.close())
    with pytest.raises(RuntimeError, match="create another"):
        asyncio.run(publisher.publish(b"1", "q"))


def test_a_consumer_in_another_loop(url: str) -> None:
    consumer = aio.Consumer(url, ["q"])
    with asyncio.Runner() as own:
        own.run(consumer.__aenter__())
        refused(consumer.get)
        refused(lambda: consumer.run(print))
        refused(lambda: consumer.__aiter__().__anext__())
        refused(lambda: consumer.__aexit__(None, None, None))
        own.run(consumer.__aexit__(None, None, None))
