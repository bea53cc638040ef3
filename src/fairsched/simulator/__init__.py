"""Simulate brokers, queues and consumers, with the engine's own scheduler and CoDel."""

from __future__ import annotations

from fairsched.simulator.arrivals import Arrivals
from fairsched.simulator.consumers import ConsumerSpec, Shedding
from fairsched.simulator.distribution import Distribution
from fairsched.simulator.library import load_scenario, scenario_names
from fairsched.simulator.parts import Broker, Change, Queue
from fairsched.simulator.result import ConsumerResult, QueueResult, Result, SlotResult
from fairsched.simulator.run import simulate
from fairsched.simulator.scenario import Scenario
from fairsched.simulator.service import Service
from fairsched.simulator.timeline import Timeline

__all__ = [
    "Arrivals",
    "Broker",
    "Change",
    "ConsumerResult",
    "ConsumerSpec",
    "Distribution",
    "Queue",
    "QueueResult",
    "Result",
    "Scenario",
    "Service",
    "Shedding",
    "SlotResult",
    "Timeline",
    "load_scenario",
    "scenario_names",
    "simulate",
]
