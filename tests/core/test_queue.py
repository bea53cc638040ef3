"""The queue in the engine, without Python objects: which consumers it tells, what stays behind, what it takes."""

from __future__ import annotations

import pytest

from fairsched import _probe_queue

KINDS = {"standard": 0, "priority": 1, "sorted": 2, "last-value": 3, "fair": 4}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@kinds
def test_ten_thousand_messages_wake_one_idle_consumer_once(kind: int) -> None:
    queue = _probe_queue.ProbeQueue(kind, 10_000, 10)
    queue.idle(1)
    queue.produce(1, 10_000, 7)
    assert queue.told() == [1]
    while queue.take(0, 8):
        pass
    assert queue.told() == [1]
    assert (queue.depth, queue.available, queue.used) == (0, 0, 0)


def test_equal_consumers_share_equally() -> None:
    """40 000 messages, each taken by the consumer that is told of it: a quarter each, within 1 %."""
    queue = _probe_queue.ProbeQueue(0, 40_000)
    queue.idle(4)
    assert all(abs(got - 10_000) <= 100 for got in queue.share(40_000))


def test_told_in_vain_by_turns() -> None:
    """If those that are told find nothing, no waiter is told more than once more often than another."""
    queue, consumers = _probe_queue.ProbeQueue(0, 3_000), 6
    queue.idle(consumers)
    for told in queue.steal(3_000, consumers - 1):
        others = told[:-1]
        assert max(others) - min(others) <= 1
        assert sum(others) > 0


@kinds
def test_one_after_another_leaves_nothing(kind: int) -> None:
    queue = _probe_queue.ProbeQueue(kind, 1, 10)
    queue.idle(3)
    queue.cycle(100_000)
    assert (queue.depth, queue.available, queue.used) == (0, 0, 0)
    assert queue.valid


def test_what_a_consumer_takes() -> None:
    assert _probe_queue.consumer_bytes() <= 512
