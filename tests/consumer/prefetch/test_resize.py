"""ResizableWindow: a window that changes, with a broker that answers when the test says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.prefetch.resize import MOST, ResizableWindow, kept

windows = st.integers(1, 60)


class Broker:
    """Consumers with a prefetch each, and a queue that never ends."""

    def __init__(self) -> None:
        self.ledger = AckLedger()
        self.unsettled: dict[str, set[int]] = {}
        self.prefetch: dict[str, int] = {}
        self.live: set[str] = set()
        self.requests: list[Callable[[], None]] = []
        self.channel: Any = SimpleNamespace(is_open=True)
        self.resizable = ResizableWindow(self.ledger, self.start, self.stop, lambda: None)
        self._numbers = itertools.count()

    def start(self, _channel: object, window: int, confirmed: Callable[[Any], None]) -> str:
        tag = f"consumer-{next(self._numbers)}"
        self.requests.append(lambda: self._started(tag, window, confirmed))
        return tag

    def _started(self, tag: str, window: int, confirmed: Callable[[Any], None]) -> None:
        self.prefetch[tag], self.unsettled[tag] = window, set()
        self.live.add(tag)
        confirmed(None)

    def stop(self, _channel: object, tag: str, confirmed: Callable[[Any], None]) -> None:
        def stopped() -> None:
            self.live.discard(tag)
            confirmed(None)

        self.requests.append(stopped)

    def answer(self) -> None:
        """Do the oldest thing that was asked for."""
        if self.requests:
            self.requests.pop(0)()

    def deliver(self) -> None:
        """Send whatever the prefetches allow."""
        for tag in sorted(self.live):
            while len(self.unsettled[tag]) < self.prefetch[tag]:
                number = self.ledger.delivered + 1
                self.ledger.deliver(number)
                self.unsettled[tag].add(number)

    def settle(self, count: int) -> None:
        """Settle the oldest messages, and tell the broker."""
        oldest = sorted(number for numbers in self.unsettled.values() for number in numbers)[:count]
        for number in oldest:
            self.ledger.settle(number, AckLedger.ACK)
            for numbers in self.unsettled.values():
                numbers.discard(number)
        self.ledger.flush()

    def total(self) -> int:
        return sum(map(len, self.unsettled.values()))


def finish(broker: Broker, target: int) -> None:
    """Let handlers work and the broker answer until nothing changes any more."""
    for _ in range(400):
        broker.resizable.move(broker.channel, target)
        broker.answer()
        broker.deliver()
        broker.settle(1)
    broker.deliver()


def test_a_wider_window_is_another_consumer_with_the_difference() -> None:
    broker = Broker()
    finish(broker, 26)
    finish(broker, 51)
    assert sorted(broker.prefetch[tag] for tag in broker.live) == [25, 26]
    assert broker.total() == 51


def test_a_narrower_one_cancels_what_does_not_fit() -> None:
    broker = Broker()
    finish(broker, 26)
    finish(broker, 51)
    finish(broker, 26)
    assert [broker.prefetch[tag] for tag in broker.live] == [26]


def test_a_replacement_waits_until_there_is_no_overshoot() -> None:
    broker = Broker()
    finish(broker, 26)
    broker.resizable.move(broker.channel, 10)
    broker.answer()
    assert (broker.resizable.window, broker.resizable.leftover()) == (0, 26)
    broker.settle(9)
    broker.resizable.move(broker.channel, 10)
    assert not broker.requests
    broker.settle(1)
    broker.resizable.move(broker.channel, 10)
    broker.answer()
    broker.deliver()
    assert (broker.resizable.window, broker.resizable.leftover(), broker.total()) == (10, 16, 26)


def test_a_window_of_nothing_takes_nothing_in() -> None:
    broker = Broker()
    finish(broker, 20)
    finish(broker, 0)
    assert (broker.live, broker.total(), broker.resizable.consumers) == (set(), 0, 0)
    finish(broker, 5)
    assert broker.total() == 5


def test_a_consumer_that_the_broker_cancelled_is_opened_again() -> None:
    broker = Broker()
    finish(broker, 20)
    (tag,) = broker.live
    broker.live.clear()
    broker.resizable.lost(tag)
    assert broker.resizable.consumers == 0
    broker.resizable.move(broker.channel, 20)
    broker.answer()
    assert broker.resizable.window == 20


@given(st.lists(windows, max_size=MOST), windows, st.integers(1, MOST))
def test_as_much_as_possible_stays(sizes: list[int], target: int, most: int) -> None:
    staying = kept(sizes, target, most)
    total = sum(sizes[index] for index in staying)
    assert total <= target
    assert len(staying) <= most or total == target
    for some in itertools.chain.from_iterable(itertools.combinations(sizes, n) for n in range(len(sizes) + 1)):
        fits = sum(some) == target or (sum(some) < target and len(some) <= most)
        assert not fits or sum(some) <= total


@given(st.data())
def test_whatever_is_asked_for_is_reached_without_overshoot(data: st.DataObject) -> None:
    """Targets change, the broker answers and delivers, handlers settle, in any order.

    There is never more unsettled than the widest window since the consumers was last where it was to be.
    """
    broker = Broker()
    target = widest = data.draw(windows)
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["retarget", "answer", "deliver", "settle", "look"]))
        if action == "retarget":
            target = data.draw(st.integers(0, 60))
            widest = max(widest, target)
        elif action == "answer":
            broker.answer()
        elif action == "deliver":
            broker.deliver()
        elif action == "settle":
            broker.settle(data.draw(st.integers(1, 20)))
        broker.resizable.move(broker.channel, target)
        broker_allows = sum(broker.prefetch[tag] for tag in broker.live)
        leaving = sum(len(numbers) for tag, numbers in broker.unsettled.items() if tag not in broker.live)
        assert broker.total() <= broker_allows + leaving <= widest
        assert len(broker.live) <= MOST
    finish(broker, target)
    assert broker.resizable.window == sum(broker.prefetch[tag] for tag in broker.live) == target
    assert broker.total() == target
