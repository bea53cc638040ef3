"""A waiting room under threads that give up at any moment: claims, permits and seats balance."""

from __future__ import annotations

import threading
import time

import pytest
from support.threads import result_of, start
from support.waiting import SOON

from fairsched import _probe_room

pytestmark = pytest.mark.stress


@pytest.mark.parametrize("timeout", [None, 1e-6])
@pytest.mark.parametrize("whole", [False, True])
def test_every_permit_is_collected_once(timeout: float | None, whole: bool) -> None:
    """Waiters of several priorities and amounts time out and race with wakers; when all is quiet nothing is over."""
    room = _probe_room.ProbeRoom(None, whole)
    stop = threading.Event()
    ready = threading.Barrier(7)

    def wait(me: int) -> int:
        ready.wait()
        taken = 0
        while not stop.is_set():
            taken += room.take(timeout, me % 3, 1 + me % 2)
        return taken

    def add() -> int:
        ready.wait()
        for turn in range(3_000):
            room.add(1 + turn % 3)
        return 6_000

    waiters = [start(lambda me=me: wait(me)) for me in range(6)]
    added = add()
    stop.set()
    deadline = time.monotonic() + SOON
    while not all(outcome for _, outcome in waiters):
        assert time.monotonic() < deadline, "a waiter was never woken"
        room.add(1)
        added += 1
    assert sum(result_of(waiter) for waiter in waiters) + room.left == added
    assert room.lists == (0, 0, room.seats)
    assert room.permits == 0
    assert room.valid
