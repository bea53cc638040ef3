"""A consumer of several queues: one message of each in turn, one wish for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from oracles.target import ReferenceTarget
from support.queue_engines import Engine, lists_of, pulled, targets_on_both


class Recorder:
    """A subscription that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = [True]

    @property
    def interested(self) -> bool:
        return self.told[-1]

    @interested.setter
    def interested(self, interested: bool) -> None:
        self.told.append(interested)

    def cancel(self) -> None:
        self.told.append("close")


def test_a_wish_is_passed_on_when_it_changes() -> None:
    consumer = Recorder()
    target = ReferenceTarget([consumer])
    target.interested = True
    target.interested = False
    target.interested = True
    target.interested = True
    target.cancel()
    target.cancel()
    assert consumer.told[:5] == [True, False, True, False, "close"]


@targets_on_both
def test_what_the_queues_see(engine: Engine, target: Engine) -> None:
    """True, False, True, and nothing of a second True: it would move no waiter, and wake none."""
    queues = [engine(), engine()]
    subscriptions = [queue.subscribe("A") for queue in queues]
    for queue in queues:
        queue.put(0)
    all_of_them = target(subscriptions)
    counts = [subscription.notified_count for subscription in subscriptions]
    for wish, expected, more in [(True, "N[A]", 0), (False, "X[A]", 0), (True, "N[A]", 1), (True, "N[A]", 1)]:
        all_of_them.interested = wish
        assert [lists_of(queue) for queue in queues] == [expected] * 2
        assert [s.notified_count for s in subscriptions] == [count + more for count in counts]
    all_of_them.cancel()
    assert [lists_of(queue) for queue in queues] == ["", ""]


@targets_on_both
def test_three_queues_strictly_alternate(engine: Engine, target: Engine) -> None:
    queues = {name: engine() for name in ("q1", "q2", "q3")}
    for name, queue in queues.items():
        for number in (1, 2, 3):
            queue.put((name, number))
    all_of_them = target([queue.subscribe("A") for queue in queues.values()])
    expected = [(name, number) for number in (1, 2, 3) for name in queues]
    assert [pulled(all_of_them) for _ in range(9)] == expected
    assert pulled(all_of_them) is None


@targets_on_both
@pytest.mark.parametrize("sizes", [[5, 0, 1], [0, 0, 3], [1, 4, 2, 0]])
def test_empty_queues_are_passed_over(engine: Engine, target: Engine, sizes: list[int]) -> None:
    queues = [engine() for _ in sizes]
    for which, size in enumerate(sizes):
        for number in range(size):
            queues[which].put((number, which))
    all_of_them = target([queue.subscribe("A") for queue in queues])
    got = [pulled(all_of_them) for _ in range(sum(sizes))]
    assert sorted(got) == got  # round by round, queue by queue
    assert pulled(all_of_them) is None


@targets_on_both
def test_a_message_that_comes_late_is_found(engine: Engine, target: Engine) -> None:
    queues = [engine(), engine()]
    all_of_them = target([queue.subscribe("A") for queue in queues])
    assert pulled(all_of_them) is None
    for which in (1, 0, 0, 1):
        queues[which].put(which)
        assert pulled(all_of_them) == which
