"""Fixtures for tests against a real broker."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.rabbitmq import Broker, Node, make_broker

from fairsched.consumer.settings import ConsumerSettings

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not on_embedded_only(item):
            item.add_marker(pytest.mark.integration)


def on_embedded_only(item: pytest.Item) -> bool:
    """Return whether a test asks only the embedded broker, which needs no server."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("server") == "embedded"


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Have Ctrl-C raise KeyboardInterrupt: a Spark that this process had before has it cancel jobs first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=[True, False], ids=["fast", "pika"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compiled code read the deliveries of consumers, then pika: for tests that depend on it."""
    monkeypatch.setattr(ConsumerSettings, "fast", request.param)


@pytest.fixture(scope="module")
def hashing_broker() -> Iterator[Broker]:
    """A RabbitMQ with the plugin, or the embedded broker."""
    node = make_broker()
    if isinstance(node, Node):
        (node.home / "plugins").write_text("[rabbitmq_consistent_hash_exchange].\n")
    with node:
        yield node


@pytest.fixture
def new_queue(broker: Node) -> Callable[..., str]:
    """Declares queues that no other test uses."""

    def declare(prefix: str = "q", **options: object) -> str:
        name = f"{prefix}-{next(_numbers)}"
        broker.declare(name, **options)
        return name

    return declare
