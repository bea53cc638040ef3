"""Against the textbook: M/M/1, M/M/c, M/G/1; and the same seed tells the same story."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from fairsched.simulator import Arrivals, ConsumerSpec, Queue, Scenario, Service, simulate


def textbook(load: float, service: Service, workers: int = 1, seed: int = 0, duration: float = 20_000) -> Scenario:
    """No delay, no limit: the consumer's buffer is the queue. Mean service is a second."""
    return Scenario(
        queues=[Queue("jobs", arrivals=Arrivals.poisson(load * workers))],
        consumers=[ConsumerSpec(name="server", prefetch=0, service=service, workers=workers)],
        warmup=1000.0,
        duration=1000.0 + duration,
        seed=seed,
    )


def confidence(values: list[float]) -> tuple[float, float]:
    """Mean of independent runs, and half the width of its interval of 99.9 % (Student, 19 degrees of freedom)."""
    assert len(values) == 20
    return statistics.fmean(values), 3.883 * statistics.stdev(values) / math.sqrt(20)


def erlang_c(workers: int, offered: float) -> float:
    terms = [offered**k / math.factorial(k) for k in range(workers)]
    last = offered**workers / math.factorial(workers) / (1 - offered / workers)
    return last / (sum(terms) + last)


#: Service, workers, load, and the mean wait (Pollaczek and Khinchine; Erlang).
CASES = [
    pytest.param(Service.exponential(1.0), 1, 0.8, 0.8 / 0.2, id="M/M/1"),
    pytest.param(Service.constant(1.0), 1, 0.8, 0.8 / 0.2 / 2, id="M/D/1"),
    pytest.param(Service.uniform(0.0, 2.0), 1, 0.7, 0.7 / 0.3 * (1 + 1 / 3) / 2, id="M/U/1"),
    pytest.param(Service.lognormal(1.0, 0.5), 1, 0.7, 0.7 / 0.3 * 1.25 / 2, id="M/LN/1"),
    pytest.param(Service.exponential(1.0), 4, 0.8, erlang_c(4, 3.2) / (4 * 0.2), id="M/M/4"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("service", "workers", "load", "expected"), CASES)
def test_the_mean_wait_of_the_textbook(service: Service, workers: int, load: float, expected: float) -> None:
    runs = [simulate(textbook(load, service, workers, seed)) for seed in range(20)]
    mean, half = confidence([run.consumers[0].wait.mean for run in runs])
    assert mean - half <= expected <= mean + half
    assert half < 0.2 * expected  # the interval says something
    busy, around = confidence([run.consumers[0].utilisation for run in runs])
    assert busy - around <= load <= busy + around


@pytest.mark.slow
def test_little_s_law_and_the_distribution_of_m_m_1() -> None:
    """The time in the system is exponential with mean 1 / (1 - load): its percentiles are known."""
    found = simulate(textbook(0.5, Service.exponential(1.0), duration=400_000))
    total = found.queues[0].total
    assert not total.exact
    for percent in (50, 90, 99):
        assert total.percentile(percent) == pytest.approx(-2 * math.log(1 - percent / 100), rel=0.03)
    in_system = found.timeline.depth.sum(axis=1) + found.timeline.buffered.sum(axis=1)
    assert np.mean(in_system) == pytest.approx(0.5, abs=0.25)  # without those at work; 200 looks


def test_the_same_seed_tells_the_same_story() -> None:
    scenario = textbook(0.9, Service.lognormal(1.0, 2.0), workers=3, duration=3000).replaced({"histories": 5000})
    first, again, other = simulate(scenario), simulate(scenario), simulate(scenario.replaced({"seed": 1}))
    assert first.to_dict() == again.to_dict()
    assert (first.histories == again.histories).all()
    assert first.slots == again.slots
    assert not (first.histories[:100] == other.histories[:100]).all()


def test_no_source_of_chance_disturbs_another() -> None:
    """A queue that joins the scenario changes no other's arrivals, whatever the order of the queues."""
    alone = Scenario(
        queues=[Queue("a", arrivals=Arrivals.poisson(5))],
        consumers=[ConsumerSpec(name="one", queues=["a"], service=Service.exponential(0.1))],
        duration=100.0,
        histories=1000,
    )
    beside = Scenario(
        queues=[Queue("b", arrivals=Arrivals.poisson(50)), Queue("a", arrivals=Arrivals.poisson(5))],
        consumers=[
            ConsumerSpec(name="two", queues=["b"], service=Service.exponential(0.01)),
            ConsumerSpec(name="one", queues=["a"], service=Service.exponential(0.1)),
        ],
        duration=100.0,
        histories=100_000,
    )
    mine = simulate(alone).histories
    theirs = simulate(beside).histories
    theirs = theirs[theirs["queue"] == 1]
    for column in ("number", "created", "started", "handled"):
        assert (mine[column] == theirs[column]).all()
