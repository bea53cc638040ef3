"""Jobs that a framework's worker has received and not begun, served in turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Any

from fairsched.config.keyvalue import NO_KEY, hashable
from fairsched.config.tenants import OTHERS
from fairsched.config.weights import check_weight, quanta_of
from fairsched.consumer.cost import ConstantCost, TimeCost
from fairsched.consumer.keys import PROPERTIES
from fairsched.consumer.log_limit import LogLimit
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError
from fairsched.scheduling._fairqueue import FairQueue

_log = logging.getLogger(__name__)

#: Cost models of a job: the time for which it keeps a worker busy, or 1.
_COSTS: dict[str, Callable[[], ConstantCost]] = {"time": TimeCost, "constant": ConstantCost}


class Job:
    """One job, its rank within its slot, and the charge to its slot."""

    __slots__ = ("cost", "rank", "slot", "started", "work")

    def __init__(self, slot: Hashable, rank: Any, work: Any) -> None:
        self.slot = slot
        self.rank = rank
        self.work = work
        self.cost = 1
        self.started = 0

    def __lt__(self, other: Job) -> bool:
        return bool(self.rank < other.rank)


class WaitingJobs:
    """Jobs by slot: deficit weighted round robin among slots, by rank within one.

    Parameters
    ----------
    weights : mapping, optional
        Weight by slot: whole numbers of at least 1; ``"*"`` stands for all slots that are not named, which have weight
        1 by default.
    cost : "time" or "constant"
        What a job costs its slot: the time that it keeps a worker busy, or 1.

    Raises
    ------
    ConfigurationError
        If a value is none of these; the message names it.

    Notes
    -----
    O(log n) in the jobs of a slot. `put`, `take` and `clear` are for one thread at a time; `finish` is for any. A job's
    time is known when it has ended: before that its slot is charged the mean of its last ones.
    """

    def __init__(self, weights: Mapping[Any, int] | None, cost: str) -> None:
        if cost not in _COSTS:
            raise ConfigurationError(f"cost must be 'time' or 'constant', got {cost!r}")
        self._cost = _COSTS[cost]()
        named = dict(weights or {})
        others = named.pop(OTHERS, 1)
        check_weight(OTHERS, others)
        quanta, default_quantum = quanta_of(named, others, self._cost.unit)
        self._turns = FairQueue(quanta, default_quantum=default_quantum)
        self._jobs: dict[Hashable, list[Job]] = {}

    def __len__(self) -> int:
        return self._turns.qsize()

    def put(self, job: Job) -> None:
        """Add a job."""
        job.cost = self._cost.estimate(job)  # type: ignore[arg-type]  # a job has a message's slot and cost
        heappush(self._jobs.setdefault(job.slot, []), job)
        self._turns.put(job.slot, None, cost=job.cost)

    def take(self) -> Job:
        """Return the first job of the next slot; raise `queue.Empty` if none waits."""
        slot, _ = self._turns.get(block=False)
        jobs = self._jobs[slot]
        job = heappop(jobs)
        if not jobs:
            del self._jobs[slot]
        job.started = time.monotonic_ns()
        return job

    def finish(self, job: Job) -> None:
        """Correct the charge after the job has left its worker."""
        difference = self._cost.correction(job, time.monotonic_ns() - job.started)  # type: ignore[arg-type]
        if difference:
            self._turns.settle(job.slot, difference)

    def refund(self, job: Job) -> None:
        """Refund the charge: the job kept no worker busy."""
        self._turns.settle(job.slot, -job.cost)

    def clear(self) -> None:
        """Forget all jobs."""
        while len(self):
            self.take()


class Key:
    """Names the slot of a message.

    Parameters
    ----------
    key : str or callable
        "queue", ``"<source>:NAME"``, or a function of the message.
    queue : callable
        Message to the name of its queue.
    sources : mapping
        Where the framework keeps named values, such as "header" or "option": message and NAME to a value.

    Raises
    ------
    ConfigurationError
        If `key` is none of these, or names a property that messages do not have.
    """

    def __init__(
        self,
        key: str | Callable[[Any], object],
        queue: Callable[[Any], object],
        sources: Mapping[str, Callable[[Any, str], object]],
    ) -> None:
        source, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
        self._reports = LogLimit()
        self._function: Callable[[Any], object]
        if key == "queue":
            self._function = queue
        elif source in sources and name:
            if source == "property" and name not in PROPERTIES:
                known = ", ".join(sorted(PROPERTIES))
                raise ConfigurationError(f"key {key!r}: no such property; there are {known}")
            self._function = partial(_named, sources[source], name)
        elif callable(key):
            check_plain(key, "key")
            self._function = key
        else:
            allowed = ", ".join(f"'{source}:NAME'" for source in sources)
            raise ConfigurationError(f"key must be 'queue', {allowed} or a function, got {key!r}")

    def __call__(self, message: Any) -> Hashable:
        """Return the slot of a message: "" if it has no key, or if the function fails, which is logged."""
        try:
            slot = hashable(self._function(message))
            hash(slot)
        except Exception:
            if self._reports.due(""):
                _log.exception("key function failed; such messages get no key")
            return NO_KEY
        return slot


def _named(find: Callable[[Any, str], object], name: str, message: Any) -> object:
    return find(message, name)
