"""A scenario: everything that a simulation is told, frozen and picklable, so that it can travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from fairsched.errors import ConfigurationError
from fairsched.simulator import reading, values
from fairsched.simulator.checking import check_world
from fairsched.simulator.consumers import ConsumerSpec
from fairsched.simulator.parts import Broker, Change, Queue

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to simulate.

    Parameters
    ----------
    queues : sequence of Queue
        At least one.
    consumers : sequence of ConsumerSpec
        At least one.
    brokers : sequence of Broker
        Where the queues are; one without delay and limit by default.
    changes : sequence of Change
        What becomes different meanwhile.
    duration : float or str, optional
        Seconds to simulate.
    messages : int, optional
        Stop when so many have been handled, in all. One of `duration` and `messages` must be given; the first of the
        two ends the simulation.
    warmup : float or str
        Seconds from the start that do not count for any figure but the timeline.
    seed : int
        Of all chance. Each source has its own stream, made from the seed and its name: what one draws does not depend
        on what others do, so that scenarios that differ in one thing can be compared.
    timeline : int
        Rows of the timeline, at most.
    histories : int
        Keep the history of so many messages, the first ones handled.
    name, about : str
        For reports.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or parts do not fit each other. The message names what, the value and the rule.

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
            raise ConfigurationError("a scenario needs a duration, or a number of messages after which it ends")
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
        check_world(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], directory: str | Path | None = None) -> Self:
        """Make a scenario out of tables, as TOML and JSON have them.

        Parameters
        ----------
        table : mapping
            The fields. `queues`, `consumers` and `brokers` are lists of tables, or tables by name; `broker` is a
            single one. Durations may be text.
        directory : path, optional
            Where recorded arrivals are looked for, if their path is relative; the current directory by default.

        Returns
        -------
        Scenario
            It.

        Raises
        ------
        ConfigurationError
            A field is unknown or not allowed.
        """
        return cls(**reading.parts_of(table, None if directory is None else Path(directory)))

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Self:
        """Make a scenario out of dotted keys, as a row of a table of scenarios has them.

        Parameters
        ----------
        flat : mapping of str to object
            Such as ``{"duration": 60, "broker.delay": 0.05, "queues.gold.quantum": 4, "consumers.w.prefetch": 26}``:
            the field, or the part, its name, and the field. Names appear in the order of their first key. A value of
            None counts as not given.

        Returns
        -------
        Scenario
            It.

        Raises
        ------
        ConfigurationError
            A field is unknown or not allowed.
        """
        return cls.from_dict(reading.nested({key: value for key, value in flat.items() if value is not None}))

    def replaced(self, flat: Mapping[str, Any]) -> Self:
        """Make a scenario that differs in some fields.

        Parameters
        ----------
        flat : mapping of str to object
            As for `from_flat`; the name ``*`` stands for every part of the kind, and a number for the place in a list.

        Returns
        -------
        Scenario
            A new one.

        Raises
        ------
        ConfigurationError
            There is no such part or field, or the value is not allowed.
        """
        return type(self).from_dict(reading.replaced(self.to_dict(), flat))

    def to_dict(self) -> dict[str, Any]:
        """Return tables from which `from_dict` makes an equal scenario; of what JSON has, and without None."""
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
