"""A consumer of the reference queue, and what it pulls."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oracles.kinds import ACQUIRED, Stored

from fairsched.errors import ShutDown

if TYPE_CHECKING:
    from oracles.queue import ReferenceQueue

logger = logging.getLogger("fairsched.queue")


class ReferenceEntry:
    """A message that was pulled. The first of ack, release and reject decides and is True; later ones are False."""

    def __init__(self, subscription: ReferenceSubscription, message: Stored, paid: bool) -> None:
        self.subscription = subscription
        self.message = message
        self.paid = paid  # with credit
        self.item = message.item
        self.delivery_count = message.failed  # earlier deliveries, that were released
        self.redelivered = message.redelivered
        self.settled = False

    def ack(self) -> bool:
        """The message is done with, and leaves the queue."""
        return self.settle(self.subscription.queue.dequeue)

    def release(self) -> bool:
        """Back into the queue, where it stood: it counts as a delivery that failed."""
        return self.settle(self.subscription.queue.release)

    def reject(self) -> bool:
        """Back into the queue, for others: this consumer never sees it again. Not a delivery that failed."""
        if not self.settled:
            self.message.rejected_by.add(self.subscription)
        return self.settle(self.subscription.queue.take_back)

    def settle(self, then: Callable[[Stored], None]) -> bool:
        if self.settled:
            return False
        self.settled = True
        if self.paid:  # first of all: it may be this consumer that a released message is for
            self.subscription.give_credit(1)
        if self.subscription.acquires:
            assert self.message.state == ACQUIRED
            then(self.message)
        return True


class ReferenceSubscription:
    """The wishes a consumer told the queue: it wants work, it can take so much."""

    def __init__(self, owner: ReferenceQueue, name: str, priority: int, acquires: bool, sees_requeues: bool) -> None:
        self.queue = owner
        self.name = name
        self.priority = priority
        self.acquires = acquires
        self.sees_requeues = sees_requeues or acquires  # one that acquires always does
        self.exclusive = False
        self.filter: Callable[[Any], Any] | None = None
        self.on_work: Callable[[Any], Any] | None = None
        self.node = owner.consumers.make(priority, acquires)
        self.wishes = True
        self.left: int | None = None
        self.live = True
        self.open = True
        self.notified_count = 0
        self.pulled: list[ReferenceEntry] = []
        self.awaited = False  # it was notified, and has not pulled since
        self.told_of: Stored | None = None  # what it was notified for last
        self.passed: set[int] = set()  # a browser's: messages that it saw, or did not want when it came to them
        self.missed: set[int] = set()  # and those that others had then

    @property
    def desired(self) -> bool:
        """Whether the queue may count on this consumer."""
        return self.open and self.live and self.wishes and (self.left is None or self.left > 0)

    @property
    def interested(self) -> bool:
        """It says it is, has credit, and is among the live consumers."""
        return self.desired

    @interested.setter
    def interested(self, interested: bool) -> None:
        self.wishes = interested
        self.queue.recompute(self)

    @property
    def credit(self) -> int | None:
        """Messages it may still take; None: any number. Setting it says how many from now on."""
        return self.left

    @credit.setter
    def credit(self, credit: int | None) -> None:
        if credit is not None and (isinstance(credit, bool) or not isinstance(credit, int) or credit < 0):
            raise ValueError(f"credit must be None (no limit) or an integer that is not negative, got {credit!r}")
        self.left = credit
        self.queue.recompute(self)

    def give_credit(self, count: int) -> None:
        if self.left is not None:
            self.left += count
            self.queue.recompute(self)

    def pull(self) -> ReferenceEntry | None:
        """The next message for this consumer."""
        entry = self.queue.pull(self)
        if entry is not None:
            self.pulled.append(entry)
        return entry

    def pull_many(self, n: int) -> list[ReferenceEntry]:
        """Pull up to n times, until nothing comes."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ValueError(f"n must be an integer that is not negative, got {n!r}")
        entries: list[ReferenceEntry] = []
        while len(entries) < n and (entry := self.pull()) is not None:
            entries.append(entry)
        return entries

    def get(self, timeout: float | None = None) -> ReferenceEntry:
        """Pull; the reference does not wait."""
        entry = self.pull()
        if entry is not None:
            return entry
        if self.queue.closed or not self.open:
            raise ShutDown("the queue is closed" if self.queue.closed else "the subscription is cancelled")
        raise queue.Empty

    def cancel(self, release: bool = False) -> None:
        """Leave. What was pulled stays the consumer's, until it settles it; or it is all released now."""
        self.queue.cancel(self)
        for entry in sorted(self.pulled, key=lambda entry: self.queue.order.place(entry.message)) if release else ():
            if self.acquires:
                entry.release()

    def wants(self, message: Stored) -> bool:
        """Whether it would take the message (has_interest)."""
        if self in message.rejected_by:
            return False
        if self.filter is None:
            return True
        try:
            return bool(self.filter(message.item))
        except Exception:
            logger.exception("filter of %r failed; the message is not for it", self.name)
            return False

    def notify(self) -> None:
        """There is work (notify_work)."""
        self.notified_count += 1
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of %r failed", self.name)
