"""What is measured against: the article's loop, with and without pika, and a plain Python O(1) deficit round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import pika

#: The article's prefetch, per queue, and its message weight.
PREFETCH, WEIGHT = 50, 4


def consume_as_the_article(url: str, quanta: dict[str, int], handle: Callable[[str], bool]) -> None:
    """Consume by the article's loop: a deque and a deficit per queue, one connection, one channel, each message acked.

    Until `handle`, called with the name of a queue for each of its messages, returns False.
    """
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    buffers: dict[str, deque[int]] = {queue: deque() for queue in quanta}
    deficits = dict.fromkeys(quanta, 0)
    for queue, buffer in buffers.items():
        channel.basic_consume(queue, lambda _c, method, _p, _b, buffer=buffer: buffer.append(method.delivery_tag))
    going = True
    while going:
        connection.process_data_events(0 if any(buffers.values()) else 5)
        for queue, buffer in buffers.items():
            deficits[queue] += quanta[queue]
            while going and buffer and deficits[queue] >= WEIGHT:
                tag = buffer.popleft()
                deficits[queue] -= WEIGHT
                going = handle(queue)
                channel.basic_ack(tag)
            if not buffer:
                deficits[queue] = 0
    connection.close()


class ArticleLoop:
    """The main loop of "Fair Consuming With RabbitMQ": one deque per slot, every slot looked at in every round."""

    def __init__(self, quanta: dict[Hashable, int], weight: int = 1) -> None:
        self.slots = list(quanta)
        self.fifos: dict[Hashable, deque[Any]] = {slot: deque() for slot in quanta}
        self.quanta = quanta
        self.deficits = dict.fromkeys(quanta, 0)
        self.weight = weight

    def push(self, slot: Hashable, item: Any) -> None:
        self.fifos[slot].append(item)

    def drain(self) -> list[tuple[Hashable, Any]]:
        """Serve until a round found nothing."""
        served = []
        while True:
            before = len(served)
            for slot in self.slots:
                fifo = self.fifos[slot]
                deficit = self.deficits[slot] + self.quanta[slot]
                while fifo and deficit >= self.weight:
                    served.append((slot, fifo.popleft()))
                    deficit -= self.weight
                self.deficits[slot] = deficit if fifo else 0
            if len(served) == before:
                return served


class PlainDrr:
    """Deficit round robin with an active list, in plain Python: O(1) a message."""

    def __init__(self, quanta: dict[Hashable, int]) -> None:
        self.quanta = quanta
        self.fifos: dict[Hashable, deque[tuple[Any, int]]] = {slot: deque() for slot in quanta}
        self.deficits = dict.fromkeys(quanta, 0)
        self.active: deque[Hashable] = deque()
        self.granted = False

    def put(self, slot: Hashable, item: Any, cost: int = 1) -> None:
        fifo = self.fifos[slot]
        if not fifo:
            self.active.append(slot)
        fifo.append((item, cost))

    def get(self) -> tuple[Hashable, Any]:
        while True:
            slot = self.active[0]
            if not self.granted:
                self.deficits[slot] += self.quanta[slot]
                self.granted = True
            fifo = self.fifos[slot]
            if fifo[0][1] <= self.deficits[slot]:
                item, cost = fifo.popleft()
                self.deficits[slot] -= cost
                if not fifo:
                    self.deficits[slot] = 0
                    self.active.popleft()
                    self.granted = False
                return slot, item
            self.active.rotate(-1)
            self.granted = False
