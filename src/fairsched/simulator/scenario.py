"""A scenario: the whole input of a simulation, frozen and picklable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from fairsched.errors import ConfigurationError
from fairsched.simulator import reading, values
from fairsched.simulator.consumers import ConsumerSpec
from fairsched.simulator.parts import Broker, Change, Queue

#: The engine numbers event sources with 32 bits, and every consumer has a link to every broker.
LARGEST_WORLD = 2**26

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Scenario of a simulation.

    Parameters
    ----------
    queues : sequence of Queue
        At least one.
    consumers : sequence of ConsumerSpec
        At least one.
    brokers : sequence of Broker
        The brokers; by default one without delay or rate limit.
    changes : sequence of Change
        Changes during the simulation.
    duration : float or str, optional
        Seconds to simulate.
    messages : int, optional
        Messages to handle before stopping. At least one of `duration` and `messages` is required; whichever is reached
        first ends the simulation.
    warmup : float or str
        Seconds at the start that only the timeline includes.
    seed : int
        Random seed. Each source has its own random stream, derived from the seed and its name, so a change to one
        source does not change the random numbers of another.
    timeline : int
        Maximum number of rows of the timeline.
    histories : int
        Number of messages, from the first, whose history to keep.
    name, about : str
        Name and description, for reports.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or parts do not fit together. The message names the field, the value and the rule.

    Notes
    -----
    Immutable, hashable and picklable. Thread safety: any.

    Examples
    --------
    >>> scenario = Scenario(
    ...     brokers=[Broker(delay="50ms")], queues=[Queue("orders")],
    ...     consumers=[ConsumerSpec(prefetch=1, service="4ms")], duration="104s")
    >>> scenario.replaced({"consumers.*.prefetch": 26}).consumers[0].prefetch
    26
    """

    queues: tuple[Queue, ...]
    consumers: tuple[ConsumerSpec, ...]
    brokers: tuple[Broker, ...] = (Broker(),)
    changes: tuple[Change, ...] = ()
    duration: float | None = None
    messages: int | None = None
    warmup: float = 0.0
    seed: int = 0
    timeline: int = 200
    histories: int = 0
    name: str = "scenario"
    about: str = ""

    def __post_init__(self) -> None:
        for field, kind in _PARTS.items():
            object.__setattr__(self, field, _parts(getattr(self, field), kind, field))
        if self.duration is None and self.messages is None:
            raise ConfigurationError("a scenario needs a duration or a number of messages")
        if self.duration is not None:
            object.__setattr__(self, "duration", values.seconds(self.duration, "duration", positive=True))
        if self.messages is not None:
            values.whole(self.messages, "messages", 1)
        object.__setattr__(self, "warmup", values.seconds(self.warmup, "warmup"))
        values.whole(self.seed, "seed", 0, 2**64 - 1)
        values.whole(self.timeline, "timeline", 2, 1_000_000)
        values.whole(self.histories, "histories", 0, 100_000_000)
        values.name(self.name, "the name of a scenario")
        if not isinstance(self.about, str):
            raise ConfigurationError(f"about must be text, got {self.about!r}")
        _check_world(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], directory: str | Path | None = None) -> Self:
        """Create a scenario from tables, as read from TOML or JSON.

        Parameters
        ----------
        table : mapping
            The fields. `queues`, `consumers` and `brokers` are lists of tables, or tables by name; `broker` is a
            single one. Durations may be text such as "5ms".
        directory : path, optional
            Directory for relative paths of recorded arrivals; the current one by default.

        Returns
        -------
        Scenario
            The scenario.

        Raises
        ------
        ConfigurationError
            A field is unknown or not allowed.
        """
        return cls(**reading.parts_of(table, None if directory is None else Path(directory)))

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Self:
        """Create a scenario from dotted keys, such as the columns of a table of scenarios.

        Parameters
        ----------
        flat : mapping of str to object
            Such as ``{"duration": 60, "broker.delay": 0.05, "queues.gold.quantum": 4, "consumers.w.prefetch": 26}``:
            a field, or a kind of part, the part's name and its field. Parts keep the order of their first key. None
            means not given.

        Returns
        -------
        Scenario
            The scenario.

        Raises
        ------
        ConfigurationError
            A field is unknown or not allowed.
        """
        return cls.from_dict(reading.nested({key: value for key, value in flat.items() if value is not None}))

    def replaced(self, flat: Mapping[str, Any]) -> Self:
        """Return a copy with some fields changed.

        Parameters
        ----------
        flat : mapping of str to object
            As for `from_flat`. The name ``*`` matches every part of the kind, a number the part at that index.

        Returns
        -------
        Scenario
            The changed copy.

        Raises
        ------
        ConfigurationError
            The part or field does not exist, or the value is not allowed.
        """
        return type(self).from_dict(reading.replaced(self.to_dict(), flat))

    def to_dict(self) -> dict[str, Any]:
        """Return tables of JSON types, without None, from which `from_dict` makes an equal scenario."""
        table = {field.name: reading.plain(getattr(self, field.name)) for field in fields(self)}
        return {key: value for key, value in table.items() if value is not None}


_PARTS: dict[str, type] = {"queues": Queue, "consumers": ConsumerSpec, "brokers": Broker, "changes": Change}


def _parts(given: object, kind: type, field: str) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ConfigurationError(f"{field} must be a sequence of {kind.__name__}, got {given!r}")
    parts = tuple(given)
    for part in parts:
        if not isinstance(part, kind):
            raise ConfigurationError(f"{field} must be a sequence of {kind.__name__}, got {part!r} in it")
    return parts


def _check_world(scenario: Scenario) -> None:
    """Check that the parts of a scenario fit together.

    Raises
    ------
    ConfigurationError
        For the first problem found.
    """
    for field in ("queues", "consumers", "brokers"):
        if not getattr(scenario, field):
            raise ConfigurationError(f"a scenario needs {field}, got none")
    _check_names("queue", [queue.name for queue in scenario.queues])
    _check_names("broker", [broker.name for broker in scenario.brokers])
    _check_names("consumer", [name for consumer in scenario.consumers for name in consumer.names])
    for queue in scenario.queues:
        _check_known("broker", queue.broker, (broker.name for broker in scenario.brokers), f"queue {queue.name!r}")
    for consumer in scenario.consumers:
        _check_consumer(scenario, consumer)
    for change in scenario.changes:
        _check_change(scenario, change)
    _check_presence(scenario)
    if scenario.duration is not None and scenario.warmup >= scenario.duration:
        raise ConfigurationError(
            f"warmup must be shorter than the duration, {scenario.duration:g} s, got {scenario.warmup:g} s"
        )
    size = sum(consumer.count * (len(scenario.brokers) + len(scenario.queues)) for consumer in scenario.consumers)
    if size > LARGEST_WORLD:
        raise ConfigurationError(f"consumers times queues and brokers must be at most {LARGEST_WORLD}, got {size}")


def _check_names(what: str, names: list[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"{what} names must be unique, got {name!r} twice")
        seen.add(name)


def _check_known(what: str, name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        raise ConfigurationError(f"{where}: unknown {what} {name!r}; known: {', '.join(names)}")


def _check_consumer(scenario: Scenario, consumer: ConsumerSpec) -> None:
    where = f"consumer {consumer.name!r}"
    names = [queue.name for queue in scenario.queues]
    for queue in consumer.queues:
        _check_known("queue", queue, names, where)
    named = set(consumer.queues or names)
    for field, value in (("prefetch", consumer.prefetch), ("service", consumer.service)):
        if isinstance(value, Mapping):
            for queue in value:
                _check_known("queue", queue, sorted(named), f"{field} of {where}")
    if isinstance(consumer.service, Mapping):
        missing = sorted(named - set(consumer.service))
        if missing:
            raise ConfigurationError(f"service of {where} must cover all its queues, {missing[0]!r} is missing")
    windows = consumer.windows({queue.name: queue.quantum for queue in scenario.queues if queue.name in named})
    for found in scenario.queues:
        if found.endless and windows.get(found.name) == 0:
            raise ConfigurationError(
                f"{where} has unlimited prefetch (0) for {found.name!r}, which never runs empty: give the queue a "
                "depth, or set a prefetch"
            )


def _check_change(scenario: Scenario, change: Change) -> None:
    where = f"the change at {change.at:g} s"
    if change.queue is not None:
        _check_known("queue", change.queue, (queue.name for queue in scenario.queues), where)
    if change.broker is not None:
        _check_known("broker", change.broker, (broker.name for broker in scenario.brokers), where)
    if change.consumer is not None:
        specs = [consumer.name for consumer in scenario.consumers]
        names = [name for consumer in scenario.consumers for name in consumer.names]
        _check_known("consumer", change.consumer, dict.fromkeys(specs + names), where)
    concerned = [queue for queue in scenario.queues if change.queue in (None, queue.name)]
    if change.prefetch == 0 and any(queue.endless for queue in concerned):
        raise ConfigurationError(f"{where} sets unlimited prefetch (0) for a queue that never runs empty")
    if change.arrivals is not None:
        for queue in concerned:
            if queue.endless or change.arrivals.kind == "backlogged":
                raise ConfigurationError(f"{where}: queue {queue.name!r} cannot become or stop being backlogged")


def moments(scenario: Scenario, consumer: ConsumerSpec, name: str) -> list[tuple[float, str]]:
    """Return the times at which a consumer joins, leaves and fails, in order."""
    own = [(consumer.joins, "join")]
    own += [(consumer.leaves, "leave")] if consumer.leaves is not None else []
    own += [(consumer.fails, "fail")] if consumer.fails is not None else []
    own += [
        (change.at, change.action)
        for change in scenario.changes
        if change.action is not None and change.consumer in (None, consumer.name, name)
    ]
    return sorted(own, key=lambda moment: moment[0])


def _check_presence(scenario: Scenario) -> None:
    """Check that each consumer joins, fails and joins again, and leaves in a possible order."""
    for consumer in scenario.consumers:
        for name in consumer.names:
            state = _ABSENT
            for at, action in moments(scenario, consumer, name):
                following = _FOLLOWING.get((state, action))
                if following is None:
                    raise ConfigurationError(f"consumer {name!r} cannot {action} at {at:g} s: it {state}")
                state = following


_ABSENT, _PRESENT, _LEFT = "is absent", "is present", "has left"

_FOLLOWING = {
    (_ABSENT, "join"): _PRESENT,
    (_PRESENT, "leave"): _LEFT,
    (_PRESENT, "fail"): _ABSENT,
}
