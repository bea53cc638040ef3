"""Run a scenario and collect its result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairsched.fairness import jain, shares
from fairsched.simulator._simulator import Simulation
from fairsched.simulator.distribution import Distribution
from fairsched.simulator.plan import make_plan
from fairsched.simulator.plantypes import Plan
from fairsched.simulator.result import ConsumerResult, QueueResult, Result, SlotResult
from fairsched.simulator.scenario import Scenario
from fairsched.simulator.timeline import Timeline

__all__ = ["simulate"]

_DISTRIBUTIONS = ("wait", "latency", "age", "total")
_COUNTS = ("served", "repeated", "returned", "redelivered")

#: Columns of `Result.histories`.
HISTORY = np.dtype(
    [("consumer", np.int64), ("queue", np.int64)]
    + [(name, np.int64) for name in ("number", "created", "sent", "arrived", "ahead", "started", "handled", "returns")]
)


def simulate(scenario: Scenario) -> Result:
    """Simulate a scenario.

    Parameters
    ----------
    scenario : Scenario
        The scenario.

    Returns
    -------
    Result
        The same scenario always gives the same result.

    Raises
    ------
    TypeError
        The argument is not a Scenario.
    MemoryError
        Queues or windows outgrew memory: more messages arrive than are handled.

    Notes
    -----
    Complexity: O(log(queues + consumers)) per event, millions of events per second. Memory does not grow with simulated
    time, only with the messages in windows and in queues that are not backlogged. Thread safety: any; the GIL is
    released, so simulations run in parallel threads.

    Examples
    --------
    >>> from fairsched.simulator import Broker, ConsumerSpec, Queue
    >>> found = simulate(Scenario(
    ...     brokers=[Broker(delay="50ms")], queues=[Queue("orders")],
    ...     consumers=[ConsumerSpec(name="app", prefetch=1, service="4ms")], warmup="50ms", duration="104.05s"))
    >>> round(found.consumer("app").utilisation, 4)
    0.0385
    """
    if not isinstance(scenario, Scenario):
        raise TypeError(f"simulate needs a Scenario, got {type(scenario).__name__}")
    plan = make_plan(scenario)
    simulation = Simulation(plan)
    simulation.run()
    seconds = max(0, simulation.now - plan.warmup) / 1e9
    slots = _slots(scenario, plan, simulation)
    queues = _queues(scenario, simulation, slots, seconds)
    return Result(
        scenario=scenario,
        seconds=seconds,
        events=simulation.events,
        queues=queues,
        consumers=_consumers(plan, simulation, slots),
        slots=slots,
        jain=jain(queue.share / queue.quantum for queue in queues),
        timeline=_timeline(plan, simulation),
        histories=_histories(plan, simulation.records()),
    )


def _slots(scenario: Scenario, plan: Plan, simulation: Simulation) -> tuple[SlotResult, ...]:
    figures = zip(plan.slots, simulation.slot_figures(), simulation.law_figures(), strict=True)
    return tuple(
        SlotResult(
            plan.names[slot.consumer],
            scenario.queues[slot.queue].name,
            *counts[:4],
            counts[7],
            law[3],
            counts[4] / 1e9,
            *(_distribution(simulation, index, name) for name in _DISTRIBUTIONS),
        )
        for index, (slot, counts, law) in enumerate(figures)
    )


def _distribution(simulation: Simulation, slot: int, name: str) -> Distribution:
    values, counts, exact, _count, total, least, largest = simulation.histogram(slot, name)
    return Distribution(values, counts, exact, total, least, largest)


def _summed(slots: list[SlotResult]) -> dict[str, Any]:
    """Add up the counts and merge the distributions."""
    sums: dict[str, Any] = {name: sum(getattr(slot, name) for slot in slots) for name in _COUNTS}
    return sums | {name: Distribution.merged(getattr(slot, name) for slot in slots) for name in _DISTRIBUTIONS}


def _queues(
    scenario: Scenario, simulation: Simulation, slots: tuple[SlotResult, ...], seconds: float
) -> tuple[QueueResult, ...]:
    by_queue: dict[str, list[SlotResult]] = {queue.name: [] for queue in scenario.queues}
    for slot in slots:
        by_queue[slot.queue].append(slot)
    sums = {name: _summed(found) for name, found in by_queue.items()}
    work = {queue.name: sums[queue.name]["served"] * queue.cost for queue in scenario.queues}
    fair = shares(work, {queue.name: queue.quantum for queue in scenario.queues})
    return tuple(
        QueueResult(
            name=queue.name,
            quantum=queue.quantum,
            came=came,
            ready=ready,
            rate=sums[queue.name]["served"] / seconds if seconds else 0.0,
            share=share.share,
            ideal=share.ideal,
            error=share.error,
            **sums[queue.name],
        )
        for queue, (came, ready), share in zip(scenario.queues, simulation.queue_figures(), fair, strict=True)
    )


def _consumers(plan: Plan, simulation: Simulation, slots: tuple[SlotResult, ...]) -> tuple[ConsumerResult, ...]:
    results = []
    for name, consumer, present in zip(plan.names, plan.consumers, simulation.consumer_figures(), strict=True):
        own = list(slots[consumer.first_slot : consumer.first_slot + consumer.slots])
        capacity = present / 1e9 * consumer.workers
        utilisation = sum(slot.busy for slot in own) / capacity if capacity else 0.0
        results.append(ConsumerResult(name=name, present=present / 1e9, utilisation=utilisation, **_summed(own)))
    return tuple(results)


def _timeline(plan: Plan, simulation: Simulation) -> Timeline:
    gap, depths, slots = simulation.frames()
    rows = len(depths)
    before = np.concatenate([np.zeros((1, *slots.shape[1:]), dtype=np.int64), slots])[:rows]
    steps = slots - before  # served, returned, waited, busy; the fifth is not a counter
    of_queue = np.array([slot.queue for slot in plan.slots])
    of_consumer = np.array([slot.consumer for slot in plan.slots])
    served = _grouped(steps[:, :, 0], of_queue, len(plan.queues))
    waited = _grouped(steps[:, :, 2], of_queue, len(plan.queues))
    workers = np.array([consumer.workers for consumer in plan.consumers])
    return Timeline(
        times=np.arange(1, rows + 1, dtype=np.float64) * np.float64(gap / 1e9),
        depth=depths,
        buffered=_grouped(slots[:, :, 4], of_queue, len(plan.queues)),
        rate=served / (gap / 1e9),
        returned=_grouped(steps[:, :, 1], of_queue, len(plan.queues)),
        wait=np.where(served > 0, waited / np.maximum(served, 1) / 1e9, np.nan),
        utilisation=_grouped(steps[:, :, 3], of_consumer, len(plan.consumers)) / (gap * workers),
    )


def _grouped(values: NDArray[np.int64], groups: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Add up the columns of each group."""
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    sums = np.zeros((len(values), size), dtype=np.int64)
    sums[:, present] = np.add.reduceat(values[:, order], starts, axis=1)
    return sums


def _histories(plan: Plan, records: NDArray[np.int64]) -> NDArray[np.void]:
    rows = np.zeros(len(records), dtype=HISTORY)
    owners = np.array([(slot.consumer, slot.queue) for slot in plan.slots], dtype=np.int64)
    rows["consumer"], rows["queue"] = owners[records[:, 0]].T
    for column, name in enumerate(HISTORY.names[2:], start=1):  # type: ignore[index]  # it has names
        rows[name] = records[:, column]
    return rows
