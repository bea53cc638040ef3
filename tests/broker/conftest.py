"""A broker for each test, and pika connections to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pika
import pytest

import fairsched


@pytest.fixture
def broker() -> Iterator[fairsched.Broker]:
    with fairsched.Broker() as started:
        yield started


@pytest.fixture
def connect(broker: fairsched.Broker) -> Iterator[Callable[..., pika.BlockingConnection]]:
    opened = []

    def open_connection(**parameters) -> pika.BlockingConnection:
        wanted = pika.URLParameters(broker.url)
        for name, value in parameters.items():
            setattr(wanted, name, value)
        opened.append(pika.BlockingConnection(wanted))
        return opened[-1]

    yield open_connection
    for connection in opened:
        if connection.is_open:
            # The broker may have closed it meanwhile.
            with suppress(pika.exceptions.AMQPError):
                connection.close()


@pytest.fixture
def channel(connect):
    return connect().channel()
