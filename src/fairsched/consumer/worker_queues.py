"""Worker queues: messages of one ordering key run one after the other, messages of different keys side by side."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fairsched.errors import ConfigurationError, ShutDown
from fairsched.routing._ring import HashRing
from fairsched.scheduling._fairqueue import FairQueue
from fairsched.scheduling.bands import DEFAULT_BAND
from fairsched.scheduling.limit import JointName
from fairsched.stats import LimitStats, SlotOutlook, SlotStats

if TYPE_CHECKING:
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.delivery._delivery import Message

#: Points of a worker queue on the ring. The slowest worker queue bounds the speed of all: with 1024 points a worker
#: queue has its share of the keys to within 3 % (one standard deviation), and eight worker queues are placed in
#: milliseconds.
POINTS = 1024

_log = logging.getLogger(__name__)

#: Throttled slots from which those are forgotten that take turns again.
_FORGET = 64

#: The highest priority: takes messages, whichever threads wait for them.
_FIRST = 2**31 - 1


class WorkerQueues:
    """The queues in which deliveries wait: a fair queue for all workers, or with an ordering key one for each.

    Parameters
    ----------
    settings : ConsumerSettings
        Quanta, ordering key, number of workers.

    Attributes
    ----------
    queues : tuple of FairQueue
        One per worker queue, all with the same quanta, so that shares hold inside each. A single one without an
        ordering key.

    Notes
    -----
    A worker queue is served by one worker, and a fair queue returns the messages of one slot, or of one subkey of it,
    in the order in which they came: so messages of one key and one slot run in order, one at a time. The worker queues
    stand on a hash ring under names that do not depend on their number: with another number of workers most keys keep
    their worker queue.

    Safe from any thread; one thread at a time may put.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self._key = settings.ordering_key
        #: When slots take turns again that were throttled, on the clock of `time.monotonic`; some are over.
        self._throttled: dict[Hashable, float] = {}
        self._forget_at = _FORGET
        self._ended = False
        names = [f"lane-{number}" for number in range(settings.worker_queues)]
        self.queues = tuple(
            FairQueue(
                settings.quanta,
                default_quantum=settings.default_quantum,
                limit=settings.default_limit,
                total_limit=settings.options.limit,
                sparse_boost=settings.options.sparse_boost,
                subkey_quantum=None if settings.subkey is None else settings.cost.unit,
                priorities=settings.band is not None,
            )
            for _ in names
        )
        for worker_queue in self.queues:
            for slot, limit in settings.limits.items():
                worker_queue.set_limit(slot, limit)
            for slot, band in settings.bands.items():
                worker_queue.set_band(slot, band)
        self._named = dict(zip(names, self.queues, strict=True))
        self._ring = HashRing(dict.fromkeys(names, 1), points_per_weight=POINTS) if len(names) > 1 else None

    def of_worker(self, number: int) -> FairQueue:
        """Return the queue that a worker serves."""
        return self.queues[number % len(self.queues)]

    def only(self) -> FairQueue:
        """Return the queue of a consumer that has no more than one.

        Raises
        ------
        ConfigurationError
            If it has several: a thread that takes messages one by one has no worker queue of its own.
        """
        if len(self.queues) > 1:
            raise ConfigurationError(
                f"ordering_key with workers={len(self.queues)} makes that many worker queues, which run() serves; "
                "take messages one by one with workers=1, which keeps the order of every key too"
            )
        return self.queues[0]

    def place(self, message: Message) -> FairQueue:
        """Return the worker queue that a message belongs to; equal keys have the same one."""
        if self._ring is None or self._key is None:
            return self.queues[0]
        key = self._key(message)
        try:
            name = self._ring.route(key)  # type: ignore[arg-type]  # what it does not take, it refuses
        except (TypeError, ValueError, OverflowError):
            # A ring places text, bytes and 64-bit numbers. Other keys, such as times and tuples, go by their text.
            name = self._ring.route(ascii(key))
        return self._named[name]  # type: ignore[index]  # a ring with members always names one

    def put_many(
        self,
        slots: list[Hashable],
        messages: list[Message],
        costs: list[int] | None = None,
        subkeys: list[Hashable] | None = None,
        priorities: list[int] | None = None,
    ) -> list[Message]:
        """Queue messages, in their order, each in its worker queue; one put per worker queue.

        Returns
        -------
        list of Message
            Those that came too late: their worker queues are shut down, so that no worker takes messages any more.
        """
        if self._ring is None:
            return _put(self.queues[0], slots, messages, costs, subkeys, priorities)
        return self._put_in_worker_queues(slots, messages, costs, subkeys)

    def _put_in_worker_queues(
        self,
        slots: list[Hashable],
        messages: list[Message],
        costs: list[int] | None,
        subkeys: list[Hashable] | None,
    ) -> list[Message]:
        groups: dict[FairQueue, list[int]] = {}
        for index, message in enumerate(messages):
            groups.setdefault(self.place(message), []).append(index)
        refused: list[Message] = []
        for worker_queue, chosen in groups.items():
            prices = None if costs is None else [costs[index] for index in chosen]
            whose = None if subkeys is None else [subkeys[index] for index in chosen]
            refused += _put(
                worker_queue, [slots[index] for index in chosen], [messages[index] for index in chosen], prices, whose
            )
        return refused

    def add(self, settings: ConsumerSettings, names: Iterable[str]) -> None:
        """Add slots for queues that are new in the settings, unless slots are tenants."""
        if settings.key is not None:
            return
        for worker_queue in self.queues:
            for name in names:
                worker_queue.add_slot(name, settings.quanta[name])
                if settings.limits.get(name) is not None:
                    worker_queue.set_limit(name, settings.limits[name])
                if name in settings.bands:
                    worker_queue.set_band(name, settings.bands[name])

    def remove(self, settings: ConsumerSettings, name: str) -> None:
        """Forget the slot of a queue, as soon as it is idle, unless slots are tenants.

        Parameters
        ----------
        settings : ConsumerSettings
            Those that still have the queue.
        name : str
            The queue.
        """
        if settings.key is not None:
            return
        for worker_queue in self.queues:
            limit = settings.limit_of(name)
            if settings.limits.get(name) is not None:  # permits of the group stay until nothing is in hand
                worker_queue.set_limit(name, limit if limit is not None and limit.scope == "group" else None)
            if name in settings.bands:
                worker_queue.set_band(name, DEFAULT_BAND)
            worker_queue.retire(name)

    def take_back(self, queues: Collection[str]) -> list[Message]:
        """Take out and return what waits of queues, whatever its slots; the others keep their places."""
        return self._take_out(lambda message: message.queue in queues)

    def _take_out(self, chosen: Callable[[Message], bool]) -> list[Message]:
        found = []
        for worker_queue in self.queues:
            found += worker_queue.withdraw([one for one in worker_queue.items() if chosen(one)])
        return found

    def hold(self, slot: Hashable, held: bool, awaited: bool = True) -> bool:
        """Say of a slot, everywhere, whether more of it waits upstream; True if it was waited for till now in all.

        A full window says so of the queue as a whole, not of one worker queue's part of it; but keys spread over all
        worker queues, and what a worker queue runs out of sooner, because it has only a part, it must be able to wait
        for. Where nothing comes, no more than one turn was kept.
        """
        before = [worker_queue.hold(slot, held, awaited) for worker_queue in self.queues]
        return all(before)

    def throttle(self, slot: Hashable, seconds: float) -> None:
        """Let a slot take no turns for so long, in every worker queue; nothing happens if a queue is gone.

        Once deliveries have ended, its messages return to their queues.
        """
        for worker_queue in self.queues:
            with contextlib.suppress(KeyError):
                worker_queue.throttle(slot, seconds)
        now = time.monotonic()
        # Threads that change this at once may lose a slot: a stop then waits for it, as for any limit.
        self._throttled[slot] = max(now + seconds, self._throttled.get(slot, now))
        if len(self._throttled) > self._forget_at:
            self._throttled = {one: until for one, until in list(self._throttled.items()) if until > now}
            self._forget_at = max(_FORGET, 2 * len(self._throttled))
        if self._ended:
            self._return_throttled()

    def end(self) -> None:
        """Take no more messages. Those of throttled slots return: a stop would wait for the end of the throttle."""
        self._ended = True
        self.shutdown()
        self._return_throttled()

    def _return_throttled(self) -> None:
        now = time.monotonic()
        slots = {slot for slot, until in list(self._throttled.items()) if until > now}
        if not slots:
            return
        returned = sum(message.put_back() for message in self._take_out(lambda message: message.slot in slots))
        if returned:
            _log.info("%d messages of throttled queues or tenants return to their queues", returned)
        self.shutdown()  # wakes those that wait for a message: there may be none now

    def set_quanta(self, quanta: Mapping[Hashable, int]) -> None:
        """Change the quanta of slots, in every worker queue; what is here is served by them from now on."""
        for worker_queue in self.queues:
            for slot, quantum in quanta.items():
                worker_queue.set_quantum(slot, quantum)

    def anticipate(self, seconds: float) -> None:
        """Say for how long a held slot is waited for, in every worker queue, when its turn comes while it is empty."""
        for worker_queue in self.queues:
            worker_queue.anticipate(seconds)

    def outlook(self, slot: Hashable) -> SlotOutlook | None:
        """Return what stands before a slot's oldest message, with the figures of all queues; None: there is none.

        O(worker queues and slots with messages).
        """
        found: list[SlotOutlook] = []
        for worker_queue in self.queues:
            with contextlib.suppress(KeyError):
                found.append(worker_queue.outlook(slot))
        if not found:
            return None
        oldest = min(found, key=lambda one: math.inf if one.item is None else one.item.arrived)
        return oldest._replace(stats=functools.reduce(_added, (one.stats for one in found)))

    def subkeys(self, slot: Hashable) -> dict[Hashable, int]:
        """Return the number of messages that wait by subkey of a slot. O(subkeys of it)."""
        found: Counter[Hashable] = Counter()
        for worker_queue in self.queues:
            found.update(worker_queue.subkeys(slot))
        return found

    def shutdown(self) -> None:
        """Take no more messages; what is here can still be taken out."""
        for worker_queue in self.queues:
            worker_queue.shutdown()

    def leftovers(self) -> Iterator[Message]:
        """Take out and yield whatever is still here."""
        for worker_queue in self.queues:
            worker_queue.lift_limits()
            while True:
                try:
                    yield worker_queue.get(False, priority=_FIRST)[1]
                except (queue.Empty, ShutDown):
                    break

    def qsize(self) -> int:
        """Return the number of messages that wait."""
        return sum(worker_queue.qsize() for worker_queue in self.queues)

    def stats(self, by_priority: bool = False) -> dict[Hashable, SlotStats]:
        """Return the figures of every slot, added up over the worker queues; the quantum is that of one.

        `by_priority`: of every slot and priority of its messages, by (slot, priority).
        """
        merged: dict[Hashable, SlotStats] = {}
        for worker_queue in self.queues:
            for name, new in worker_queue.stats(by_priority).items():
                old = merged.get(name)
                merged[name] = new if old is None else _added(old, new)
        return merged

    def limits(self) -> dict[Hashable, LimitStats]:
        """Return what the limits of slots do; there are some in a single worker queue only. O(slots)."""
        if len(self.queues) != 1:
            return {}
        return {slot: one for slot, one in self.queues[0].limit_stats().items() if type(slot) is not JointName}

    def joint_limits(self) -> dict[Hashable, LimitStats]:
        """Return what named limits and the total do; there are some in a single worker queue only. O(slots)."""
        return {slot: one for slot, one in self.queues[0].limit_stats().items() if type(slot) is JointName}


def _put(
    worker_queue: FairQueue,
    slots: list[Hashable],
    messages: list[Message],
    costs: list[int] | None,
    subkeys: list[Hashable] | None,
    priorities: list[int] | None = None,
) -> list[Message]:
    """Queue messages in one worker queue; return them if it is shut down."""
    try:
        if priorities is not None:
            worker_queue.put_many(slots, messages, costs, priorities=priorities)
        elif subkeys is None:
            worker_queue.put_many(slots, messages, costs)
        else:
            worker_queue.put_many(slots, messages, costs, subkeys=subkeys)
    except ShutDown:
        return messages
    return []


def _added(one: SlotStats, other: SlotStats) -> SlotStats:
    return SlotStats(
        quantum=one.quantum,
        deficit=one.deficit + other.deficit,
        queued=one.queued + other.queued,
        served=one.served + other.served,
        work=one.work + other.work,
        held=one.held or other.held,
        at_limit=one.at_limit or other.at_limit,
    )
