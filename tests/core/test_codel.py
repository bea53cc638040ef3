"""The CoDel law in loops of C: what the sanitizers see of it."""

from __future__ import annotations

import math

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


def test_the_kernels_roots() -> None:
    roots = [65535, 32769, 36864, 31968, 28935, 26481, 24588, 23037, 21746, 20647, 19699, 18869]
    assert _probe_codel.inverse_roots(12) == roots
    # One Newton step per count is far from the root at first, which is why the exact one is a law of its own.
    errors = [root / 65536 * math.sqrt(count) - 1 for count, root in enumerate(roots, 1)]
    assert [round(100 * errors[count - 1], 1) for count in (2, 3, 4, 5)] == [-29.3, -2.6, -2.4, -1.3]
