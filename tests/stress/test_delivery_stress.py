"""Settlements from many threads while the I/O thread delivers, sends, and loses its connection."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter

import pytest
from support.deliveries import ACK, REJECT, REQUEUE, Source
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import ShutDown
from fairsched.delivery._delivery import Message

pytestmark = pytest.mark.stress

THREADS = 16
MESSAGES = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "expensive" else 60_000


class Settler:
    """A thread that takes messages and settles them: at once, later, or twice."""

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.chance = source, random.Random(seed)
        self.verdicts: list[tuple[int, int, int, int]] = []
        self.calls = self.effective = 0
        self.later: list[Message] = []

    def run(self) -> None:
        try:
            while True:
                message = self.source.get(self.source.worker_queue, 0.02)
                if message is None:
                    self.settle_the_rest()
                elif self.chance.random() < 0.1 and len(self.later) < 4:
                    self.later.append(message)
                else:
                    self.settle(message)
                if self.later and self.chance.random() < 0.2:
                    self.settle(self.later.pop(0))
        except ShutDown:
            self.settle_the_rest()

    def settle_the_rest(self) -> None:
        while self.later:
            self.settle(self.later.pop())

    def settle(self, message: Message) -> None:
        what = self.chance.random()
        verdict = ACK if what < 0.9 else REQUEUE if what < 0.95 else REJECT
        # What is asked before the message is settled: the I/O thread may use the channel's number again after that.
        channel, connection = message.slot
        self.calls += 1
        done = message.ack() if verdict == ACK else message.nack(requeue=verdict == REQUEUE)
        if done:
            self.effective += 1
            self.verdicts.append((connection, channel, message.delivery_tag, verdict))
        assert not message.ack()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("channels", "window"), [(1, 200), (8, 40)])
def test_what_the_broker_hears_is_what_was_settled(channels: int, window: int) -> None:
    """No message is lost or acked twice, each verdict is that of the thread that settled it, and the counts add up."""
    source = Source(
        [b"%d" % number for number in range(MESSAGES)],
        channels,
        window,
        key=lambda message: (int(message.queue[2:]), source.broker.connection),
    )
    wake = threading.Event()
    source.asked = wake.set
    settlers = [Settler(source, seed) for seed in range(THREADS)]
    threads = [start(settler.run) for settler in settlers]
    broker, deadline = source.broker, time.monotonic() + 20 * SOON
    while broker.ready or any(broker.out.values()):
        source.deliver()
        if wake.wait(0.0005):
            wake.clear()
        source.send()
        if len(broker.gone) > (broker.connection + 1) * MESSAGES // 11:
            broker.lose_connection()
            source.connect()
        assert time.monotonic() < deadline, f"{len(broker.ready)} wait, out are {broker.out}"
        assert not [outcome for _, outcome in threads if outcome]
    source.worker_queue.shutdown()
    assert [result_of(thread) for thread in threads] == [None] * THREADS
    assert len(broker.gone) == MESSAGES
    assert set(broker.gone.values()) == {1}
    heard = Counter({(*where, verdict): 1 for where, verdict in broker.settled.items()})
    said = Counter(verdict for settler in settlers for verdict in settler.verdicts)
    assert not heard - said
    assert set(said.values()) == {1}
    counts = source.counters.snapshot()
    assert counts["acked"] + counts["nacked"] + counts["rejected"] == sum(settler.effective for settler in settlers)
    assert counts["stale_settlements"] == sum(settler.calls - settler.effective for settler in settlers)
    assert not source.settlements.waiting
    assert broker.connection == 10


@pytest.mark.timeout(600)
def test_no_duration_is_lost() -> None:
    """The histograms of a queue are counted in by all workers, and read meanwhile."""
    source = Source([b""] * (MESSAGES // 3), 2, 500)
    queues = ["q-1", "q-2"]
    handled: list[int] = []

    def work() -> None:
        count = 0
        try:
            while True:
                message = source.try_get(source.worker_queue)
                if message is not None:
                    source.handled(source.worker_queue, message, 1000)
                    message.ack()
                    count += 1
        except ShutDown:
            handled.append(count)

    def counts(name: str) -> list[int]:
        return [sum(source.counters.durations(queue).snapshot()[name][0]) for queue in queues]

    threads = [start(work) for _ in range(THREADS // 2)]
    broker, before, deadline = source.broker, [0, 0], time.monotonic() + 20 * SOON
    while broker.ready or any(broker.out.values()):
        source.deliver()
        source.send()
        before, found = counts("sojourn"), before
        assert all(now >= then for now, then in zip(before, found, strict=True))
        assert time.monotonic() < deadline
    source.worker_queue.shutdown()
    assert [result_of(thread) for thread in threads] == [None] * len(threads)
    assert sum(handled) == MESSAGES // 3
    assert sum(counts("sojourn")) == sum(counts("service")) == sum(handled)
    assert sum(source.counters.durations(queue).snapshot()["service"][1] for queue in queues) == pytest.approx(
        sum(handled) * 1e-6
    )
