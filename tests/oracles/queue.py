"""The pull queue in plain Python, for one thread: the oracle that the compiled queue is held against.

Source: Qpid Broker-J's AbstractQueue (its walks, in their order), with its known defects mended, and without its
pointers: a pull gets the first message, in the order of service, that it may have. What was open is settled so:

Interest. A consumer is in `interested` or `notified` while it wishes, has credit, and is live. The last credit flips
    that before any consumer looks, and the hand-over to others follows the acquire, so that a backlog does not stall.
Priorities. A message is for the consumer of the highest priority that is ready and could take it, busy or not; who
    pulls goes past what is for those above, and gets the next that is not.
Wake-ups. A message that is put, released, rejected, un-held, or freed with its group wakes every browser that is to see
    it, and at most one consumer: a released message does not wake all. One that subscribes, or becomes interested, is
    woken when there is something for it; a browser always is, and no priority is above it. on_work(subscription) may
    pull; if it raises, that is logged.
Busy consumers. A woken one need not come back after its first message: with that, the rest is offered to one other
    that may take some of it, unless one woken before is still to come for it.
Credit. A pull takes one, if there is a limit; settling gives back what was taken: before the message moves, so that a
    release may be for its releaser.
Keys. put(key=...) is all: what sorted and last-value queues go by, and the name of the message's group. Without it the
    queue's own key(item), if there is one.
Holds. Until the clock is past not_before (seconds of the queue's clock) a message counts as available and is not
    handed out. It is let go by expire(), or by a pull that comes to it; other messages may overtake it. A held message
    does not expire.
Expiry. When the clock is past the time of put + ttl, the smaller of the message's and the queue's: noticed by expire(),
    by a pull that comes to it, or when it is released. Acquired messages do not expire.
Attempts. delivery_count is 0 at first, and one more for each release. With the max_deliveries-th release the message
    goes to the alternate: a queue with put(), or a callable(item, reason); reasons: "expired", "delivery_limit",
    "closed". Without one, it is dropped. A ring drops, and so does a last-value queue. What the alternate raises an
    exception for is kept in undelivered, and offered to it again by expire().
Overflow. ring: drops the oldest that is not acquired, nor the one just put. reject: queue.Full. flow: a put that
    does not fit, and every one after that, waits until depth and bytes are at most 80 % of the limits, rounded up;
    here, queue.Full. What never fits waits for an empty queue.
Cancel. It is gone; its groups are free, and the first message of each is offered; the next consumer becomes live; and
    then it is as with any consumer that is not interested any more: what it was to do is handed over.
Close. ShutDown for a put, a subscribe, or a get when nothing is left. What is left may be pulled. What is released
    goes to the alternate, if there is one.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from oracles.checks import (
    GROUPS,
    OVERFLOWS,
    check_alternate,
    check_callable,
    check_choice,
    check_duration,
    check_number,
    check_quanta,
    check_time,
)
from oracles.groups import Groups
from oracles.interest import INTERESTED, NON_ACQUIRING, NOT_INTERESTED, NOTIFIED
from oracles.kinds import ACQUIRED, AVAILABLE, GONE, HELD, KINDS, Levels, Stored, order_of
from oracles.subscription import ReferenceEntry, ReferenceSubscription
from oracles.waking import Waking

from fairsched.errors import ShutDown

logger = logging.getLogger("fairsched.queue")

LISTS = {
    "interested": INTERESTED,
    "notified": NOTIFIED,
    "not_interested": NOT_INTERESTED,
    "non_acquiring": NON_ACQUIRING,
}


class ReferenceQueue(Waking):
    """fairsched.pullqueue.PullQueue, read slowly."""

    def __init__(
        self,
        kind: str = "standard",
        *,
        levels: int = 10,
        key: Callable[[Any], Any] | None = None,
        quanta: Mapping[Hashable, int] | None = None,
        max_depth: int = 0,
        max_bytes: int = 0,
        overflow: str = "none",
        ttl: float | None = None,
        groups: str | None = None,
        live_consumers: int = 0,
        max_deliveries: int = 0,
        alternate: Any = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_choice("kind", kind, KINDS)
        check_choice("overflow", overflow, OVERFLOWS)
        check_choice("groups", groups, GROUPS)
        check_number("levels", levels, 1)
        for name, limit in {"max_depth": max_depth, "max_bytes": max_bytes, "live_consumers": live_consumers}.items():
            check_number(name, limit)
        check_number("max_deliveries", max_deliveries)
        check_duration("ttl", ttl)
        check_quanta(kind, quanta)
        check_alternate(alternate)
        check_callable("key", key)
        check_callable("clock", clock)
        super().__init__()
        self.order = order_of(kind, levels, quanta)
        self.key = key
        self.limits = (max_depth, max_bytes)
        self.overflow = overflow
        self.ttl = ttl
        self.groups = Groups(groups)
        self.live_consumers = live_consumers
        self.max_deliveries = max_deliveries
        self.alternate = alternate
        self.undelivered: deque[tuple[Any, str]] = deque()
        self.clock = clock or time.monotonic
        self.arrivals = 0
        self.stopped = False
        self.closed = False

    # -- what it holds ------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages in the queue, acquired ones included."""
        return len(self.order.stored)

    @property
    def available(self) -> int:
        """Messages that are not acquired, held ones included."""
        return len(self.order.waiting)

    @property
    def bytes(self) -> int:
        return sum(message.size for message in self.order.stored)

    def lists(self) -> dict[str, list[str]]:
        return {name: [consumer.name for consumer in self.listed(state)] for name, state in LISTS.items()}

    def over(self, depth: int, size: int, share: float = 1.0) -> bool:
        return any(
            limit and value > math.ceil(share * limit) for limit, value in zip(self.limits, (depth, size), strict=True)
        )

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(
        self,
        item: Any,
        *,
        priority: int = 4,
        key: Any = None,
        slot: Hashable = None,
        size: int = 0,
        ttl: float | None = None,
        not_before: float | None = None,
    ) -> None:
        check_number("size", size)
        check_duration("ttl", ttl)
        check_time("not_before", not_before)
        check_number("priority", priority, -(2**63))
        self.order.check_slot(slot)
        if self.closed:
            raise ShutDown("the queue is closed")
        self.admit(size)
        if key is None and self.key is not None:
            key = self.key(item)
        message = Stored(self.arrivals, item, key, slot=slot, size=size, not_before=not_before)
        self.arrivals += 1
        if isinstance(self.order, Levels):
            message.level = self.order.level_of(priority)
        lifetimes = [seconds for seconds in (ttl, self.ttl) if seconds is not None]
        message.expiry = self.clock() + min(lifetimes) if lifetimes else None
        if not_before is not None and not_before >= self.clock():
            message.state = HELD
        for older in self.order.add(message):
            self.remove(older)
        self.tell_browsers(message)
        self.offer(message)
        if self.overflow == "ring":
            self.shrink(message)

    def admit(self, size: int) -> None:
        """Refuse what does not fit."""
        if self.overflow == "ring" and self.over(0, size):
            raise queue.Full(f"a message of {size} bytes exceeds max_bytes {self.limits[1]}")
        fits = not self.over(self.depth + 1, self.bytes + size)
        if self.overflow == "flow":
            self.stopped = self.stopped or (not fits and self.depth > 0)
        if self.stopped or (self.overflow == "reject" and not fits):
            raise queue.Full

    def shrink(self, newest: Stored | None) -> None:
        """A ring gives up what is worth least."""
        for victim in self.order.victims():
            if not self.over(self.depth, self.bytes):
                break
            if victim is not newest and victim.counts_as_available:
                self.remove(victim)

    def remove(self, message: Stored, reason: str | None = None) -> None:
        """It leaves the queue; with a reason, for the alternate."""
        message.state = GONE
        self.order.remove(message)
        self.stopped = self.stopped and self.over(self.depth, self.bytes, 0.8)
        if reason is not None and self.alternate is not None:
            self.deliver(message.item, reason)

    def deliver(self, item: Any, reason: str) -> None:
        """To the alternate, or kept."""
        try:
            if hasattr(self.alternate, "put"):
                self.alternate.put(item)
            else:
                self.alternate(item, reason)
        except Exception:
            logger.exception("the alternate failed")
            self.undelivered.append((item, reason))

    # -- pulling ------------------------------------------------------------------------------------------------------

    def pull(self, consumer: ReferenceSubscription) -> ReferenceEntry | None:
        if not consumer.open:
            return None
        self.consumers.done(consumer.node)  # before looking, so that a put meanwhile finds it interested
        if not consumer.desired:
            return None
        awaited, consumer.awaited = consumer.awaited, False
        message = self.next_available(consumer)
        if message is None:
            self.pass_on(consumer)
            return None
        if consumer.acquires:
            self.order.take(message, lambda m: self.takeable(consumer, m))
            message.state = ACQUIRED
            self.groups.acquired(consumer, message)
        else:
            consumer.passed.add(message.number)
        paid = consumer.left is not None
        if consumer.left is not None:
            consumer.left -= 1
        if consumer.desired:
            self.consumers.notify(consumer.node)
            if awaited:
                self.offer_rest()
        else:
            self.recompute(consumer)
        return ReferenceEntry(consumer, message, paid)

    def pass_on(self, consumer: ReferenceSubscription) -> None:
        """It found nothing; what there is may be for another."""
        if consumer.acquires and self.available:
            any(self.notify(other) for other in self.listed(INTERESTED) if other is not consumer)

    # -- settling -----------------------------------------------------------------------------------------------------

    def dequeue(self, message: Stored) -> None:
        self.remove(message)
        self.free(self.groups.settled(message))

    def release(self, message: Stored) -> None:
        message.failed += 1
        self.take_back(message, self.max_deliveries)

    def take_back(self, message: Stored, limit: int = 0) -> None:
        message.redelivered = True
        group = self.groups.settled(message)
        message.state = AVAILABLE  # for the call that sees that it has expired
        if self.closed and self.alternate is not None:
            self.remove(message, "closed")
        elif limit and message.failed >= limit:
            self.remove(message, "delivery_limit")
        elif message.superseded:
            self.remove(message)
        elif self.expired(message):
            self.remove(message, "expired")
        else:
            if self.back_in_line(message):
                return  # the consumer that is told of it gets the group
        self.free(group)

    def back_in_line(self, message: Stored) -> bool:
        """Whether a consumer was told of it."""
        self.order.give_back(message)
        if self.overflow == "ring":
            self.shrink(None)
        for browser in self.listed(NON_ACQUIRING):
            again = browser.sees_requeues and message.number in browser.passed
            if again or message.number in browser.missed:
                browser.passed.discard(message.number)
                browser.missed.discard(message.number)
                if browser.wants(message):
                    self.notify(browser)
        return self.offer(message)

    def expire(self) -> None:
        """Let go of what was held until now, drop what has expired, and offer what is kept to the alternate again."""
        kept = len(self.undelivered)
        for message in self.come_due():
            for consumer in self.by_node.values():
                consumer.passed.discard(message.number)
            if not self.expired(message):
                self.tell_browsers(message)
                self.offer(message)
        for message in list(self.order.stored):
            if self.expired(message):
                self.remove(message, "expired")
        for _ in range(kept):
            self.deliver(*self.undelivered.popleft())

    def close(self) -> list[tuple[Any, str]]:
        self.closed = True
        return list(self.undelivered)
