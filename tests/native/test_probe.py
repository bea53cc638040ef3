"""The headers' own invariants, checked after every step from C."""

from __future__ import annotations

import threading
import time

import pytest

from fairsched import _probe


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slots", [1, 2, 7])
def test_slot_table_is_valid_after_every_step(slots: int, seed: int) -> None:
    table = _probe.ProbeTable(slots, 1 + seed % 13)
    assert table.random_walk(3_000, seed)
    table.drain()
    assert table.valid


def test_memory_of_a_flood_is_given_back() -> None:
    table = _probe.ProbeTable(4, 1)
    table.fill(100_000)
    assert table.pool_capacity >= 400_000
    assert table.drain() == 400_000
    assert table.pool_capacity == 0
    assert table.random_walk(1_000, 1)


@pytest.mark.stress
@pytest.mark.parametrize("timeout_ns", [-1, 1_000])
def test_every_permit_is_collected_once(timeout_ns: int) -> None:
    """Waiters that time out race with wakers; permits and registrations balance whenever all is quiet."""
    parking = _probe.ProbeParking(threading.Lock())
    stop = threading.Event()
    ready = threading.Barrier(5)

    def waiter() -> None:
        ready.wait()
        while not stop.is_set():
            parking.wait(timeout_ns)

    threads = [threading.Thread(target=waiter) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    woken = 0
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        woken += parking.wake(2)
    stop.set()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline, "a waiter was never woken"
        woken += parking.wake(4)
    assert woken > 0
    assert parking.balance == (0, woken)
