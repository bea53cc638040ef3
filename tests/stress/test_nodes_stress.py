"""The node list and the interest manager, moved by threads that start together, with thresholds that are tiny."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.threads import result_of, start

from fairsched import _probe_nodes

pytestmark = pytest.mark.stress


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs at once, each in a thread, and return what they returned."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        ready.wait()
        return job()

    return [result_of(thread) for thread in [start(lambda job=job: run(job)) for job in jobs]]


@pytest.mark.parametrize("threshold", [0, 3])
def test_appends_deletes_and_walks_of_one_list(threshold: int) -> None:
    """Nothing is lost, nothing stays, and the memory is used again."""
    nodes = _probe_nodes.ProbeList(threshold)
    stay = [nodes.append(number) for number in range(1, 4)]
    for _ in range(5):
        together(
            *(lambda alive=alive: nodes.cycle(50_000, alive) for alive in (1, 2, 5)),
            lambda: nodes.walk(2_000),
        )
        assert nodes.valid
        assert len(nodes) == len(stay)
        assert nodes.items() == [1, 2, 3]


@pytest.mark.parametrize("threads", [2, 6])
def test_no_node_is_lost_or_in_two_lists(threads: int) -> None:
    """Threads move the same few nodes by every operation; at each pause, lists, states and counts agree."""
    manager = _probe_nodes.ProbeInterest(1)
    count = 9
    for number in range(count):
        manager.add(manager.make(1, number % 3, number % 4 != 3), number % 2 == 0)
    for pause in range(10):
        moved = together(
            *(lambda seed=seed: manager.hammer(seed, 20_000, 0, count) for seed in range(pause, pause + threads))
        )
        assert all(moved)
        assert manager.valid
        assert sum(manager.size(which) for which in (0, 1, 3, 4)) == manager.size(2) == len(manager) == count
        listed = [number for which in (0, 1, 3, 4) for number in manager.numbers(which)]
        assert sorted(listed) == list(range(count))


def test_consumers_and_priorities_come_and_go() -> None:
    """Nodes are freed, and levels and tables replaced, while others find, move and walk over them."""
    manager = _probe_nodes.ProbeInterest(2)
    count, each = 4, 10_000
    for number in range(count):
        manager.add(manager.make(1, number - 2))
    before = _probe_nodes.disposed()
    for pause in range(4):
        together(
            *(lambda seed=seed: manager.come_and_go(seed, each, 70) for seed in (pause, pause + 10)),
            *(lambda seed=seed: manager.hammer(seed, each, 0, count) for seed in (pause, pause + 20)),
        )
        assert manager.valid
        assert len(manager) == manager.size(2) == count
        assert manager.levels == count
        for _ in range(3):
            manager.flush()
        assert _probe_nodes.disposed() == before + (pause + 1) * 2 * each


def test_a_million_moves_by_threads_take_little_room() -> None:
    """A preempted thread holds up the others' memory; what they need meanwhile is far from an entry a move."""
    manager, each = _probe_nodes.ProbeInterest(100), 130_000
    manager.add(manager.make())
    for _ in range(4):
        together(*(lambda: manager.cycle(each) for _ in range(2)))
        assert manager.valid
        assert all(manager.physical(which) <= 2 * 100 for which in (0, 1))
    # Of the entries that the moves would take if none were used again. On a machine with many more threads than cores
    # a thread is preempted inside for most of the time, and a quarter was once too little.
    assert manager.capacity <= 4 * 2 * each // 2
