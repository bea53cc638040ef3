"""The CoDel law in loops of C: what the sanitizers see of it."""

from __future__ import annotations

import numpy as np
import pytest

from fairsched import _probe_codel

MS = 1_000_000


@pytest.mark.parametrize("law", ["rfc", "linux", "linux-q16", "queueing-consumer"])
def test_loops_agree_with_what_the_law_says(law: str) -> None:
    young, old = np.full(7, 4 * MS, dtype=np.int64), np.full(7, 10 * MS, dtype=np.int64)
    assert _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 1, 0).decide(10_000, young, MS)[1] == 0
    assert _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 100, 0).decide(10_000, old, MS)[1] == 0
    bounded = _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 1, 3).decide(100_000, old, 7 * MS)[1]
    free = _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 1, 0).decide(100_000, old, 7 * MS)[1]
    assert 0 < bounded <= free


@pytest.mark.parametrize("law", ["rfc", "linux", "linux-q16", "queueing-consumer"])
def test_extreme_times(law: str) -> None:
    extremes = np.array([2**62 - 1, -(2**62) + 1, 0, 1, -1, 5 * MS, 2**61], dtype=np.int64)
    _probe_codel.ProbeCodel(law, 5 * MS, 100 * MS, 1, 0).decide(10_000, extremes, 2**48)


def test_a_root_for_every_count() -> None:
    roots = _probe_codel.inverse_roots(70_000)
    assert all(0 <= root <= 0xFFFF for root in roots)
    assert abs(roots[9_999] - 65536 / 100) < 2
    assert _probe_codel.newton(0xFFFF, 2**31 - 1) <= 0xFFFF


def test_a_batched_pull_of_fresh_messages_returns_nothing() -> None:
    assert _probe_codel.batched_pull(50, True)[1] == 0
