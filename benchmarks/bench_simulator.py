"""The simulator: events a second, and beside SimPy on the same M/M/1 scenario."""

from __future__ import annotations

import random
from typing import Any

import pytest
import simpy
from interleave import medians, record

from fairsched.simulator import Arrivals, Broker, ConsumerSpec, Queue, Scenario, Service, load_scenario, simulate

LOAD = 0.8


def textbook(customers: int) -> Scenario:
    """M/M/1 with a mean service of a second."""
    return Scenario(
        queues=[Queue("q", arrivals=Arrivals.poisson(LOAD))],
        consumers=[ConsumerSpec(prefetch=0, service=Service.exponential(1.0))],
        messages=customers,
        seed=1,
    )


def by_simpy(customers: int) -> float:
    """The same as SimPy's own examples write it: a process for each customer, a resource; mean wait."""
    environment = simpy.Environment()
    server = simpy.Resource(environment, capacity=1)
    chance = random.Random(1)
    waits: list[float] = []

    def customer() -> Any:
        came = environment.now
        with server.request() as request:
            yield request
            waits.append(environment.now - came)
            yield environment.timeout(chance.expovariate(1.0))

    def source() -> Any:
        for _ in range(customers):
            yield environment.timeout(chance.expovariate(LOAD))
            environment.process(customer())

    environment.process(source())
    environment.run()
    return sum(waits) / customers


def test_beside_simpy(benchmark: Any) -> None:
    """M/M/1 at 80 %: a customer arrives, is sent, received, handled and acknowledged; SimPy has no acknowledgement."""
    many, few = 500_000, 10_000
    scenario = textbook(many)
    found = simulate(scenario)
    assert found.queues[0].wait.mean == pytest.approx(LOAD / (1 - LOAD), rel=0.1)
    assert by_simpy(100_000) == pytest.approx(LOAD / (1 - LOAD), rel=0.2)
    took = medians(11, fairsched=lambda: simulate(scenario), simpy=lambda: by_simpy(few))
    cost = {"fairsched": took["fairsched"] / many, "simpy": took["simpy"] / few}
    events = found.events / took["fairsched"]
    record(
        benchmark,
        {
            "SimPy : simulator, M/M/1, a customer": (cost["simpy"] / cost["fairsched"], ">=", 50),
            "events a second, M/M/1 : 2 million": (events / 2e6, ">=", 1),
        },
        events_per_second=events,
        **{f"{name}_ns": seconds * 1e9 for name, seconds in cost.items()},
    )
    benchmark.pedantic(lambda: simulate(scenario), rounds=5)


def cluster(consumers: int, queues: int) -> Scenario:
    """Several consumers of several backlogged queues, 5 ms away, with hold and CoDel."""
    return Scenario(
        brokers=[Broker(delay=0.005)],
        queues=[Queue(f"q{index}", quantum=index % 10 + 1) for index in range(queues)],
        consumers=[
            ConsumerSpec(
                prefetch=50,
                service=Service.exponential(0.001),
                workers=4,
                hold=True,
                codel={"target": "50ms", "interval": "100ms"},  # type: ignore[arg-type]
                count=consumers,
            )
        ],
        messages=1_000_000,
    )


@pytest.mark.parametrize(("consumers", "queues"), [(1, 1), (4, 10), (100, 100)])
def test_events_a_second(benchmark: Any, consumers: int, queues: int) -> None:
    """Delays on the links, hold, CoDel: from one consumer of one queue to a hundred of a hundred."""
    scenario = cluster(consumers, queues)
    events = simulate(scenario).events
    took = medians(3, run=lambda: simulate(scenario))["run"]
    record(
        benchmark,
        {f"events a second, {consumers} consumers × {queues} queues : 2 million": (events / took / 2e6, ">=", 1)},
        events_per_second=events / took,
    )
    benchmark.pedantic(lambda: simulate(scenario), rounds=1)


def test_a_limited_broker(benchmark: Any) -> None:
    """The broker as the bottleneck, with anticipation: every push is an event, and waits are."""
    scenario = load_scenario("anticipation").replaced({"duration": "3s"})
    events = simulate(scenario).events
    took = medians(5, run=lambda: simulate(scenario))["run"]
    record(
        benchmark,
        {"events a second, limited broker : 2 million": (events / took / 2e6, ">=", 1)},
        events_per_second=events / took,
    )
    benchmark.pedantic(lambda: simulate(scenario), rounds=3)
