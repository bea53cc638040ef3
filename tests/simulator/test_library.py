"""The scenarios that come with fairsched tell the stories that they say they tell."""

from __future__ import annotations

import pytest

from fairsched.simulator import Result, load_scenario, scenario_names, simulate

#: Scenario, busy, mean wait and mean latency in seconds.
STEADY = [
    ("one-at-a-time", 4 / 104, 0.0, 0.05),
    ("optimal-prefetch", 1.0, 0.0, 0.05),
    ("buffer-bloat", 1.0, 0.1, 0.15),
    ("slow-handler", 1.0, 0.9, 0.95),
    ("slow-handler-bloat", 1.0, 1.9, 1.95),
]


@pytest.mark.parametrize("name", scenario_names())
def test_each_runs_and_says_what_it_is_about(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert len(scenario.about) > 80
    assert simulate(scenario.replaced({"messages": 2000, "warmup": 0})).served > 0


@pytest.mark.parametrize(("name", "busy", "wait", "latency"), STEADY)
def test_the_article_s_numbers(name: str, busy: float, wait: float, latency: float) -> None:
    client = simulate(load_scenario(name)).consumers[0]
    assert client.utilisation == pytest.approx(busy, abs=1e-9)
    assert client.wait.mean == pytest.approx(wait, abs=1e-9)
    assert client.latency.mean == pytest.approx(latency, abs=1e-9)


def quotient(found: Result) -> float:
    return found.queue("p9").served / found.queue("p0").served


@pytest.mark.slow
def test_shares() -> None:
    assert quotient(simulate(load_scenario("fair-consuming"))) == pytest.approx(10, abs=0.01)
    assert quotient(simulate(load_scenario("flattening"))) == 5
    assert quotient(simulate(load_scenario("restored-shares"))) == pytest.approx(10, abs=0.01)
    assert quotient(simulate(load_scenario("broker-bottleneck"))) < 3
    assert quotient(simulate(load_scenario("anticipation"))) == pytest.approx(10, abs=0.01)


def test_slow_network() -> None:
    slow, prepared = (simulate(load_scenario(name)) for name in ("slow-network", "prepared-for-slow-network"))
    assert slow.timeline.utilisation[-60:, 0].mean() == pytest.approx(104 / 204, abs=0.01)
    assert prepared.consumers[0].utilisation == 1.0


def test_a_noisy_tenant_waits_for_itself() -> None:
    found = simulate(load_scenario("noisy-tenant"))
    assert found.queue("noisy").age.percentile(99) > 15
    for name in ("web", "mail"):
        assert found.queue(name).age.percentile(99) < 0.03


def test_a_failure_repeats_a_little_and_loses_nothing() -> None:
    found = simulate(load_scenario("worker-failure"))
    assert 0 < found.queues[0].repeated <= 20
    assert found.queues[0].ready == 0
