"""The consumers of the reference queue: which come and go, which are told of work, and what each would get."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from oracles.checks import check_callable, check_priority
from oracles.groups import Groups
from oracles.interest import INTERESTED, NON_ACQUIRING, NOTIFIED, ReferenceInterest
from oracles.kinds import ACQUIRED, AVAILABLE, HELD, Order, Stored
from oracles.subscription import ReferenceSubscription

from fairsched.errors import FairschedError, ShutDown

if TYPE_CHECKING:
    pass


class Waking:
    """The part of ReferenceQueue that knows its consumers."""

    clock: Callable[[], float]
    order: Order
    groups: Groups
    live_consumers: int
    closed: bool

    def __init__(self) -> None:
        self.consumers = ReferenceInterest()
        self.by_node: dict[int, ReferenceSubscription] = {}

    def remove(self, message: Stored, reason: str | None = None) -> None:
        raise NotImplementedError

    def listed(self, state: int) -> list[ReferenceSubscription]:
        return [self.by_node[node] for node in self.consumers.listed(state)]

    def free(self, group: Any) -> None:
        """A group has no owner: its messages may be for another, the first or, if none may have that, a later one."""
        waiting = [m for m in self.order.stored if m.state == AVAILABLE and group is not None]
        any(self.offer(message) for message in waiting if self.groups.of(message) == group)

    def tell_browsers(self, message: Stored) -> None:
        """It is new to every browser, or to those that may see it again."""
        for browser in self.listed(NON_ACQUIRING):
            if message.state == AVAILABLE and browser.wants(message) and message.number not in browser.passed:
                self.notify(browser)

    def offer(self, message: Stored) -> bool:
        """A message became available: tell one that may acquire it; False: none was told."""
        for consumer in self.listed(INTERESTED):
            if message.state != AVAILABLE:
                break
            if self.takes(consumer, message):
                if not self.no_higher_priority(consumer, message):
                    break
                self.claim(consumer, message)
                return True
        return False

    def notify(self, consumer: ReferenceSubscription) -> bool:
        if not consumer.acquires:
            consumer.notify()
            return True
        message = self.next_available(consumer)
        if message is None or consumer not in self.listed(INTERESTED):
            return False
        self.claim(consumer, message)
        return True

    def claim(self, consumer: ReferenceSubscription, message: Stored) -> None:
        """It is awaited from now on: until it pulls, or is not interested any more."""
        self.consumers.notify(consumer.node)
        consumer.told_of = message
        consumer.awaited = True
        consumer.notify()

    def takes(self, consumer: ReferenceSubscription, message: Stored) -> bool:
        """A consumer could have the message, if none above is to have it."""
        available = message.state == AVAILABLE and self.groups.allow(consumer, message)
        return available and consumer.acquires and consumer.wants(message)

    def covered(self, message: Stored) -> bool:
        """A consumer awaited was told of it, or as many are awaited that could take it as there are messages."""
        awaited = [consumer for consumer in self.listed(NOTIFIED) if consumer.awaited]
        if any(consumer.filter is not None and consumer.told_of is message for consumer in awaited):
            return True
        count = sum(consumer.filter is None and self.takes(consumer, message) for consumer in awaited)
        return 0 < len(self.order.waiting) <= count

    def offer_rest(self) -> None:
        """A consumer that was awaited has taken something: the rest is for another, unless it is awaited for that."""
        for consumer in self.listed(INTERESTED):
            message = self.next_available(consumer)
            if message is not None and not self.covered(message):
                self.claim(consumer, message)
                break

    def no_higher_priority(self, consumer: ReferenceSubscription, message: Stored) -> bool:
        """No consumer above that is ready is to have this message."""
        return not any(
            other.priority > consumer.priority and other.desired and self.takes(other, message)
            for other in (self.by_node[node] for node in self.consumers.all())
        )

    def hand_over(self) -> None:
        """A consumer is not interested any more: another may have to do its work."""
        any(self.notify(consumer) for consumer in self.listed(INTERESTED))

    def recompute(self, consumer: ReferenceSubscription) -> None:
        """Move a consumer to where it belongs by what it wishes, its credit, and the limit on live ones."""
        desired = consumer.desired
        if self.consumers.set(consumer.node, desired):
            if desired:
                self.notify(consumer)
            else:
                consumer.awaited = False
                self.hand_over()

    def next_available(self, consumer: ReferenceSubscription) -> Stored | None:
        while True:
            if consumer.acquires:
                message = self.order.first(lambda m: self.takeable(consumer, m))
            else:
                message = self.order.browse(lambda m: self.visible(consumer, m))
            if message is None or not self.expired(message):
                return message
            self.remove(message, "expired")

    def ready(self, message: Stored) -> bool:
        """No consumer has the message, and its time has come."""
        if message.state == HELD and message.not_before is not None and message.not_before < self.clock():
            message.state = AVAILABLE
            self.order.due(message)
        return message.state == AVAILABLE

    def come_due(self) -> list[Stored]:
        """Return the messages held until now, first due first."""
        held = [message for message in self.order.stored if message.state == HELD]
        return [m for m in sorted(held, key=lambda m: (m.not_before, m.number)) if self.ready(m)]

    def expired(self, message: Stored) -> bool:
        return message.state == AVAILABLE and message.expiry is not None and self.clock() > message.expiry

    def takeable(self, consumer: ReferenceSubscription, message: Stored) -> bool:
        """It would be the consumer's, or is found to have expired."""
        if not self.ready(message):
            return False
        if self.expired(message):
            return True
        return self.takes(consumer, message) and self.no_higher_priority(consumer, message)

    def visible(self, browser: ReferenceSubscription, message: Stored) -> bool:
        """A browser sees a message once, if it wants it when it comes to it; what another has then, it sees later."""
        if message.number in browser.passed:
            return False
        if message.state == ACQUIRED:
            browser.missed.add(message.number)
            return False
        browser.missed.discard(message.number)
        if self.ready(message) and (self.expired(message) or browser.wants(message)):
            return True
        browser.passed.add(message.number)
        return False

    def subscribe(
        self,
        name: str | None = None,
        *,
        priority: int = 0,
        acquires: bool = True,
        sees_requeues: bool = False,
        exclusive: bool = False,
        filter: Callable[[Any], Any] | None = None,
        credit: int | None = None,
        on_work: Callable[[Any], Any] | None = None,
        interested: bool = True,
    ) -> ReferenceSubscription:
        if self.closed:
            raise ShutDown("the queue is closed")
        self.check_exclusive(exclusive)
        check_priority(priority)
        check_callable("filter", filter)
        check_callable("on_work", on_work)
        consumer = ReferenceSubscription(cast(Any, self), name or "", priority, acquires, sees_requeues)
        consumer.name = name or f"subscription-{consumer.node}"
        consumer.exclusive, consumer.filter, consumer.on_work = exclusive, filter, on_work
        consumer.credit = credit  # moves nothing yet: the node is not registered
        consumer.wishes = interested
        consumer.live = not (acquires and self.live_consumers) or self.count_live() < self.live_consumers
        self.by_node[consumer.node] = consumer
        self.consumers.add(consumer.node, consumer.desired)
        if consumer.desired:
            self.notify(consumer)
        return consumer

    def check_exclusive(self, exclusive: bool) -> None:
        others = [consumer.name for consumer in self.by_node.values()]
        if any(consumer.exclusive for consumer in self.by_node.values()):
            raise FairschedError(f"the queue has an exclusive consumer: {others[0]!r}")
        if exclusive and others:
            raise FairschedError(f"a consumer cannot be exclusive beside others: {', '.join(others)}")

    def count_live(self) -> int:
        return sum(consumer.live and consumer.acquires for consumer in self.by_node.values())

    def cancel(self, consumer: ReferenceSubscription) -> None:
        if not consumer.open:
            return
        consumer.open = False
        was_desired = self.consumers.set(consumer.node, False)
        self.consumers.remove(consumer.node)
        del self.by_node[consumer.node]
        for group in self.groups.clear(consumer):
            self.free(group)
        following = next((other for other in self.by_node.values() if not other.live), None)
        if consumer.live and consumer.acquires and following is not None:
            following.live = True
            self.recompute(following)
        if was_desired:
            self.hand_over()
