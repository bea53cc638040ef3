"""The consumers of a scenario, and their CoDel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.weights import split
from fairsched.errors import ConfigurationError
from fairsched.scheduling._codel import CoDel
from fairsched.simulator import values
from fairsched.simulator.parts import MOST
from fairsched.simulator.service import Service

__all__ = ["ConsumerSpec", "Shedding"]

#: The default service time.
MILLISECOND = Service.constant(0.001)

LAWS = ("rfc", "linux", "linux-q16", "queueing-consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shedding:
    """CoDel and its guards, as in `fairsched.CoDel` and the consumer.

    Parameters
    ----------
    target, interval : float or str
        Acceptable wait in seconds, and for how many seconds it must be exceeded before a message is returned.
    law : {"rfc", "linux", "linux-q16", "queueing-consumer"}
        See `fairsched.CoDel`.
    min_backlog : int
        No message is returned while this many messages of the slot are left, or fewer.
    max_returns : int or None
        Maximum number of messages returned in one pull.
    budget : int
        Maximum number of times a message is returned.
    alone : bool
        Whether messages are returned to a queue that has no other consumer.
    dead_letter : bool
        Whether returned messages leave the queue (dead-lettered) instead of being requeued.

    Raises
    ------
    ConfigurationError
        A value is not allowed.

    Notes
    -----
    Immutable, hashable and picklable.
    """

    target: float = 0.005
    interval: float = 0.1
    law: str = "rfc"
    min_backlog: int = 1
    max_returns: int | None = None
    budget: int = 3
    alone: bool = False
    dead_letter: bool = False

    def __post_init__(self) -> None:
        for name in ("target", "interval"):
            object.__setattr__(self, name, values.seconds(getattr(self, name), f"{name} of codel", positive=True))
        values.choice(self.law, "law of codel", LAWS)
        values.whole(self.budget, "budget of codel", 1)
        values.flag(self.alone, "alone of codel")
        values.flag(self.dead_letter, "dead_letter of codel")
        try:
            CoDel(
                self.target,
                self.interval,
                min_backlog=self.min_backlog,
                law=self.law,
                max_returns=self.max_returns,
            )
        except (ValueError, OverflowError) as error:
            raise ConfigurationError(f"codel: {error}") from None

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Convert a table of fields; None stays None."""
        if value is None or isinstance(value, cls):
            return value
        return cls(**values.fields_of(value, "codel", cls.__match_args__ or tuple(cls.__dataclass_fields__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A consumer: one process with a link to each broker, a schedule of its own, and workers.

    Parameters
    ----------
    name : str
        Name of the consumer in results.
    queues : sequence of str
        Queues it consumes; empty: all.
    prefetch : int or mapping of str to int
        Prefetch of each queue; 0 is unlimited, as in AMQP. Queues missing from a mapping have 1.
    prefetch_total : int, optional
        Instead of `prefetch`: divided among its queues in proportion to their quanta, at least 1 each.
    service : Service, float, str, mapping
        Service time of a message; or a mapping of queues to service times.
    workers : int
        Number of messages handled at the same time.
    hold : bool
        Whether a queue whose local buffer is empty, but that has messages at the broker, keeps its deficit.
    anticipation : float or str
        Longest time in seconds to wait for a message of such a queue in its turn; 0: do not wait. Requires `hold`.
    codel : Shedding or mapping, optional
        Return messages that waited too long in the consumer.
    delay : float or str, optional
        One-way network delay to every broker, overriding the broker's.
    full : bool
        Whether it joins with full windows, as if deliveries had been sent one delay earlier.
    joins : float or str
        Time of joining, in seconds from the start.
    leaves, fails : float or str, optional
        Time of leaving in good order, or of losing its connection.
    count : int
        Number of such consumers; more than one are named name-0, name-1, ….

    Raises
    ------
    ConfigurationError
        A value is not allowed.

    Notes
    -----
    Immutable, hashable and picklable.
    """

    name: str = "consumer"
    queues: tuple[str, ...] = ()
    prefetch: int | Mapping[str, int] = 50
    prefetch_total: int | None = None
    service: Service | Mapping[str, Service] = MILLISECOND
    workers: int = 1
    hold: bool = False
    anticipation: float = 0.0
    codel: Shedding | None = None
    delay: float | None = None
    full: bool = False
    joins: float = 0.0
    leaves: float | None = None
    fails: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        values.name(self.name, "the name of a consumer")
        of = f"of consumer {self.name!r}"
        self._set("queues", _names(self.queues, f"queues {of}"))
        self._set("prefetch", _windows(self.prefetch, f"prefetch {of}"))
        if self.prefetch_total is not None:
            self._set("prefetch_total", values.whole(self.prefetch_total, f"prefetch_total {of}", 1, MOST))
        self._set("service", _services(self.service))
        self._set("workers", values.whole(self.workers, f"workers {of}", 1, 1_000_000))
        self._set("count", values.whole(self.count, f"count {of}", 1, 1_000_000))
        self._set("codel", Shedding.of(self.codel))
        for name in ("hold", "full"):
            values.flag(getattr(self, name), f"{name} {of}")
        for name in ("anticipation", "delay", "joins", "leaves", "fails"):
            if getattr(self, name) is not None:
                self._set(name, values.seconds(getattr(self, name), f"{name} {of}"))
        if self.anticipation and not self.hold:
            raise ConfigurationError(f"anticipation {of} requires hold = true")
        for name in ("leaves", "fails"):
            moment = getattr(self, name)
            if moment is not None and moment <= self.joins:
                raise ConfigurationError(f"{name} {of} must be after it joins, at {self.joins:g} s, got {moment:g} s")
        if self.leaves is not None and self.fails is not None:
            raise ConfigurationError(f"consumer {self.name!r} has both leaves and fails; use changes for more than one")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def names(self) -> list[str]:
        """The name of each of them in results."""
        return [self.name] if self.count == 1 else [f"{self.name}-{index}" for index in range(self.count)]

    def service_of(self, queue: str) -> Service:
        """Return the service time of a queue's messages."""
        if isinstance(self.service, Service):
            return self.service
        return self.service[queue]

    def windows(self, quanta: Mapping[str, int]) -> dict[str, int]:
        """Return the prefetch of each of its queues, 0 for unlimited.

        Parameters
        ----------
        quanta : mapping of str to int
            The queues it consumes, with their quanta.
        """
        if self.prefetch_total is not None:
            return split(self.prefetch_total, quanta)
        if isinstance(self.prefetch, int):
            return dict.fromkeys(quanta, self.prefetch)
        return {queue: self.prefetch.get(queue, 1) for queue in quanta}


def _names(value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} must be a list of names, got {value!r}")
    names = tuple(values.name(entry, what) for entry in value)
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{what} must be unique, got {', '.join(names)}")
    return names


def _windows(value: object, what: str) -> int | FrozenMapping[str, int]:
    if not isinstance(value, Mapping):
        return values.whole(value, what, 0, MOST)
    return FrozenMapping({key: values.whole(window, f"{what} for {key!r}", 0, MOST) for key, window in value.items()})


def _services(value: object) -> Service | FrozenMapping[str, Service]:
    if isinstance(value, Mapping) and not {"kind", "mean", "low", "high", "cv"} & set(value):
        return FrozenMapping({key: Service.of(entry) for key, entry in value.items()})
    return Service.of(value)
