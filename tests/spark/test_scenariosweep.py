"""Sweeps: a row for each scenario, the same for any number of partitions, and the simulator's own figures in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairsched.simulator import Arrivals, Broker, ConsumerSpec, Queue, Scenario, simulate
from fairsched.spark.scenariosweep import sweep

BASE = Scenario(
    brokers=[Broker(delay="50ms")],
    queues=[Queue("gold", quantum=3, arrivals=Arrivals.poisson(400)), Queue("free", arrivals=Arrivals.poisson(200))],
    consumers=[ConsumerSpec(prefetch=10, service="2ms")],
    duration="20s",
    seed=2**64 - 1,
)
GRID = [BASE.replaced({"consumers.*.prefetch": size, "name": f"p{size}"}) for size in range(1, 33)]


def test_rows_do_not_depend_on_the_partitions(spark: Any) -> None:
    one, four = (sweep(spark, GRID, num_partitions=count).orderBy("scenario").collect() for count in (1, 4))
    assert one == four
    assert [row.scenario for row in one] == list(range(32))
    assert [row.name for row in one] == [scenario.name for scenario in GRID]


def test_a_row_has_what_the_simulator_found(spark: Any) -> None:
    (row,) = sweep(spark, [BASE]).collect()
    found = simulate(BASE)
    assert (row.seed, row.seconds, row.served, row.jain) == (2**64 - 1, found.seconds, found.served, found.jain)
    assert row.throughput == found.throughput
    assert row.utilisation == pytest.approx(found.consumers[0].utilisation)
    assert row.shares == {queue.name: queue.share for queue in found.queues}
    assert row.errors == {queue.name: queue.error for queue in found.queues}
    assert json.loads(row.result) == json.loads(json.dumps(found.to_dict(timeline=False)))
    assert found.queue("gold").wait.least <= row.wait_p50 <= row.wait_p99


def test_nothing_handled_has_no_percentiles(spark: Any) -> None:
    (row,) = sweep(spark, [BASE.replaced({"duration": "10ms"})]).collect()
    assert (row.served, row.wait_p50, row.total_p99, row.utilisation) == (0, None, None, 0.0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([],), ValueError, "one or more, got none"),
        ((["p1"],), TypeError, "got 'p1'"),
        (([BASE], simulate, 0), ValueError, "num_partitions must be a positive integer, got 0"),
    ],
)
def test_bad_arguments_are_refused(spark: Any, arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sweep(spark, *arguments)
