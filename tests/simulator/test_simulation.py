"""The compiled face: what it refuses."""

from __future__ import annotations

import pytest

from fairsched.simulator import load_scenario
from fairsched.simulator._simulator import Simulation
from fairsched.simulator.plan import make_plan


def test_once() -> None:
    plan = make_plan(load_scenario("cold-start"))
    simulation = Simulation(plan)
    simulation.run()
    with pytest.raises(RuntimeError, match="run once"):
        simulation.run()
    with pytest.raises(RuntimeError, match="laid out once"):
        simulation.__init__(plan)  # type: ignore[misc]


def test_histograms_that_are_not_there() -> None:
    simulation = Simulation(make_plan(load_scenario("cold-start")))
    with pytest.raises(IndexError, match="slot must be 0 to 0, got 1"):
        simulation.histogram(1, "wait")
    with pytest.raises(ValueError, match="which must be one of wait, latency, age, total, got 'speed'"):
        simulation.histogram(0, "speed")


def test_nothing_is_counted_before_it_runs() -> None:
    simulation = Simulation(make_plan(load_scenario("spike")))
    assert (simulation.now, simulation.events) == (0, 0)
    assert simulation.records().shape == (0, 9)
    assert [figures[0] for figures in simulation.slot_figures()] == [0, 0]
