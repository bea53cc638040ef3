"""Own lanes of a Celery worker: what is not settled, and calls of another thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous import Hub

from fairsched.integrations.celery_lanes import LoopCalls, OwnLane
from fairsched.lanes.own_lanes import Activity


@given(st.lists(st.integers(0, 3), max_size=200))
def test_a_lane_counts_the_messages_that_are_not_settled(settled_after: list[int]) -> None:
    """After each delivery, some of the oldest messages that were not settled are."""
    lane = OwnLane()
    lane.consumed = True
    waiting: list[SimpleNamespace] = []
    for number, count in enumerate(settled_after, 1):
        waiting.append(SimpleNamespace(acknowledged=False))
        lane.received(waiting[-1])
        for _ in range(min(count, len(waiting))):
            waiting.pop(0).acknowledged = True
        assert lane.activity() == Activity(True, number, len(waiting))
        # Settled messages are not kept for long.
        assert len(lane._messages) <= max(16, 2 * len(waiting) + 2 * max(settled_after) + 16)


def test_calls_of_another_thread_wake_the_loop_and_are_made_in_order() -> None:
    calls, hub, made = LoopCalls(), Hub(), []
    calls.listen(hub)

    def ask() -> None:
        for number in range(1000):
            calls.make(lambda number=number: made.append((number, threading.get_ident())))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        while len(made) < 1000:
            hub.run_once()
        thread.join()
    finally:
        calls.close()
        hub.close()
    calls.make(lambda: made.append((1000, 0)))  # is forgotten
    assert made == [(number, threading.get_ident()) for number in range(1000)]
