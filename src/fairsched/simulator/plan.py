"""Convert a scenario to the numbers that the engine runs: indices, nanoseconds, random streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fairsched.simulator._simulator import NEVER
from fairsched.simulator.arrivals import Arrivals
from fairsched.simulator.consumers import ConsumerSpec, Shedding
from fairsched.simulator.parts import Change
from fairsched.simulator.plantypes import (
    ArrivalsPlan,
    ChangePlan,
    ConsumerPlan,
    LawPlan,
    Plan,
    QueuePlan,
    ServicePlan,
    SlotPlan,
    Stream,
)
from fairsched.simulator.scenario import Scenario, moments
from fairsched.simulator.service import Service
from fairsched.simulator.values import nanoseconds

#: Without a known duration the timeline starts with a row every millisecond; the interval doubles as needed.
_FIRST_GAP = 1_000_000


def stream(seed: int, source: str) -> Stream:
    """Derive the state of a source's random stream from the scenario's seed and the source's name."""
    digest = hashlib.blake2b(f"{seed}:{source}".encode(), digest_size=32).digest()
    first, second, third, fourth = (int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8))
    return first, second, third, fourth or 1


def gap(rate: float | None) -> int:
    """Return the nanoseconds between two messages, at least one; 0 for no limit."""
    return 0 if rate is None else max(1, round(1e9 / rate))


def service_plan(service: Service) -> ServicePlan:
    """Convert a service time."""
    return ServicePlan(service.kind, *service.numbers())


def arrivals_plan(arrivals: Arrivals) -> ArrivalsPlan:
    """Convert an arrival process."""
    kind = {"backlogged": "none", "bursts": "random-bursts" if arrivals.random else "bursts"}
    return ArrivalsPlan(
        kind.get(arrivals.kind, arrivals.kind),
        1e9 / arrivals.rate if arrivals.rate else 0.0,
        arrivals.on * 1e9,
        arrivals.off * 1e9,
        arrivals.times,
    )


def law_plan(codel: Shedding | None) -> LawPlan | None:
    """Convert a consumer's CoDel."""
    if codel is None:
        return None
    return LawPlan(
        codel.law,
        nanoseconds(codel.target),
        nanoseconds(codel.interval),
        codel.min_backlog,
        codel.max_returns or 0,
        codel.budget,
        codel.alone,
        codel.dead_letter,
    )


class _Layout:
    """Indices by name, while a plan is built."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.brokers = {broker.name: index for index, broker in enumerate(scenario.brokers)}
        self.queues = {queue.name: index for index, queue in enumerate(scenario.queues)}
        self.specs: list[ConsumerSpec] = [one for one in scenario.consumers for _ in one.names]
        self.names = [name for consumer in scenario.consumers for name in consumer.names]
        self.slots: list[SlotPlan] = []
        self.consumers: list[ConsumerPlan] = []
        for spec, name in zip(self.specs, self.names, strict=True):
            self._add(spec, name)

    def _add(self, spec: ConsumerSpec, name: str) -> None:
        first = len(self.slots)
        quanta = {one.name: one.quantum for one in self.scenario.queues if not spec.queues or one.name in spec.queues}
        windows = spec.windows(quanta)
        for queue, quantum in quanta.items():
            self.slots.append(
                SlotPlan(
                    self.queues[queue],
                    len(self.consumers),
                    quantum,
                    windows[queue],
                    service_plan(spec.service_of(queue)),
                    stream(self.scenario.seed, f"service:{name}:{queue}"),
                )
            )
        self.consumers.append(
            ConsumerPlan(
                first,
                len(quanta),
                spec.workers,
                spec.hold,
                spec.full,
                nanoseconds(spec.anticipation),
                law_plan(spec.codel),
            )
        )

    def concerned(self, change: Change) -> list[int]:
        """Return the indices of the consumers that a change applies to."""
        return [
            index
            for index, (spec, name) in enumerate(zip(self.specs, self.names, strict=True))
            if change.consumer in (None, spec.name, name)
        ]

    def slots_of(self, change: Change) -> Iterator[int]:
        """Yield the indices of the slots that a change applies to."""
        consumers = set(self.concerned(change))
        for index, slot in enumerate(self.slots):
            if slot.consumer in consumers and change.queue in (None, self.scenario.queues[slot.queue].name):
                yield index

    def changes(self) -> list[ChangePlan]:
        """Convert all changes, sorted by time: joining and leaving first, then the others in their order."""
        plans = [
            ChangePlan(nanoseconds(at), action, index)
            for index, (spec, name) in enumerate(zip(self.specs, self.names, strict=True))
            for at, action in moments(self.scenario, spec, name)
        ]
        for change in self.scenario.changes:
            plans.extend(self._change(change))
        # Stable. A consumer that joins at the time of another change joins after it.
        return sorted(plans, key=lambda plan: (plan.time, plan.kind == "join"))

    def _change(self, change: Change) -> Iterator[ChangePlan]:
        time = nanoseconds(change.at)
        if change.service is not None:
            service = service_plan(change.service)
            yield from (ChangePlan(time, "service", slot, service=service) for slot in self.slots_of(change))
        elif change.prefetch is not None:
            yield from (ChangePlan(time, "window", slot, change.prefetch) for slot in self.slots_of(change))
        elif change.quantum is not None:
            yield from (ChangePlan(time, "quantum", slot, change.quantum) for slot in self.slots_of(change))
        elif change.delay is not None:
            for consumer in self.concerned(change):
                for name, broker in self.brokers.items():
                    if change.broker in (None, name):
                        link = consumer * len(self.brokers) + broker
                        yield ChangePlan(time, "delay", link, nanoseconds(change.delay))
        elif change.rate is not None:
            brokers = [index for name, index in self.brokers.items() if change.broker in (None, name)]
            yield from (ChangePlan(time, "gap", broker, gap(change.rate)) for broker in brokers)
        elif change.arrivals is not None:
            arrivals = arrivals_plan(change.arrivals)
            queues = [index for name, index in self.queues.items() if change.queue in (None, name)]
            yield from (ChangePlan(time, "arrivals", queue, arrivals=arrivals) for queue in queues)


def make_plan(scenario: Scenario) -> Plan:
    """Convert a scenario to a plan.

    Parameters
    ----------
    scenario : Scenario
        The scenario.

    Returns
    -------
    Plan
        The plan that `fairsched.simulator._simulator.Simulation` runs.

    Notes
    -----
    O(consumers × (queues + brokers) + changes).
    """
    layout = _Layout(scenario)
    delays = [
        nanoseconds(broker.delay if spec.delay is None else spec.delay)
        for spec in layout.specs
        for broker in scenario.brokers
    ]
    queues = [
        QueuePlan(
            layout.brokers[queue.broker],
            queue.cost,
            queue.depth,
            queue.endless,
            arrivals_plan(queue.arrivals),
            stream(scenario.seed, f"arrivals:{queue.name}"),
        )
        for queue in scenario.queues
    ]
    end = NEVER if scenario.duration is None else nanoseconds(scenario.duration)
    rows = scenario.timeline + scenario.timeline % 2
    return Plan(
        names=layout.names,
        gaps=[gap(broker.rate) for broker in scenario.brokers],
        delays=delays,
        queues=queues,
        slots=layout.slots,
        consumers=layout.consumers,
        changes=layout.changes(),
        end=end,
        limit=NEVER if scenario.messages is None else scenario.messages,
        warmup=nanoseconds(scenario.warmup),
        records=scenario.histories,
        frames=rows,
        frame_gap=_FIRST_GAP if scenario.messages is not None else max(1, -(-end // rows)),
    )
