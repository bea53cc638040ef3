"""CoDel in a consumer: messages that waited here too long go back, so that another consumer can have them."""

from __future__ import annotations

import copy
import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from fairsched.consumer.message_bands import HIGHEST
from fairsched.consumer.requeueing.budget import Budget
from fairsched.errors import ConfigurationError
from fairsched.scheduling._codel import CoDel
from fairsched.stats import CoDelStats

if TYPE_CHECKING:
    from fairsched.consumer.requeueing.late_returns import LateReturns
    from fairsched.delivery._counters import Counters
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue

_log = logging.getLogger(__name__)

#: Messages of one slot that one pull returns at most, unless the law says otherwise.
MAX_RETURNS = 10
#: Laws of tenants that are kept although nothing of them is buffered.
_IDLE_LAWS = 1024


def checked_codel(codel: CoDel | None, *, ordered: bool) -> CoDel | None:
    """Check the `codel` of a consumer, and set the default of `max_returns`.

    Parameters
    ----------
    codel : CoDel or None
        As `Consumer` documents it.
    ordered : bool
        Whether there is an ordering key.

    Returns
    -------
    CoDel or None
        A copy with a `max_returns`; None without CoDel.

    Raises
    ------
    ConfigurationError
        If `codel` is something else, or messages would be requeued that must stay in order.
    """
    if codel is None:
        return None
    if not isinstance(codel, CoDel):
        raise ConfigurationError(f"codel must be a fairsched.CoDel or None, got {codel!r}")
    if ordered and codel.requeue:
        raise ConfigurationError(
            "codel with an ordering_key would break the order: what is behind a returned message overtakes it; "
            "use CoDel(requeue=False), which dead-letters messages that wait too long, or no ordering_key"
        )
    return CoDel(
        codel.target,
        codel.interval,
        min_backlog=codel.min_backlog,
        law=codel.law,
        max_returns=MAX_RETURNS if codel.max_returns is None else codel.max_returns,
        requeue=codel.requeue,
        budget=codel.budget,
        when_alone=codel.when_alone,
    )


class Shedding:
    """Asks a law about every message that is taken, and returns those that go back.

    Parameters
    ----------
    codel : CoDel
        The law, and what guards it; each slot has a copy, and each priority of messages in it.
    counters : Counters
        Counts ``shed`` (returned), ``kept_alone`` and ``kept_budget`` (would have been).
    alone : callable
        ``alone(queue)``: whether no other consumer has the queue.
    advice : callable
        Text on what would help a consumer that is alone.
    clock : callable
        That of `Message.arrived`.
    late_returns : LateReturns, optional
        Told of each message before it is requeued.

    Notes
    -----
    A message goes back by basic.nack, never by basic.reject, which a quorum queue counts as a failure. Requeued, it
    comes straight back where no other consumer has the queue, and the law slows nothing down: then it is kept.
    Dead-lettered (``requeue=False``), it cannot come back, and neither that nor the budget matters.

    Safe from any thread. O(1) for each message; a lock guards the laws, and the clock is read inside it.
    """

    def __init__(
        self,
        codel: CoDel,
        counters: Counters,
        alone: Callable[[str], bool],
        advice: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        late_returns: LateReturns | None = None,
    ) -> None:
        self._codel = codel
        self._late_returns = late_returns
        self._counters = counters
        self._alone = alone
        self._advice = advice
        self._clock = clock
        self._budget = Budget(codel.budget)
        self._laws: dict[tuple[int, Hashable, int | None], CoDel] = {}
        self._guard = threading.RLock()
        self._explained: set[str] = set()

    def returns(self, worker_queue: FairQueue, slot: Hashable, message: Message) -> bool:
        """Judge a message just taken from a slot of a worker queue; True if it was sent back."""
        priority = message.priority
        key = (id(worker_queue), slot, priority)
        with self._guard:
            law = self._laws.get(key)
            if law is None:
                law = self._laws[key] = copy.copy(self._codel)
            left = worker_queue.backlog(slot) if priority is None else worker_queue.backlog(slot, priority)
            now = self._clock()
            going = law.should_return(message.arrived, now, left)
            objection = self._objection(message) if going else ""
            if objection:
                law.spare()
            if left == 0 and len(self._laws) > _IDLE_LAWS:
                del self._laws[key]
        if not going:
            return False
        if objection:
            self._counters.add(objection)
            self._explain(objection, message, now)
            return False
        self._counters.add("shed")
        self._explain("shed", message, now)
        if self._codel.requeue and self._late_returns is not None:
            self._late_returns.returning(message)
        message.nack(self._codel.requeue)
        return True

    def _objection(self, message: Message) -> str:
        """Name the counter of the reason for which a message is kept, or nothing."""
        codel = self._codel
        if not codel.requeue:
            return ""
        if not codel.when_alone and self._alone(message.queue):
            return "kept_alone"
        return "" if self._budget.grant(message) else "kept_budget"

    def _explain(self, what: str, message: Message, now: float) -> None:
        """Log, the first time, what happens and why."""
        if what in self._explained:
            return
        self._explained.add(what)
        law = self._codel
        waited = f"message {message.delivery_tag} of queue {message.queue!r} waited {now - message.arrived:.3g} s here"
        beyond = f"messages have waited {law.target:g} s or more for longer than {law.interval:g} s"
        if what == "shed":
            where = "to its queue, for another consumer" if self._codel.requeue else "as a dead letter"
            _log.warning("%s, and %s: it is returned %s; further returns are only counted", waited, beyond, where)
        elif what == "kept_alone":
            _log.warning(
                "%s, and %s, but this queue has no other consumer, so it would be redelivered at once: it is kept. "
                "%s; CoDel(when_alone=True) returns it anyway", waited, beyond, self._advice(),
            )  # fmt: skip
        else:
            _log.info("%s, but has been returned %d times or may have been: it is kept", waited, self._codel.budget)

    def forget(self, slot: Hashable) -> None:
        """Forget the laws of a slot that is removed. O(slots)."""
        with self._guard:
            for key in [key for key in self._laws if key[1] == slot]:
                del self._laws[key]

    def law_of(self, worker_queues: Iterable[FairQueue], slot: Hashable) -> tuple[bool, CoDelStats] | None:
        """Return whether messages of a slot are being returned, and its figures in all queues; None: none yet."""
        priorities = (None, *range(HIGHEST + 1))
        with self._guard:
            laws = [
                law
                for worker_queue in worker_queues
                for priority in priorities
                if (law := self._laws.get((id(worker_queue), slot, priority))) is not None
            ]
            found = [(law.dropping, law.stats()) for law in laws]
        if not found:
            return None
        return any(dropping for dropping, _ in found), functools.reduce(_added, (stats for _, stats in found))

    def stats(self) -> dict[str, Any]:
        """Return the figures of the laws: by slot, those of all worker queues added up."""
        with self._guard:
            found = [(slot, law.stats(), law.dropping) for (_, slot, _), law in self._laws.items()]
        slots: dict[Hashable, CoDelStats] = {}
        for slot, new, _ in found:
            old = slots.get(slot)
            slots[slot] = new if old is None else _added(old, new)
        return {"slots": slots, "dropping": sorted({str(slot) for slot, _, dropping in found if dropping})}


def _added(one: CoDelStats, other: CoDelStats) -> CoDelStats:
    return CoDelStats(
        asked=one.asked + other.asked,
        returned=one.returned + other.returned,
        episodes=one.episodes + other.episodes,
        capped=one.capped + other.capped,
        spared=one.spared + other.spared,
        clock_steps=one.clock_steps + other.clock_steps,
        sojourn=max(one.sojourn, other.sojourn),
    )
