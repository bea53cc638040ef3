"""The headers' own invariants, checked after every step from C."""

from __future__ import annotations

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
