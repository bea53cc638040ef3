"""Threads that consume, as fast as they can or not, on a connection that is lent, cut, and lost."""

from __future__ import annotations

import random
import threading
import time

import pytest
from support.deliveries import ACK, REJECT, REQUEUE
from support.lent import LentSource, Peer
from support.threads import result_of, start
from support.waiting import SOON, reach

from fairsched import ShutDown

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif("not hasattr(__import__('select'), 'epoll')", reason="lends where there is an epoll"),
]

MESSAGES = 40_000
LOSSES = 4


class Consumer:
    """A thread that settles each message at once, and now and then takes its time."""

    def __init__(self, source: LentSource, seed: int, slow: float) -> None:
        self.source, self.chance, self.slow = source, random.Random(seed), slow
        self.said: dict[tuple[int, int, int], int] = {}
        self.order: dict[str, list[int]] = {}

    def run(self) -> None:
        pause = threading.Event()
        try:
            while True:
                message = self.source.get(self.source.worker_queue, 0.05)
                if message is None:
                    continue
                if self.chance.random() < self.slow:
                    pause.wait(0.003)
                what = self.chance.random()
                verdict = ACK if what < 0.96 else REQUEUE if what < 0.98 else REJECT
                self.order.setdefault(message.queue, []).append(message.delivery_tag)
                if message.ack() if verdict == ACK else message.nack(requeue=verdict == REQUEUE):
                    connection, _, channel = message.queue.partition(".")
                    self.said[int(connection), int(channel), message.delivery_tag] = verdict
        except ShutDown:
            pass


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("threads", "channels", "window", "slow"), [(1, 1, 250, 0.0), (1, 8, 40, 0.001), (4, 2, 100, 0.01)]
)
def test_the_broker_hears_what_was_said_and_every_frame_reaches_its_reader(
    threads: int, channels: int, window: int, slow: float
) -> None:
    """No message is lost or acked twice, order holds, and heartbeats reach pika, whichever thread reads."""
    source = LentSource([b"%d" % number for number in range(MESSAGES)], channels, window)
    broker = source.broker
    lost = threading.Event()
    source.lost = lost.set
    theirs = source.open()
    source.start()
    consumers = [Consumer(source, seed, slow) for seed in range(threads)]
    running = [start(consumer.run) for consumer in consumers]
    deadline = time.monotonic() + 10 * SOON
    peers: list[Peer] = []
    for part in range(1, LOSSES + 2):
        peers.append(Peer(broker, theirs, source.numbers, window, part))
        peers[-1].run(lambda part=part: part <= LOSSES and len(broker.gone) > part * MESSAGES // (LOSSES + 2))
        assert time.monotonic() < deadline
        if part <= LOSSES:
            reach(lost.is_set)
            lost.clear()
            broker.lose_connection()
            opened: list[object] = []
            source.loop.add_callback_threadsafe(lambda opened=opened: opened.append(source.open()))
            reach(lambda opened=opened: opened)
            theirs = opened[0]
        assert not [outcome for _, outcome in running if outcome]
    source.worker_queue.shutdown()
    assert [result_of(thread) for thread in running] == [None] * threads
    source.close()
    assert len(broker.gone) == MESSAGES
    assert set(broker.gone.values()) == {1}
    said = {key: verdict for consumer in consumers for key, verdict in consumer.said.items()}
    assert all(said[key] == verdict for key, verdict in broker.settled.items())
    assert all(tags == sorted(tags) for consumer in consumers for tags in consumer.order.values())
    # The last one was not cut off: every heartbeat came.
    assert len([name for name, _ in source.wires[-1].others if name == "Heartbeat"]) == peers[-1].heartbeats
    assert threads > 1 or any(wire.borrowed for wire in source.wires)
