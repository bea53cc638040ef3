"""Histograms of fixed size: which bucket a value is in, and what the bounds are."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import _probe_codel
from fairsched.delivery._counters import BUCKET_ENDS

ENDS = [100_000 * end for end in BUCKET_ENDS]
values = st.integers(0, 2**62) | st.sampled_from(ENDS).flatmap(lambda end: st.integers(end - 2, end + 2))


def test_the_bounds_are_decimal() -> None:
    assert (*(digit * 10**power for power in range(6) for digit in (1, 2, 5)), 10**6) == BUCKET_ENDS


@given(st.lists(values | st.integers(-(2**62), 0), max_size=50))
def test_each_value_is_in_the_first_bucket_that_does_not_end_before_it(found: list[int]) -> None:
    expected = [0] * (len(ENDS) + 1)
    for value in found:
        expected[bisect_left(ENDS, max(value, 0))] += 1
    counts, total = _probe_codel.bucket_counts(found)
    assert counts == expected
    assert total == pytest.approx(sum(max(value, 0) for value in found))
