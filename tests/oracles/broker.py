"""The brokers of the reference simulator, and the things of its world."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracles.chance import Random

from fairsched import CoDel


@dataclass(eq=False)
class Message:
    number: int
    created: int
    sent: int = 0
    arrived: int = 0
    ahead: int = 0
    started: int = 0
    returns: int = 0
    handled: bool = False


@dataclass(eq=False)
class Link:
    delay: int
    last: int = 0
    epoch: int = 0


@dataclass(eq=False)
class Queue:
    plan: Any
    random: Random
    fresh: int = 0
    stock: deque[int] = field(default_factory=deque)  # when the fresh ones came
    back: list[tuple[int, int, Message]] = field(default_factory=list)
    slots: deque[int] = field(default_factory=deque)
    came: int = 0
    consumers: int = 0
    epoch: int = 0

    def has(self) -> bool:
        return bool(self.plan.endless or self.stock or self.back)


@dataclass(eq=False)
class Slot:
    plan: Any
    random: Random
    window: int
    quantum: int
    service: Any
    unsettled: list[Message] = field(default_factory=list)
    coming: int = 0
    attached: bool = False
    law: CoDel | None = None
    served: int = 0
    repeated: int = 0
    returned: int = 0
    redelivered: int = 0
    busy: int = 0


class BrokerSide:
    """Arrivals, turns and settlements; the rest of the simulator is derived from it."""

    now: int
    queues: list[Queue]
    slots: list[Slot]
    gaps: list[int]
    down: list[Link]
    sources: list[int]
    pushing: list[tuple[int, Message] | None]
    turns: list[deque[int]]
    marked_brokers: deque[int]
    at: Callable[[int, int, Callable[[], None]], None]
    send: Callable[[Link, int, Callable[[], None]], None]
    link_of: Callable[[Slot], int]
    receive: Callable[[int, Message], None]

    def mark_broker(self, broker: int) -> None:
        if broker not in self.marked_brokers and self.pushing[broker] is None:
            self.marked_brokers.append(broker)

    def offer_queue(self, index: int) -> None:
        queue = self.queues[index]
        turns = self.turns[queue.plan.broker]
        if index not in turns and queue.slots and queue.has():
            turns.append(index)
        if index in turns:
            self.mark_broker(queue.plan.broker)

    def has_credit(self, slot: Slot) -> bool:
        return slot.attached and (slot.window == 0 or len(slot.unsettled) < slot.window)

    def offer_slot(self, index: int) -> None:
        slot = self.slots[index]
        queue = self.queues[slot.plan.queue]
        if index not in queue.slots and self.has_credit(slot):
            queue.slots.append(index)
        self.offer_queue(slot.plan.queue)

    def take(self, index: int, slot: Slot) -> Message:
        queue = self.queues[index]
        if queue.back:
            message = heapq.heappop(queue.back)[2]
            slot.redelivered += 1
        else:
            created = self.now if queue.plan.endless else queue.stock.popleft()
            message = Message(queue.fresh, created)
            queue.fresh += 1
        slot.unsettled.append(message)
        return message

    def dispatch(self, broker: int) -> None:
        turns = self.turns[broker]
        while self.pushing[broker] is None and turns:
            index = turns.popleft()
            queue = self.queues[index]
            chosen = None
            while queue.has() and queue.slots and chosen is None:
                candidate = queue.slots.popleft()
                chosen = candidate if self.has_credit(self.slots[candidate]) else None
            if chosen is None:
                continue
            slot = self.slots[chosen]
            message = self.take(index, slot)
            slot.coming += 1
            self.offer_slot(chosen)
            if self.gaps[broker] == 0:
                self.deliver(chosen, message)
            else:
                self.pushing[broker] = (chosen, message)
                push = self.pushing[broker]
                self.at(
                    self.now + self.gaps[broker], self.sources[4] + broker, lambda push=push: self.pushed(broker, push)
                )

    def pushed(self, broker: int, push: tuple[int, Message]) -> None:
        if self.pushing[broker] is push:
            self.pushing[broker] = None
            self.deliver(*push)
            self.mark_broker(broker)

    def deliver(self, index: int, message: Message) -> None:
        message.sent = self.now
        link = self.link_of(self.slots[index])
        self.send(self.down[link], self.sources[3] + link, lambda: self.receive(index, message))

    def give_back(self, index: int, message: Message) -> None:
        queue = self.queues[index]
        heapq.heappush(queue.back, (message.number, id(message), message))

    def settle(self, index: int, message: Message, back: bool) -> None:
        slot = self.slots[index]
        slot.unsettled.remove(message)
        if back:
            self.give_back(slot.plan.queue, message)
        self.offer_slot(index)

    def cancel(self, index: int) -> None:
        self.slots[index].attached = False
        self.queues[self.slots[index].plan.queue].consumers -= 1
