"""The time for which messages that fail again are held back, by a clock that tests move."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties

from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.handling.failures import FailurePolicy
from fairsched.consumer.requeueing.pace import FIRST, LONGEST, REMEMBERED, Pace
from fairsched.delivery._counters import Counters
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel


class Timers:
    """Timers that are called when the test moves their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (round(self.now + seconds, 6), next(self._numbers), function))

    def move(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    @property
    def next(self) -> float:
        """Return when the next timer is due."""
        return self._timers[0][0]

    @property
    def waiting(self) -> int:
        return len(self._timers)


class World:
    """A queue whose messages come back when they are requeued."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.pace = Pace()
        self.pace.begin(self.timers.after)
        self.channel = FakeChannel("q")
        self._tags = itertools.count(1)

    def message(self, body: bytes = b"x", redelivered: bool = True, **properties: Any) -> Message:
        tag = next(self._tags)
        method = Basic.Deliver("tag", tag, redelivered, "", "q")
        return Message(body, tag, redelivered, method, BasicProperties(**properties), self.channel)

    def held(self, message: Message) -> float:
        """Fail a message, and return for how long it is held back."""
        self.pace.requeue(message)
        if message.settled:
            return 0.0
        before = self.timers.now
        while not message.settled:
            self.timers.move(self.timers.next - self.timers.now)
        return round(self.timers.now - before, 6)


def test_the_first_failure_is_requeued_at_once_and_the_next_later_and_later() -> None:
    world = World()
    found = [world.held(world.message(redelivered=number > 0)) for number in range(12)]
    assert found == [0, *(min(LONGEST, FIRST * 2**number) for number in range(11))]
    assert {verdict for _, verdict in world.channel.settled} == {AckLedger.REQUEUE}


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=30))
def test_each_message_has_its_own_delay(bodies: list[bytes]) -> None:
    world = World()
    failures = {b"a": 0, b"b": 0, b"c": 0}
    for body in bodies:
        expected = 0 if failures[body] == 0 else min(LONGEST, FIRST * 2 ** (failures[body] - 1))
        assert world.held(world.message(body, redelivered=failures[body] > 0)) == expected
        failures[body] += 1


def test_equal_bodies_differ_by_their_headers_but_not_by_what_the_broker_counts() -> None:
    world = World()
    for count in range(5):
        world.held(world.message(b"", headers={"id": 1, "x-delivery-count": count}))
    assert world.held(world.message(b"", headers={"id": 1, "x-delivery-count": 9})) == FIRST * 16
    assert world.held(world.message(b"", headers={"id": 2})) == FIRST
    assert world.held(world.message(b"", message_id="m")) == FIRST


def test_a_new_message_that_equals_a_bad_one_is_requeued_at_once() -> None:
    world = World()
    for number in range(5):
        world.held(world.message(redelivered=number > 0))
    assert world.held(world.message(redelivered=False)) == 0
    assert world.held(world.message()) == FIRST * 16


def test_what_is_held_back_goes_at_once_when_it_is_released() -> None:
    world = World()
    messages = [world.message(b"%d" % number) for number in range(10)]
    for message in messages:
        world.pace.requeue(message)
    assert world.channel.settled == []
    world.pace.release()
    assert world.channel.settled == [(message.delivery_tag, AckLedger.REQUEUE) for message in messages]
    late = world.message()
    world.pace.requeue(late)
    assert late.settled
    world.timers.move(100)
    assert len(world.channel.settled) == 11


def test_a_message_that_was_settled_meanwhile_or_is_the_brokers_again_is_left_alone() -> None:
    world = World()
    settled, lost = world.message(b"1"), world.message(b"2")
    world.pace.requeue(settled)
    world.pace.requeue(lost)
    settled.ack()
    world.channel.alive = False
    world.timers.move(100)
    assert world.channel.settled == [(settled.delivery_tag, AckLedger.ACK)]
    assert not lost.settled
    world.pace.requeue(settled)
    assert world.timers.waiting == 0


def test_what_is_remembered_is_bounded() -> None:
    world = World()
    for number in range(REMEMBERED + 10):
        world.pace.requeue(world.message(b"%d" % number, redelivered=False))
    assert len(world.pace._failures) == REMEMBERED


def test_nothing_is_held_back_before_the_beginning() -> None:
    message = World().message()
    Pace().requeue(message)
    assert message.settled


@pytest.mark.parametrize("on_error", ["requeue", lambda message, error: None, lambda message, error: 1 / 0])
def test_every_requeue_of_a_failure_is_paced(on_error: Any) -> None:
    world = World()
    policy = FailurePolicy(on_error, Counters(), pace=world.pace)
    policy.settle(world.message(b"1"), ValueError())
    policy.settle_many([world.message(b"2"), world.message(b"3")], ValueError())
    assert world.channel.settled == []
    world.timers.move(FIRST)
    assert len(world.channel.settled) == 3


def test_a_release_beside_requeues_leaves_nothing_behind() -> None:
    for _ in range(50):
        world = World()
        messages = [world.message(b"%d" % number) for number in range(40)]
        start = threading.Barrier(3)

        def requeue(some: list[Message], world: World = world, start: threading.Barrier = start) -> None:
            start.wait()
            for message in some:
                world.pace.requeue(message)

        threads = [threading.Thread(target=requeue, args=[messages[part::2]]) for part in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        world.pace.release()
        for thread in threads:
            thread.join()
        assert all(message.settled for message in messages)
