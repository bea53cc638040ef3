"""Checks that concern several parts of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairsched.errors import ConfigurationError
from fairsched.simulator.consumers import ConsumerSpec
from fairsched.simulator.parts import Change

if TYPE_CHECKING:
    from fairsched.simulator.scenario import Scenario

#: The engine numbers event sources with 32 bits, and every consumer has a link to every broker.
LARGEST_WORLD = 2**26


def check_world(scenario: Scenario) -> None:
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
