"""The parts of a scenario: brokers, queues and changes."""

from __future__ import annotations

from dataclasses import dataclass

from fairsched.errors import ConfigurationError
from fairsched.simulator import values
from fairsched.simulator.arrivals import Arrivals
from fairsched.simulator.service import Service

__all__ = ["Broker", "Change", "Queue"]

#: The default arrivals.
BACKLOGGED = Arrivals.backlogged()

#: Actions of a consumer in a change.
ACTIONS = ("join", "leave", "fail")

#: The engine numbers messages and entities with 32 bits.
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker and its network delay.

    Parameters
    ----------
    name : str
        Name by which queues refer to it.
    delay : float or str
        One-way network delay between the broker and a consumer, in seconds.
    rate : float or None
        Messages per second that it can deliver, all queues together; None: no limit.

    Raises
    ------
    ConfigurationError
        A value is not allowed.

    Notes
    -----
    Immutable, hashable and picklable.
    """

    name: str = "broker"
    delay: float = 0.0
    rate: float | None = None

    def __post_init__(self) -> None:
        values.name(self.name, "the name of a broker")
        object.__setattr__(self, "delay", values.seconds(self.delay, f"delay of broker {self.name!r}"))
        if self.rate is not None:
            object.__setattr__(self, "rate", values.rate(self.rate, f"rate of broker {self.name!r}"))


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue.

    Parameters
    ----------
    name : str
        Name by which consumers and results refer to it.
    quantum : int
        Its weight in every consumer's scheduler.
    arrivals : Arrivals, str or mapping
        Arrival process; by default the queue never runs empty.
    depth : int
        Messages in the queue at the start. Not for a backlogged queue.
    cost : int
        Cost of each message, in the unit of the quanta.
    broker : str
        The broker it is on.

    Raises
    ------
    ConfigurationError
        A value is not allowed.

    Notes
    -----
    Immutable, hashable and picklable.
    """

    name: str = "queue"
    quantum: int = 1
    arrivals: Arrivals = BACKLOGGED
    depth: int = 0
    cost: int = 1
    broker: str = "broker"

    def __post_init__(self) -> None:
        values.name(self.name, "the name of a queue")
        of = f"of queue {self.name!r}"
        object.__setattr__(self, "quantum", values.whole(self.quantum, f"quantum {of}", 1))
        object.__setattr__(self, "arrivals", Arrivals.of(self.arrivals))
        object.__setattr__(self, "depth", values.whole(self.depth, f"depth {of}", 0))
        object.__setattr__(self, "cost", values.whole(self.cost, f"cost {of}", 1))
        values.name(self.broker, f"broker {of}")
        if self.endless and self.depth:
            raise ConfigurationError(f"queue {self.name!r} is always backlogged and takes no depth, got {self.depth}")

    @property
    def endless(self) -> bool:
        """True if it never runs empty."""
        return self.arrivals.kind == "backlogged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change at a given time.

    Parameters
    ----------
    at : float or str
        Seconds from the start. Changes at the same time are applied in the order of the scenario.
    consumer, queue, broker : str, optional
        The changed part; by default all consumers, queues or brokers.
    action : {"join", "leave", "fail"}, optional
        Action of the consumer.
    delay : float or str, optional
        New one-way delay between the consumers and brokers.
    service : Service, float, str or mapping, optional
        New service time of the consumers for the queues.
    prefetch : int, optional
        New prefetch of the consumers for each of the queues; 0: unlimited.
    quantum : int, optional
        New quantum of the queues.
    rate : float, optional
        New rate of the brokers, in messages per second.
    arrivals : Arrivals, str or mapping, optional
        New arrivals of the queues. A queue cannot become backlogged, or stop being backlogged.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or not exactly one of `action` to `arrivals` is given.

    Notes
    -----
    Immutable, hashable and picklable.
    """

    at: float
    consumer: str | None = None
    queue: str | None = None
    broker: str | None = None
    action: str | None = None
    delay: float | None = None
    service: Service | None = None
    prefetch: int | None = None
    quantum: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", values.seconds(self.at, "at of a change"))
        for target in ("consumer", "queue", "broker"):
            if getattr(self, target) is not None:
                values.name(getattr(self, target), f"{target} of a change")
        given = [kind for kind in _CHANGES if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"a change needs exactly one of {', '.join(_CHANGES)}, got {', '.join(given) or 'none'}"
            )
        kind = given[0]
        object.__setattr__(self, kind, self._converted(kind))
        for target in ("consumer", "queue", "broker"):
            if getattr(self, target) is not None and target not in _CHANGES[kind]:
                raise ConfigurationError(f"a change of {kind} takes no {target}, got {getattr(self, target)!r}")

    def _converted(self, kind: str) -> object:
        value = getattr(self, kind)
        what = f"{kind} of a change"
        if kind == "action":
            return values.choice(value, what, ACTIONS)
        if kind == "delay":
            return values.seconds(value, what)
        if kind == "service":
            return Service.of(value)
        if kind == "arrivals":
            return Arrivals.of(value)
        if kind == "rate":
            return values.rate(value, what)
        return values.whole(value, what, 0 if kind == "prefetch" else 1)

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(kind for kind in _CHANGES if getattr(self, kind) is not None)


#: Kinds of changes, and the parts to which each may be restricted.
_CHANGES = {
    "action": ("consumer",),
    "delay": ("consumer", "broker"),
    "service": ("consumer", "queue"),
    "prefetch": ("consumer", "queue"),
    "quantum": ("queue",),
    "rate": ("broker",),
    "arrivals": ("queue",),
}
