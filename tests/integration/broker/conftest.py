"""The two brokers that must answer alike, and clients of theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pamqp.commands import Exchange, Queue
from support.wireclient import Dial, Name, Server, WireChannel, WireClient

import fairsched

_numbers = itertools.count()


@pytest.fixture(scope="session")
def rabbitmq(request: pytest.FixtureRequest) -> Server:
    return Server("rabbitmq", request.getfixturevalue("broker").url)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Server]:
    """In this process, where `make coverage` traces it, and not for longer: other tests count the threads of theirs."""
    with fairsched.Broker() as broker:
        yield Server("embedded", broker.url)


@pytest.fixture(scope="module", params=["rabbitmq", "embedded"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two brokers."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def name(request: pytest.FixtureRequest, server: Server) -> Iterator[Name]:
    """Makes names that no other test uses; queues and exchanges of these names are deleted afterwards."""
    made: list[str] = []

    def make() -> str:
        made.append(f"{request.function.__name__.removeprefix('test_')[:60]}-{next(_numbers)}")
        return made[-1]

    yield make
    if made:
        with WireClient(server.port) as client:
            channel = client.open().channel()
            for one in made:
                channel.cast(Queue.Delete(queue=one, nowait=True))
                channel.cast(Exchange.Delete(exchange=one, nowait=True))


@pytest.fixture
def dial(name: Name, server: Server) -> Iterator[Dial]:
    """Makes connections that are not open yet, and ends them before `name` cleans up."""
    made: list[WireClient] = []

    def connect() -> WireClient:
        made.append(WireClient(server.port))
        return made[-1]

    yield connect
    for one in made:
        with suppress(OSError):
            one.abort()


@pytest.fixture
def client(dial: Dial) -> WireClient:
    """An open connection."""
    return dial().open()


@pytest.fixture
def channel(client: WireClient) -> WireChannel:
    """An open channel."""
    return client.channel()


@pytest.fixture
def other(dial: Dial) -> WireChannel:
    """A channel of another connection."""
    return dial().open().channel()


@pytest.fixture
def queue(channel: WireChannel, name: Name) -> str:
    """A queue that any connection may use."""
    return channel.declare(name())
