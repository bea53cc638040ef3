"""The compiled simulator and the one in plain Python tell the same story, to the nanosecond."""

from __future__ import annotations

from hypothesis import given, settings
from oracles.simulator import ReferenceSimulator
from support.worlds import scenarios

from fairsched.simulator import Scenario
from fairsched.simulator._simulator import Simulation
from fairsched.simulator.plan import make_plan


@settings(deadline=None)
@given(scenarios())
def test_the_same_events(scenario: Scenario) -> None:
    plan = make_plan(scenario)
    oracle = ReferenceSimulator(plan)
    oracle.run()
    simulation = Simulation(plan)
    simulation.run()
    assert [tuple(row) for row in simulation.records().tolist()] == oracle.rows
    assert simulation.now == oracle.now
    assert [figures[:5] for figures in simulation.slot_figures()] == [
        (slot.served, slot.repeated, slot.returned, slot.redelivered, slot.busy) for slot in oracle.slots
    ]
    if simulation.now == plan.end:  # at a limit of messages, the last acknowledgement is or is not under way
        assert [figures[6] for figures in simulation.slot_figures()] == [len(slot.unsettled) for slot in oracle.slots]
    assert simulation.queue_figures() == [
        (0 if queue.plan.endless else queue.came, len(queue.stock) + len(queue.back)) for queue in oracle.queues
    ]
