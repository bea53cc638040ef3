"""Plans for the engine: scenarios in indices and nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

#: State of a random stream.
Stream = tuple[int, int, int, int]


class ServicePlan(NamedTuple):
    """A distribution: kind and two parameters."""

    kind: str
    a: float
    b: float


class ArrivalsPlan(NamedTuple):
    """An arrival process: kind, mean interval, lengths of burst and pause, recorded times; all in nanoseconds."""

    kind: str
    gap: float = 0.0
    on: float = 0.0
    off: float = 0.0
    times: bytes = b""


class LawPlan(NamedTuple):
    """CoDel and its guards."""

    law: str
    target: int
    interval: int
    min_backlog: int
    max_returns: int
    budget: int
    alone: bool
    dead_letter: bool


class QueuePlan(NamedTuple):
    """A queue."""

    broker: int
    cost: int
    depth: int
    endless: bool
    arrivals: ArrivalsPlan
    seed: Stream


class SlotPlan(NamedTuple):
    """One consumer's part of one queue."""

    queue: int
    consumer: int
    quantum: int
    window: int
    service: ServicePlan
    seed: Stream


class ConsumerPlan(NamedTuple):
    """A consumer."""

    first_slot: int
    slots: int
    workers: int
    holds: bool
    full: bool
    patience: int
    law: LawPlan | None


class ChangePlan(NamedTuple):
    """One change of one thing."""

    time: int
    kind: str
    target: int
    amount: int = 0
    service: ServicePlan | None = None
    arrivals: ArrivalsPlan | None = None


class Plan(NamedTuple):
    """A whole scenario. A consumer's slots are contiguous; links are numbered by consumer, then by broker."""

    names: list[str]  # of the consumers
    gaps: list[int]
    delays: list[int]
    queues: list[QueuePlan]
    slots: list[SlotPlan]
    consumers: list[ConsumerPlan]
    changes: list[ChangePlan]
    end: int
    limit: int
    warmup: int
    records: int
    frames: int
    frame_gap: int
