"""The simulator in plain Python, written for reading: every frame is an event of its own in one heap.

It runs the same plans as the compiled one, over the oracles of the schedule (reference.py) and the engine's own face of
the law, and must find the same histories and figures, to the nanosecond.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from oracles.broker import BrokerSide, Link, Message, Queue, Slot
from oracles.chance import NEVER, Random, arrivals, draw
from oracles.dwrr import ReferenceDwrr

from fairsched import CoDel


class Schedule(ReferenceDwrr):
    """The held amount is decided as a message is taken, for the slot that it is taken from."""

    def __init__(self, quanta: Any, patience: int, is_upstream: Callable[[Hashable], bool] | None) -> None:
        super().__init__(quanta, patience)
        self.is_upstream = is_upstream

    def serve(self, name: Hashable, slot: Any, now: int) -> Any:
        if self.is_upstream is not None and {self.is_upstream(name)} != {slot.held, slot.awaited}:
            self.hold(name, self.is_upstream(name))
        return super().serve(name, slot, now)


class ReferenceSimulator(BrokerSide):
    """One run of a plan without warm-up and timeline."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.now = 0
        self.heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self.messages: dict[int, Message] = {}  # in the schedules, by token
        self.serial = 0
        self.handled = 0
        self.rows: list[tuple[int, ...]] = []
        self.queues = [Queue(one, Random(one.seed)) for one in plan.queues]
        self.slots = [Slot(one, Random(one.seed), one.window, one.quantum, one.service) for one in plan.slots]
        self.up = [Link(delay) for delay in plan.delays]
        self.down = [Link(delay) for delay in plan.delays]
        self.gaps = list(plan.gaps)
        self.pushing: list[tuple[int, Message] | None] = [None] * len(plan.gaps)
        self.turns: list[deque[int]] = [deque() for _ in plan.gaps]
        self.marked_brokers: deque[int] = deque()
        self.marked_consumers: deque[int] = deque()
        self.schedules: list[ReferenceDwrr] = [self.schedule(one) for one in plan.consumers]
        self.state = ["absent"] * len(plan.consumers)
        self.first_worker = np.cumsum([0] + [one.workers for one in plan.consumers]).tolist()
        self.idle = [list(range(one.workers))[::-1] for one in plan.consumers]
        self.work: dict[tuple[int, int], tuple[int, Message, int]] = {}
        self.waits: list[int] = [0] * len(plan.consumers)  # generation of the patience
        self.sources = np.cumsum([
            1, len(plan.queues), len(plan.delays), self.first_worker[-1], len(plan.delays), len(plan.gaps)
        ]).tolist()  # fmt: skip

    # Events ----------------------------------------------------------------------------------------------------------

    def at(self, time: int, source: int, action: Callable[[], None]) -> None:
        self.serial += 1
        if time < NEVER:
            heapq.heappush(self.heap, (time, source, self.serial, action))

    def run(self) -> None:
        for index, queue in enumerate(self.queues):
            queue.stock.extend([0] * queue.plan.depth)
            queue.came = queue.plan.depth
            self.begin(index, queue.plan.arrivals)
        for change in self.plan.changes:
            self.at(change.time, 0, lambda change=change: self.change(change))
        while self.handled < self.plan.limit:
            if self.heap and self.heap[0][0] <= self.now:
                heapq.heappop(self.heap)[3]()
            elif self.marked_brokers:
                self.dispatch(self.marked_brokers.popleft())
            elif self.marked_consumers:
                self.begin_work(self.marked_consumers.popleft())
            elif not self.heap or self.heap[0][0] > self.plan.end:
                self.now = self.plan.end if self.plan.end < NEVER else self.now
                break
            else:
                self.now = self.heap[0][0]
        for slot, _message, since in self.work.values():
            self.slots[slot].busy += self.now - since

    def begin(self, index: int, plan: Any) -> None:
        queue = self.queues[index]
        queue.epoch += 1
        moments, epoch = arrivals(plan, self.now, queue.random), queue.epoch

        def schedule_next() -> None:
            moment = next(moments, NEVER)
            self.at(moment, self.sources[0] + index, arrive)

        def arrive() -> None:
            if queue.epoch != epoch:
                return
            queue.came += 1
            if not queue.plan.endless:
                queue.stock.append(self.now)
            schedule_next()
            self.offer_queue(index)

        schedule_next()

    def send(self, link: Link, source: int, action: Callable[[], None]) -> None:
        link.last = max(link.last, self.now + link.delay)
        epoch = link.epoch
        self.at(link.last, source, lambda: action() if link.epoch == epoch else None)

    def link_of(self, slot: Slot) -> int:
        return int(slot.plan.consumer * len(self.gaps) + self.queues[slot.plan.queue].plan.broker)

    def send_up(self, index: int, action: Callable[[], None]) -> None:
        link = self.link_of(self.slots[index])
        self.send(self.up[link], self.sources[1] + link, action)

    # Consumers -------------------------------------------------------------------------------------------------------

    def schedule(self, plan: Any) -> ReferenceDwrr:
        quanta = {index: self.slots[index].quantum for index in range(plan.first_slot, plan.first_slot + plan.slots)}
        return Schedule(quanta, plan.patience, self.is_upstream if plan.holds else None)

    def is_upstream(self, index: Any) -> bool:
        slot = self.slots[index]
        return slot.coming > 0 or self.queues[slot.plan.queue].has()

    def mark_consumer(self, number: int) -> None:
        if number not in self.marked_consumers and self.idle[number]:
            self.marked_consumers.append(number)

    def receive(self, index: int, message: Message) -> None:
        slot = self.slots[index]
        slot.coming -= 1
        if self.state[slot.plan.consumer] != "present":
            self.send_up(index, lambda: self.settle(index, message, True))
        else:
            self.buffer(index, message)

    def buffer(self, index: int, message: Message) -> None:
        slot = self.slots[index]
        schedule = self.schedules[slot.plan.consumer]
        message.arrived = self.now
        message.ahead = len(schedule)
        self.messages[id(message)] = message
        schedule.push(index, id(message), self.queues[slot.plan.queue].plan.cost)
        self.mark_consumer(slot.plan.consumer)

    def begin_work(self, number: int) -> None:
        while self.idle[number] and self.state[number] == "present":
            found = self.next_message(number)
            if found is None:
                return
            self.start(number, *found)

    def next_message(self, number: int) -> tuple[int, Message] | None:
        plan, schedule = self.plan.consumers[number], self.schedules[number]
        while True:
            found = schedule.pop(self.now)
            if found is None:
                return None
            self.waits[number] += 1
            if isinstance(found, int):
                self.look_again(number, found, self.waits[number])
                return None
            index, token = found
            message = self.messages.pop(token)
            if not self.sheds(number, index, message):
                return index, message
            schedule.settle(index, -self.queues[self.slots[index].plan.queue].plan.cost)
            message.returns += 1
            self.slots[index].returned += 1
            back = not plan.law.dead_letter
            self.send_up(index, lambda index=index, message=message, back=back: self.settle(index, message, back))

    def look_again(self, number: int, left: int, generation: int) -> None:
        def run_out() -> None:
            if self.waits[number] == generation:
                self.mark_consumer(number)

        self.at(self.now + left, self.sources[5] + number, run_out)

    def sheds(self, number: int, index: int, message: Message) -> bool:
        law, slot = self.plan.consumers[number].law, self.slots[index]
        if law is None or (not law.alone and self.queues[slot.plan.queue].consumers <= 1):
            return False
        backlog = len(self.schedules[number].slots[index].fifo)
        assert slot.law is not None
        asked = np.array([message.arrived], dtype=np.int64), np.array([self.now], dtype=np.int64)
        if not slot.law.should_return_many(*asked, np.array([backlog], dtype=np.int64))[0]:
            return False
        if message.returns >= law.budget:
            slot.law.spare()
            return False
        return True

    def start(self, number: int, index: int, message: Message) -> None:
        slot = self.slots[index]
        worker = self.idle[number].pop()
        message.started = self.now
        self.work[number, worker] = (index, message, self.now)
        done = self.now + draw(slot.service, slot.random)
        source = self.sources[2] + self.first_worker[number] + worker
        self.at(done, source, lambda: self.finish(number, worker, message))

    def finish(self, number: int, worker: int, message: Message) -> None:
        index, at_work, since = self.work.get((number, worker), (0, None, 0))
        if at_work is not message or self.now < since or message.started != since:
            return
        slot = self.slots[index]
        del self.work[number, worker]
        self.idle[number].append(worker)
        slot.busy += self.now - since
        slot.served += 1
        slot.repeated += message.handled
        message.handled = True
        self.handled += 1
        self.rows.append((
            index, message.number, message.created, message.sent, message.arrived, message.ahead, message.started,
            self.now, message.returns,
        ))  # fmt: skip
        self.send_up(index, lambda: self.settle(index, message, False))
        self.mark_consumer(number)

    # Changes ---------------------------------------------------------------------------------------------------------

    def change(self, change: Any) -> None:
        target = change.target
        if change.kind == "join":
            self.join(target)
        elif change.kind == "leave":
            self.leave(target)
        elif change.kind == "fail":
            self.fail(target)
        elif change.kind == "delay":
            self.up[target].delay = self.down[target].delay = change.amount
        elif change.kind == "service":
            self.slots[target].service = change.service
        elif change.kind == "window":
            self.slots[target].window = change.amount
            self.offer_slot(target)
        elif change.kind == "quantum":
            self.slots[target].quantum = change.amount
            if self.state[self.slots[target].plan.consumer] == "present":
                self.schedules[self.slots[target].plan.consumer].set_quantum(target, change.amount)
        elif change.kind == "gap":
            self.gaps[target] = change.amount
        else:
            self.begin(target, change.arrivals)

    def own(self, number: int) -> range:
        plan = self.plan.consumers[number]
        return range(plan.first_slot, plan.first_slot + plan.slots)

    def join(self, number: int) -> None:
        plan = self.plan.consumers[number]
        self.state[number] = "present"
        self.schedules[number] = self.schedule(plan)
        for index in self.own(number):
            slot = self.slots[index]
            slot.attached = True
            self.queues[slot.plan.queue].consumers += 1
            if plan.law is not None:
                law = plan.law
                slot.law = CoDel(
                    law.target / 1e9,
                    law.interval / 1e9,
                    min_backlog=law.min_backlog,
                    law=law.law,
                    max_returns=law.max_returns or None,
                )
            while plan.full and self.has_credit(slot) and self.queues[slot.plan.queue].has():
                message = self.take(slot.plan.queue, slot)
                message.sent = self.now - self.down[self.link_of(slot)].delay
                message.created = min(message.created, message.sent)
                self.buffer(index, message)
        for index in self.own(number):
            self.offer_slot(index)

    def leave(self, number: int) -> None:
        self.state[number] = "leaving"
        self.waits[number] += 1
        for index in self.own(number):
            self.send_up(index, lambda index=index: self.cancel(index))
            for token, _cost in self.schedules[number].slots[index].fifo:
                message = self.messages.pop(token)
                self.send_up(index, lambda index=index, message=message: self.settle(index, message, True))

    def fail(self, number: int) -> None:
        self.state[number] = "absent"
        self.waits[number] += 1
        for broker in range(len(self.gaps)):
            link = number * len(self.gaps) + broker
            for direction in (self.up[link], self.down[link]):
                direction.epoch += 1
                direction.last = 0
        for worker in range(self.plan.consumers[number].workers):
            if (number, worker) in self.work:
                index, _message, since = self.work.pop((number, worker))
                self.slots[index].busy += self.now - since
                self.idle[number].append(worker)
        for index in self.own(number):
            self.lose(index)

    def lose(self, index: int) -> None:
        slot = self.slots[index]
        broker = self.queues[slot.plan.queue].plan.broker
        push = self.pushing[broker]
        if push is not None and push[0] == index:
            self.pushing[broker] = None
            self.mark_broker(broker)
        for message in slot.unsettled:
            self.give_back(slot.plan.queue, message)
        slot.unsettled = []
        slot.coming = 0
        self.queues[slot.plan.queue].consumers -= slot.attached
        slot.attached = False
        self.offer_queue(slot.plan.queue)
