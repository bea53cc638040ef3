"""A horizontal pod autoscaler over the simulator: pods that start late, and a policy for their number.

The simulator runs a scenario that is known beforehand, and the same one always gives the same figures. So the loop is
closed by simulating from the start again for each decision, with the pods of all decisions so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairsched.consumer.drain_time.drain import HandlerTimes, drain_seconds
from fairsched.simulator import Broker, Change, ConsumerSpec, Queue, Scenario
from fairsched.simulator._simulator import Simulation
from fairsched.simulator.plan import make_plan

#: Seconds between two decisions, from the creation of a pod until it consumes, and of the window for scaling down: the
#: first and the last are the defaults of Kubernetes.
PERIOD, STARTS_AFTER, DOWN_WINDOW = 15.0, 20.0, 300.0
#: A ratio this close to 1 changes nothing, as by default.
TOLERANCE = 0.1
#: Prefetch of a pod for each of its workers.
PREFETCH = 2
#: Columns of `Simulation.records`.
_CREATED, _STARTED, _HANDLED = 2, 6, 7


@dataclass(frozen=True)
class Phase:
    """A time with one rate of messages, in 1/s, and one mean handler time, in seconds."""

    name: str
    seconds: float
    rate: float
    handler: float


@dataclass(frozen=True)
class Seen:
    """What a scaler sees: messages ready at the broker and delivered, handler time, and pods, of which some consume."""

    ready: int
    unsettled: int
    handler_seconds: float | None
    consuming: int
    pods: int


#: Returns the number of pods that a scaler asks for.
Policy = Callable[[Seen], int]


def by_drain_time(target: float, workers: int) -> Policy:
    """Ask as KEDA does for ``seconds`` of ``/scale`` with ``metricType: Value``, over the mean of all pods."""

    def wanted(seen: Seen) -> int:
        consuming = max(1, seen.consuming)
        seconds = drain_seconds(seen.ready + seen.unsettled, seen.handler_seconds, consuming * workers)
        return seen.pods if seconds is None else _by_ratio(seconds / target, consuming, seen.pods)

    return wanted


def by_length(target: int) -> Policy:
    """Ask as KEDA's scaler for RabbitMQ does by the length of the queue, with so many messages for each pod."""

    def wanted(seen: Seen) -> int:
        return _by_ratio((seen.ready + seen.unsettled) / (target * seen.pods), seen.pods, seen.pods)

    return wanted


def _by_ratio(ratio: float, pods: int, current: int) -> int:
    """Return so many times the pods, or as many as there are if that is about the same."""
    return current if abs(ratio - 1.0) <= TOLERANCE else math.ceil(ratio * pods)


@dataclass
class Pod:
    """A pod: when it was created and, once it is deleted, when it left."""

    created: float
    left: float | None = None

    @property
    def joins(self) -> float:
        """When it consumes."""
        return self.created + STARTS_AFTER if self.created else 0.0


@dataclass(frozen=True)
class Outcome:
    """The 95th percentile of the wait in each phase, the seconds of all workers, and the most pods at a time."""

    waits: dict[str, float]
    worker_seconds: float
    most_pods: int

    @property
    def longest(self) -> float:
        """The longest of the waits."""
        return max(self.waits.values())


@dataclass
class Autoscaler:
    """Runs phases of load under a policy.

    Parameters
    ----------
    phases : sequence of Phase
        The load.
    policy : callable
        The scaler.
    workers, most : int
        Workers of a pod, and the most pods.
    seed : int
        Of the simulator.
    """

    phases: Sequence[Phase]
    policy: Policy
    workers: int = 2
    most: int = 30
    seed: int = 1
    pods: list[Pod] = field(default_factory=lambda: [Pod(0.0)])

    def run(self) -> Outcome:
        """Return what came of it."""
        end = sum(phase.seconds for phase in self.phases)
        times, asked, most = HandlerTimes(), list[tuple[float, int]](), 1
        for step in range(1, math.ceil(end / PERIOD)):
            now = step * PERIOD
            seen = self._seen(self._simulated(now), times, now)
            asked = [(at, pods) for at, pods in asked if at > now - DOWN_WINDOW] + [(now, self.policy(seen))]
            self._scale(max(1, min(self.most, asked[-1][1])), max(pods for _, pods in asked), now)
            most = max(most, self._count())
        return self._outcome(self._simulated(end), end, most)

    def _count(self) -> int:
        return sum(pod.left is None for pod in self.pods)

    def _scale(self, wanted: int, highest: int, now: float) -> None:
        """Create pods, at most four or twice as many in a period; delete some if fewer were wanted for long."""
        current = self._count()
        for _ in range(min(wanted, max(current + 4, 2 * current)) - current):
            self.pods.append(Pod(now))
        living = [pod for pod in self.pods if pod.left is None]
        for pod in living[max(1, highest) :]:
            pod.left = now

    def _simulated(self, until: float) -> Simulation:
        """Return the simulation of the time until now; without the figures of a `Result`, which take much longer."""
        changes, begin = [], 0.0
        for phase in self.phases:
            if 0.0 < begin < until:
                changes.append(Change(at=begin, arrivals=_arrivals(phase)))
                changes.append(Change(at=begin, service=_service(phase)))
            begin += phase.seconds
        consumers = [
            ConsumerSpec(
                name=f"pod{number}", workers=self.workers, prefetch=PREFETCH * self.workers,
                service=_service(self.phases[0]), joins=pod.joins,
                leaves=pod.left if pod.left is not None and pod.joins < pod.left < until else None,
            )
            for number, pod in enumerate(self.pods)
            if pod.joins < until and (pod.left is None or pod.joins < pod.left)
        ]  # fmt: skip
        scenario = Scenario(
            brokers=(Broker(delay=0.001),),
            queues=(Queue("jobs", arrivals=_arrivals(self.phases[0])),),
            consumers=tuple(consumers), changes=tuple(changes), duration=until, seed=self.seed,
            histories=round(2 * sum(phase.seconds * phase.rate for phase in self.phases)),
        )  # fmt: skip
        simulation = Simulation(make_plan(scenario))
        simulation.run()
        return simulation

    def _seen(self, simulation: Simulation, times: HandlerTimes, now: float) -> Seen:
        [(came, ready)] = simulation.queue_figures()
        handled = simulation.records()
        mean = times.note("jobs", len(handled), float((handled[:, _HANDLED] - handled[:, _STARTED]).sum()) / 1e9)
        consuming = sum(pod.joins < now and pod.left is None for pod in self.pods)
        return Seen(ready, came - ready - len(handled), mean, consuming, self._count())

    def _outcome(self, simulation: Simulation, end: float, most: int) -> Outcome:
        handled = simulation.records()
        created, waits = handled[:, _CREATED] / 1e9, (handled[:, _STARTED] - handled[:, _CREATED]) / 1e9
        longest, begin = {}, 0.0
        for phase in self.phases:
            chosen = waits[(created >= begin) & (created < begin + phase.seconds)]
            longest[phase.name] = float(np.percentile(chosen, 95))
            begin += phase.seconds
        lives = [(end if pod.left is None else pod.left) - pod.created for pod in self.pods]
        return Outcome(longest, self.workers * sum(lives), most)


def _arrivals(phase: Phase) -> Any:
    return {"kind": "poisson", "rate": phase.rate}


def _service(phase: Phase) -> Any:
    return {"kind": "lognormal", "mean": phase.handler, "cv": 1.0}
