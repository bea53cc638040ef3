"""Random sessions that RabbitMQ and the embedded broker must answer alike; `make differences` runs many more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.differences.comparison import Pair
from support.differences.generator import generate
from support.rabbitmq import Broker, Node

import fairsched


@pytest.fixture(scope="module")
def pair(hashing_broker: Broker) -> Iterator[Pair]:
    assert isinstance(hashing_broker, Node)
    with fairsched.Broker() as embedded:
        made = Pair(hashing_broker, embedded.port)
        yield made
        made.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_random_session(pair: Pair, seed: int) -> None:
    pair.agree(generate(seed))
