"""The experiment of ``fairsched bench``: one tenant floods a worker that others share, and how long these wait.

Each contestant gets the same messages at the same times, over a broker, and handles them one at a time in one thread:
first the flood, all of which is there when it begins, then what quiet tenants publish while it works.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fairsched.amqp.urls import parameters
from fairsched.cli.broker import Session, temporary_queues
from fairsched.config.lanes import Lanes
from fairsched.consumer import Consumer
from fairsched.fairness import jain
from fairsched.publisher import Publisher

#: Prefetch count of each queue, for the contestants that have one; and of all lanes together.
PREFETCH, PREFETCH_LANES = 20, 50
#: Part of the flood's duration in which quiet tenants publish.
_DURING = 0.8
#: Longest wait for a handled message, in seconds.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of messages and tenants, and the duration of a message.

    Parameters
    ----------
    flood : int
        Messages of the tenant that floods.
    tenants : int
        Quiet tenants.
    each : int
        Messages of each quiet tenant.
    service_time : float
        Seconds that the handler takes for a message.
    seed : int
        Random seed of the times at which quiet tenants publish.
    """

    flood: int = 3000
    tenants: int = 99
    each: int = 5
    service_time: float = 0.001
    seed: int = 1

    @property
    def total(self) -> int:
        """Messages of all tenants."""
        return self.flood + self.tenants * self.each

    def tenant(self, number: int) -> int:
        """Return the tenant of a message; 0 is the flooding one."""
        return 0 if number < self.flood else 1 + (number - self.flood) % self.tenants

    def schedule(self) -> list[tuple[float, int]]:
        """Return the messages of quiet tenants by time: seconds since the start, and number."""
        draw = random.Random(self.seed)
        span = _DURING * self.flood * self.service_time
        return sorted((draw.uniform(0, span), number) for number in range(self.flood, self.total))


@dataclass(slots=True)
class Record:
    """The messages that were handled, with their times.

    Parameters
    ----------
    plan : Plan
        What is to be handled.

    Notes
    -----
    `handle` is for one thread, `published` for another.
    """

    plan: Plan
    #: Numbers of messages in the order of handling, and the times at which handling began, in seconds.
    order: list[int] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    #: Times at which messages of quiet tenants were published, and the number handled by then.
    published: dict[int, tuple[float, int]] = field(default_factory=dict)
    ended: float = 0.0
    begun: threading.Event = field(default_factory=threading.Event)

    def handle(self, body: bytes) -> bool:
        """Handle a message; return False for the last one."""
        number = int(body)
        now = time.perf_counter()
        self.started[number] = now
        self.order.append(number)
        self.begun.set()
        time.sleep(self.plan.service_time)
        self.ended = time.perf_counter()
        return len(self.order) < self.plan.total


class Outcome(NamedTuple):
    """The waits of quiet tenants with one contestant, and its rate.

    Parameters
    ----------
    name : str
        The contestant.
    p50, p99, longest : float
        Seconds that messages of quiet tenants waited, from publishing to the begin of the handler.
    lag : int
        The most messages that were handled while a message of a quiet tenant waited.
    jain : float
        Jain's index of the quiet tenants' mean waits: 1 if all waited alike.
    rate : float
        Messages handled a second.
    waits : sequence of (float, float)
        For each message of a quiet tenant: when it was published, in seconds, and how long it waited.
    """

    name: str
    p50: float
    p99: float
    longest: float
    lag: int
    jain: float
    rate: float
    waits: Sequence[tuple[float, float]]


def outcome(name: str, record: Record) -> Outcome:
    """Summarize a complete record."""
    plan = record.plan
    begin = min(record.started.values())
    place = {number: at for at, number in enumerate(record.order)}
    rows = [
        (number, at - begin, record.started[number] - at, place[number] - handled)
        for number, (at, handled) in sorted(record.published.items())
    ]
    waited = np.maximum([wait for _, _, wait, _ in rows], 0.0)
    by_tenant: Counter[int] = Counter()
    for (number, *_), wait in zip(rows, waited.tolist(), strict=True):
        by_tenant[plan.tenant(number)] += wait
    p50, p99 = np.quantile(waited, (0.5, 0.99), method="inverted_cdf").tolist()
    return Outcome(
        name,
        p50,
        p99,
        longest=float(waited.max()),
        lag=max(0, *(lag for *_, lag in rows)),
        jain=jain(by_tenant.values()),
        rate=plan.total / (record.ended - begin),
        waits=[(at, float(wait)) for (_, at, _, _), wait in zip(rows, waited, strict=True)],
    )


# The contestants: each takes the broker's URL, its queues by tenant and what handles a body ---------------------------

Handle = Callable[[bytes], bool]


def _pika(url: str, queues: Sequence[str], handle: Handle) -> None:
    """Handle messages as pika's BlockingConnection delivers them."""
    with _channel(url) as channel:

        def on_message(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            more = handle(body)
            channel.basic_ack(method.delivery_tag)
            if not more:
                channel.stop_consuming()

        channel.basic_qos(prefetch_count=PREFETCH)
        for queue in queues:
            channel.basic_consume(queue, on_message)
        channel.start_consuming()


def _round_robin(url: str, queues: Sequence[str], handle: Handle) -> None:
    """Request a message from one queue after the other, as kombu's FairCycle does."""
    with _channel(url) as channel:
        cycle = list(queues)
        while True:
            for queue in cycle:
                method, _, body = channel.basic_get(queue)
                if method is not None:
                    # A queue that had a turn is asked last.
                    cycle.remove(queue)
                    cycle.append(queue)
                    more = handle(body)
                    channel.basic_ack(method.delivery_tag)
                    if not more:
                        return
                    break


def _fairsched(url: str, queues: Sequence[str], handle: Handle) -> None:
    """Handle messages in the order of fairsched's consumer, with equal weights."""
    _run(Consumer(url, dict.fromkeys(queues, 1), prefetch=dict.fromkeys(queues, PREFETCH)), handle)


def _lanes(url: str, queues: Sequence[str], handle: Handle) -> None:
    """Handle messages of one name that is spread over lanes, tenants with equal weights."""
    _run(Consumer(url, _lanes_of(queues[0]), prefetch=PREFETCH_LANES), handle)


def _lanes_of(name: str) -> Lanes:
    return Lanes(name, key="header:tenant")


def _run(consumer: Consumer, handle: Handle) -> None:
    def on_message(message: Any) -> None:
        if not handle(message.body):
            consumer.stop()

    consumer.run(on_message)


@contextmanager
def _channel(url: str) -> Iterator[Any]:
    import pika

    connection = pika.BlockingConnection(parameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


class Contestant(NamedTuple):
    """A way of consuming, with its name."""

    #: Short name, and description in a sentence.
    name: str
    description: str
    #: Whether all tenants share one queue, or one name of lanes.
    shared: bool
    consume: Callable[[str, Sequence[str], Handle], None]
    #: Whether that name is spread over lanes.
    spread: bool = False


CONTESTANTS = (
    Contestant("FIFO", "one queue for all tenants, pika", True, _pika),
    Contestant("pika", "one queue per tenant, pika, in the order of delivery", False, _pika),
    Contestant("round robin", "one queue per tenant, basic.get from each in turn, as kombu's FairCycle", False,
               _round_robin),
    Contestant("fairsched", "one queue per tenant, deficit round robin with equal weights", False, _fairsched),
    Contestant("lanes", "one name for all tenants, which fairsched spreads over lanes", True, _lanes, spread=True),
)  # fmt: skip


def run(contestant: Contestant, url: str, plan: Plan) -> Outcome:
    """Have a contestant handle everything, over queues of its own that are deleted in the end.

    Parameters
    ----------
    contestant : Contestant
        The consumers.
    url : str
        The broker.
    plan : Plan
        What is published.

    Returns
    -------
    Outcome
        Its figures.

    Raises
    ------
    ConnectionFailed
        If the broker cannot be reached or refuses.
    """
    prefix = f"fairsched.bench.{uuid.uuid4().hex}."
    names = [f"{prefix}{number}" for number in range(1 if contestant.shared else 1 + plan.tenants)]
    record = Record(plan)
    with (_flooded_lanes if contestant.spread else _flooded_queues)(url, names, plan) as publisher:
        # It connects before the clock runs.
        quiet = _Quiet(plan, record, publisher, names)
        quiet.start()
        try:
            contestant.consume(url, names, record.handle)
        finally:
            quiet.stop()
    return outcome(contestant.name, record)


@contextmanager
def _flooded_queues(url: str, names: Sequence[str], plan: Plan) -> Iterator[Publisher]:
    """Put the flood into the first queue; yield what publishes to all, and delete them in the end."""
    flood = iter(b"%d" % number for number in range(plan.flood))
    bodies: Mapping[str, Iterator[bytes]] = {name: flood if name is names[0] else iter(()) for name in names}
    with temporary_queues(url, bodies), Publisher(url) as publisher:
        yield publisher


@contextmanager
def _flooded_lanes(url: str, names: Sequence[str], plan: Plan) -> Iterator[Publisher]:
    """Publish the flood to a name that is spread over lanes; yield what publishes to it, and delete the lanes."""
    lanes = _lanes_of(names[0])
    try:
        with Publisher(url, lanes=lanes) as publisher:
            for number in range(plan.flood):
                publisher.publish(b"%d" % number, lanes.name, headers={"tenant": 0}, delivery_mode=1)
            publisher.flush()
            yield publisher
    finally:
        with Session(url) as session:
            session.delete(*lanes.bucket_names, *map(lanes.own_lane_of, range(1 + plan.tenants)), lanes.registry)
            for exchange in lanes.registry, lanes.layout:
                session.ask("exchange_delete", exchange)


class _Quiet(threading.Thread):
    """Publishes for the quiet tenants, starting with the first handled message."""

    def __init__(self, plan: Plan, record: Record, publisher: Publisher, names: Sequence[str]) -> None:
        super().__init__(name="fairsched-bench-publisher", daemon=True)
        self._plan, self._record, self._publisher, self._names = plan, record, publisher, names
        self._stopped = threading.Event()

    def run(self) -> None:
        plan, record = self._plan, self._record
        if not record.begun.wait(_PATIENCE):
            return
        begin = time.perf_counter()
        for offset, number in plan.schedule():
            if self._stopped.wait(max(0.0, begin + offset - time.perf_counter())):
                return
            record.published[number] = time.perf_counter(), len(record.order)
            tenant = plan.tenant(number)
            self._publisher.publish(
                b"%d" % number, self._names[tenant % len(self._names)], headers={"tenant": tenant}, delivery_mode=1
            )

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopped.set()
        self._record.begun.set()
        self.join()
