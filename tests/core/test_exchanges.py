"""Exchanges of the broker: the compiled ones against the oracle, which was held against RabbitMQ."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fairsched._probe_exchanges import ProbeTopology, Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exchanges import Broker
from oracles.exchanges import Refused as OracleRefused
from support.topologies import EXCHANGES, QUEUES, Change, Message, some_change, some_message


class Pair:
    """A compiled topology and the oracle, changed together."""

    def __init__(self) -> None:
        self.probe, self.oracle = ProbeTopology(), Broker()
        self.bindings: list[tuple[Any, ...]] = []

    @property
    def kinds(self) -> dict[bytes, bytes]:
        return {name: exchange.kind for name, exchange in self.oracle.exchanges.items()}

    def both(self, expected: Any, happened: Any) -> Any:
        """Do it on both, and compare what is answered or refused."""
        code = None
        try:
            wanted = expected()
        except OracleRefused as error:
            code = error.args[0]
        if code is None:
            return wanted, happened()
        with pytest.raises(Refused) as refused:
            happened()
        assert refused.value.args[0] == code
        return None

    def change(self, change: Change) -> None:
        what, arguments, options = change
        if what == "add_queue" and arguments[0] in self.oracle.queues:
            return
        if what == "remove_queue" and arguments[0] not in self.oracle.queues:
            return
        coded, coded_options = change.coded
        if change.binds:
            self.bindings.append(arguments)
        oracle, probe = getattr(self.oracle, what), getattr(self.probe, what)
        self.both(lambda: oracle(*arguments, **options), lambda: probe(*coded, **coded_options))

    def publish(self, message: Message) -> None:
        both = self.both(
            lambda: self.oracle.publish(*message),
            lambda: self.probe.publish(message.exchange, message.key, message.content_header),
        )
        if both is not None:
            queues, (found, bcc) = both
            assert len(found) == len(set(found))
            assert set(found) == queues
            assert bcc == any(name == b"BCC" for name, *_ in message.headers or [])

    def compare(self) -> None:
        """That both know the same exchanges and bindings."""
        expected = {(name, x.kind, x.durable, x.auto_delete, x.internal) for name, x in self.oracle.exchanges.items()}
        assert {item[:5] for item in self.probe.exchanges} == expected
        bound = [(source, name, to_exchange, key) for source, name, to_exchange, key, *_ in self.probe.bindings]
        assert sorted(bound) == sorted(
            (binding.source, binding.destination[1], binding.destination[0] == "exchange", binding.key)
            for binding in self.oracle.bindings
        )

    def end(self) -> None:
        """Remove all that can be removed, and see that nothing is left."""
        for name in EXCHANGES:
            self.change(Change("delete", (name,), {}))
        for name in QUEUES:
            self.change(Change("remove_queue", (name,), {}))
        for binding in self.oracle.bindings[:]:  # between exchanges that are there for ever
            self.change(Change("unbind", (binding.source, binding.destination, binding.key, binding.arguments), {}))
        self.compare()
        assert self.probe.nodes == 0


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_routes_as_the_oracle(source: random.Random, changes: int) -> None:
    pair = Pair()
    for _ in range(changes):
        pair.change(some_change(source, pair.kinds, pair.bindings))
        pair.publish(some_message(source))
    pair.compare()
    pair.end()


@pytest.mark.parametrize("seed", range(10))
def test_routes_as_the_oracle_for_long(seed: int) -> None:
    source = random.Random(seed)
    pair = Pair()
    for _ in range(300):
        pair.change(some_change(source, pair.kinds, pair.bindings))
        for _ in range(3):
            pair.publish(some_message(source))
    pair.compare()
    pair.end()
