"""Whether the parts of a scenario fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairsched.errors import ConfigurationError
from fairsched.simulator.consumers import ConsumerSpec
from fairsched.simulator.parts import Change

if TYPE_CHECKING:
    from fairsched.simulator.scenario import Scenario

#: The engine numbers its sources of events in 32 bits, and every consumer has a link to every broker.
LARGEST_WORLD = 2**26


def check_world(scenario: Scenario) -> None:
    """Check what concerns several parts.

    Raises
    ------
    ConfigurationError
        The first thing that does not fit.
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
            raise ConfigurationError(f"each {what} needs a name of its own, got {name!r} twice")
        seen.add(name)


def _check_known(what: str, name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        raise ConfigurationError(f"{where} names {what} {name!r}; there are {', '.join(names)}")


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
            raise ConfigurationError(f"service of {where} must name every queue of it, {missing[0]!r} is missing")
    windows = consumer.windows({queue.name: queue.quantum for queue in scenario.queues if queue.name in named})
    for found in scenario.queues:
        if found.endless and windows.get(found.name) == 0:
            raise ConfigurationError(
                f"{where} has an unlimited window (prefetch 0) for {found.name!r}, which never runs empty: give the "
                "queue a depth, or the window a limit"
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
        raise ConfigurationError(f"{where} makes a window unlimited (prefetch 0) for a queue that never runs empty")
    if change.arrivals is not None:
        for queue in concerned:
            if queue.endless or change.arrivals.kind == "backlogged":
                raise ConfigurationError(f"{where} cannot make queue {queue.name!r} backlogged, or cease to be")


def moments(scenario: Scenario, consumer: ConsumerSpec, name: str) -> list[tuple[float, str]]:
    """List when one consumer joins, leaves and fails, in order."""
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
    """Join, then fail and join again as often as one likes, or leave for good."""
    for consumer in scenario.consumers:
        for name in consumer.names:
            state = "absent"
            for at, action in moments(scenario, consumer, name):
                following = _FOLLOWING.get((state, action))
                if following is None:
                    raise ConfigurationError(f"consumer {name!r} cannot {action} at {at:g} s: it is {state} then")
                state = following


_FOLLOWING = {
    ("absent", "join"): "present",
    ("present", "leave"): "gone for good",
    ("present", "fail"): "absent",
}
