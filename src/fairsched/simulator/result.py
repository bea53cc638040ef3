"""The result of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairsched.simulator.distribution import Distribution
from fairsched.simulator.scenario import Scenario
from fairsched.simulator.timeline import Timeline

__all__ = ["ConsumerResult", "QueueResult", "Result", "SlotResult"]


@dataclass(frozen=True, slots=True)
class SlotResult:
    """Figures of one queue at one consumer.

    Attributes
    ----------
    consumer, queue : str
        Names of the consumer and the queue.
    served : int
        Messages handled.
    repeated : int
        Messages handled again after a consumer failed; included in `served`.
    returned : int
        Messages returned by CoDel.
    redelivered : int
        Redeliveries by the broker.
    most_returns : int
        Largest number of returns of one message by this consumer.
    spared : int
        Returns that the budget prevented since the consumer last joined.
    busy : float
        Busy time of the workers, in seconds.
    wait, latency, age, total : Distribution
        Times to the start of handling: from arrival at the consumer, from the last delivery by the broker, and from
        arrival in the queue; `total` is from arrival in the queue to the end of handling.
    """

    consumer: str
    queue: str
    served: int
    repeated: int
    returned: int
    redelivered: int
    most_returns: int
    spared: int
    busy: float
    wait: Distribution
    latency: Distribution
    age: Distribution
    total: Distribution


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Figures of one queue.

    Attributes
    ----------
    name, quantum : str, int
        The queue.
    came : int
        Messages that arrived or were there at the start; 0 for a backlogged queue.
    ready : int
        Messages in the queue at the end; for a backlogged queue only those that were returned.
    served, repeated, returned, redelivered : int
        As in `SlotResult`, over all consumers.
    rate : float
        Messages handled per second.
    share : float
        Its part of the cost served to all queues.
    ideal : float
        Its part of the sum of all quanta.
    error : float
        share / ideal - 1.
    wait, latency, age, total : Distribution
        As in `SlotResult`, over all consumers.
    """

    name: str
    quantum: int
    came: int
    ready: int
    served: int
    repeated: int
    returned: int
    redelivered: int
    rate: float
    share: float
    ideal: float
    error: float
    wait: Distribution
    latency: Distribution
    age: Distribution
    total: Distribution


@dataclass(frozen=True, slots=True)
class ConsumerResult:
    """Figures of one consumer.

    Attributes
    ----------
    name : str
        The consumer.
    served, repeated, returned, redelivered : int
        As in `SlotResult`, over all queues.
    present : float
        Seconds from joining to leaving.
    utilisation : float
        Fraction of the time it was present for which its workers were busy.
    wait, latency, age, total : Distribution
        As in `SlotResult`, over all queues.
    """

    name: str
    served: int
    repeated: int
    returned: int
    redelivered: int
    present: float
    utilisation: float
    wait: Distribution
    latency: Distribution
    age: Distribution
    total: Distribution


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The figures of a simulation, without its warm-up.

    Attributes
    ----------
    scenario : Scenario
        The scenario.
    seconds : float
        Simulated time from the end of the warm-up to the end.
    events : int
        Events simulated, including the warm-up.
    queues : tuple of QueueResult
        In the order of the scenario.
    consumers : tuple of ConsumerResult
        In the order of the scenario; consumers with a `count` separately.
    slots : tuple of SlotResult
        By consumer and queue.
    jain : float
        Jain's index of cost served per quantum: 1.0 when shares are in proportion to the quanta.
    timeline : Timeline
        Figures over time.
    histories : structured array
        The first messages handled, as many as the scenario asks for: indices of consumer and queue; number in the
        queue; created, sent, arrived, started and handled in integer nanoseconds; messages ahead on arrival; returns.

    Notes
    -----
    Immutable and picklable.
    """

    scenario: Scenario
    seconds: float
    events: int
    queues: tuple[QueueResult, ...]
    consumers: tuple[ConsumerResult, ...]
    slots: tuple[SlotResult, ...]
    jain: float
    timeline: Timeline
    histories: NDArray[np.void]

    @property
    def served(self) -> int:
        """Messages handled."""
        return sum(queue.served for queue in self.queues)

    @property
    def throughput(self) -> float:
        """Messages handled per second."""
        return self.served / self.seconds if self.seconds else 0.0

    def queue(self, name: str) -> QueueResult:
        """Return the result of a queue; KeyError if there is no such queue."""
        return self.queues[_place(self.queues, name, "queue")]

    def consumer(self, name: str) -> ConsumerResult:
        """Return the result of a consumer; KeyError if there is no such consumer."""
        return self.consumers[_place(self.consumers, name, "consumer")]

    def to_dict(self, *, timeline: bool = True) -> dict[str, Any]:
        """Return everything but the histories as JSON types; times in seconds.

        Parameters
        ----------
        timeline : bool
            Whether to include the timeline, by far the largest part.
        """
        table: dict[str, Any] = {
            "name": self.scenario.name,
            "seed": self.scenario.seed,
            "seconds": self.seconds,
            "events": self.events,
            "served": self.served,
            "throughput": self.throughput,
            "jain": self.jain,
            "queues": [_table(queue) for queue in self.queues],
            "consumers": [_table(consumer) for consumer in self.consumers],
        }
        return table | {"timeline": self.timeline.to_dict()} if timeline else table


def _place(parts: Sequence[QueueResult] | Sequence[ConsumerResult], name: str, what: str) -> int:
    names = [part.name for part in parts]
    if name not in names:
        raise KeyError(f"unknown {what} {name!r}; known: {', '.join(names)}")
    return names.index(name)


def _table(part: QueueResult | ConsumerResult) -> dict[str, Any]:
    table = {field.name: getattr(part, field.name) for field in fields(part)}
    return {key: value.to_dict() if isinstance(value, Distribution) else value for key, value in table.items()}
