"""What a simulation found."""

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
    """What one consumer did for one queue.

    Attributes
    ----------
    consumer, queue : str
        Whose.
    served : int
        Messages handled.
    repeated : int
        Of those, handled before by a consumer that failed.
    returned : int
        Sent back by CoDel.
    redelivered : int
        Sent by the broker for another time.
    most_returns : int
        Of one message by this consumer, handled since or not.
    spared : int
        Returns that the budget of a message prevented, since the consumer joined the last time.
    busy : float
        Seconds of workers.
    wait, latency, age, total : Distribution
        From arrival at the consumer to the start of its handling; from the last sending to that; from coming into the
        queue to that; from coming into the queue to the end of its handling.
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
    """What became of one queue.

    Attributes
    ----------
    name, quantum : str, int
        The queue.
    came : int
        Messages that arrived, or were there at the start; of a backlogged queue 0.
    ready : int
        Messages that wait at the end; of a backlogged queue those that came back.
    served, repeated, returned, redelivered : int
        As of `SlotResult`, over all consumers.
    rate : float
        Messages handled a second.
    share : float
        Cost served over that of all queues.
    ideal : float
        Quantum over the sum of all quanta.
    error : float
        share / ideal - 1.
    wait, latency, age, total : Distribution
        As of `SlotResult`, over all consumers.
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
    """What one consumer did.

    Attributes
    ----------
    name : str
        The consumer.
    served, repeated, returned, redelivered : int
        As of `SlotResult`, over all queues.
    present : float
        Seconds from joining to leaving.
    utilisation : float
        Busy time of its workers over their number times the time it was present.
    wait, latency, age, total : Distribution
        As of `SlotResult`, over all queues.
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
    """What a simulation found, after its warm-up.

    Attributes
    ----------
    scenario : Scenario
        What was simulated.
    seconds : float
        The simulated time that counts: from the end of the warm-up to the end.
    events : int
        Events simulated, warm-up included.
    queues : tuple of QueueResult
        In the order of the scenario.
    consumers : tuple of ConsumerResult
        In the order of the scenario, each one of several by itself.
    slots : tuple of SlotResult
        By consumer and queue.
    jain : float
        Jain's index of cost served over quantum: 1.0 when shares are as they should be.
    timeline : Timeline
        How it went.
    histories : structured array
        Of the first messages handled, as many as the scenario asked for: indices of consumer and queue, number in the
        queue, and, in integer nanoseconds, created, sent, arrived, started and handled; messages ahead at its arrival;
        returns.

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
        """Messages handled a second."""
        return self.served / self.seconds if self.seconds else 0.0

    def queue(self, name: str) -> QueueResult:
        """Return the result of a queue; KeyError when there is none of the name."""
        return self.queues[_place(self.queues, name, "queue")]

    def consumer(self, name: str) -> ConsumerResult:
        """Return the result of a consumer; KeyError when there is none of the name."""
        return self.consumers[_place(self.consumers, name, "consumer")]

    def to_dict(self, *, timeline: bool = True) -> dict[str, Any]:
        """Return everything but the histories, as JSON has it; times in seconds.

        Parameters
        ----------
        timeline : bool
            Whether the timeline, by far the largest part, is in it.
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
        raise KeyError(f"there is no {what} {name!r}; there are {', '.join(names)}")
    return names.index(name)


def _table(part: QueueResult | ConsumerResult) -> dict[str, Any]:
    table = {field.name: getattr(part, field.name) for field in fields(part)}
    return {key: value.to_dict() if isinstance(value, Distribution) else value for key, value in table.items()}
