"""Queues, targets, sessions, connections and I/O threads together: once each, in turn, and no stall."""

from __future__ import annotations

from typing import Any

import pytest
from support.threads import result_of, start
from support.waiting import reach

from fairsched import _probe_wire

pytestmark = pytest.mark.stress


def finish(wire: Any, connections: int, inside: list[Any]) -> None:
    """Close everything, and see that nothing is left behind."""
    for connection in range(connections):
        wire.close(connection)

    def disposed() -> bool:
        wire.flush()
        return bool(wire.disposed == connections)

    reach(disposed)
    assert wire.consumers == 0
    wire.stop()
    for thread in inside:
        result_of(thread)
    assert wire.valid


@pytest.mark.parametrize("io_threads", [2, 4])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4, 2, 1), (5, 3, 4, 3)])
def test_each_message_once(shape: tuple[int, int, int, int], io_threads: int) -> None:
    """Producers put while others give one delivery in seven back; between the waves all comes to rest."""
    waves, producers, each = 5, 3, 5_000
    wire = _probe_wire.ProbeWire(*shape, waves * producers * each, releases=7)
    inside = [start(wire.run) for _ in range(io_threads)]
    for wave in range(1, waves + 1):
        for thread in [start(lambda seed=seed: wire.produce(seed, each)) for seed in range(producers)]:
            result_of(thread)
        reach(lambda wave=wave: wire.done == wave * producers * each, "every message is taken")
    assert wire.once
    assert wire.left == 0
    finish(wire, shape[1], inside)


def test_slow_transports_hand_over() -> None:
    """Connections share queues, and their transports stop and go: what one cannot take now another does."""
    total = 60_000
    wire = _probe_wire.ProbeWire(3, 4, 2, 2, total, message_size=2_000)
    for connection in range(4):
        wire.stall(connection)
    inside = [start(wire.run) for _ in range(2)]
    network = start(lambda: wire.throttle(1, 400_000))
    for thread in [start(lambda seed=seed: wire.produce(seed, total // 3)) for seed in range(3)]:
        result_of(thread)
    reach(lambda: wire.done == total, "every message is taken")
    result_of(network)
    assert wire.once
    finish(wire, 4, inside)


@pytest.mark.parametrize("io_threads", [2, 4])
def test_busy_targets_are_served_strictly_in_turn(io_threads: int) -> None:
    """Three connections of four targets, each with a queue of its own that is full from the beginning."""
    connections, targets, each = 3, 4, 3_000
    count = connections * targets
    wire = _probe_wire.ProbeWire(count, connections, targets, 1, count * each, logs=True)
    for target in range(count):
        wire.produce(target, each, target)
    inside = [start(wire.run) for _ in range(io_threads)]
    reach(lambda: wire.done == count * each)
    assert wire.once
    finish(wire, connections, inside)
    for connection in range(connections):
        first = connection * targets
        assert wire.log(connection) == [first + at % targets for at in range(targets * each)]


def test_connections_close_in_the_midst_of_it() -> None:
    """Those that stay take what the others leave."""
    total = 40_000
    wire = _probe_wire.ProbeWire(3, 5, 2, 2, total)
    inside = [start(wire.run) for _ in range(3)]
    producing = [start(lambda seed=seed: wire.produce(seed, total // 2)) for seed in range(2)]
    for connection in range(4):
        reach(lambda connection=connection: wire.done > connection * total // 8)
        wire.close(connection)
    for thread in producing:
        result_of(thread)
    reach(lambda: wire.done == total, "every message is taken")
    assert wire.once
    finish(wire, 5, inside)


def test_a_message_put_while_a_consumer_becomes_interested_is_announced() -> None:
    """Either the put finds the consumer, or the consumer finds the message; each has looked after it was visible."""
    race = _probe_wire.ProbeRace()
    rounds = 40_000
    producing = start(lambda: race.produce(rounds, 1))
    assert race.consume(rounds, 2) == 0
    result_of(producing)
