"""Estimator: what a duration was lately."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceEstimator

from fairsched.scheduling._codel import Estimator


def test_nothing_is_known_at_first() -> None:
    fresh = Estimator(1.0)
    assert (fresh.minimum(5.0), fresh.mean(5.0), fresh.quantile(0.5, 5.0), fresh.count(5.0)) == (None, None, None, 0)


def test_the_least_of_the_window() -> None:
    estimator = Estimator(8.0)
    for now, value in enumerate([5.0, 3.0, 4.0, 6.0]):
        estimator.add(value, float(now))
    assert estimator.minimum(3.0) == pytest.approx(3.0)
    assert estimator.minimum(8.9) == pytest.approx(3.0)
    assert estimator.minimum(9.0) == pytest.approx(4.0)
    assert estimator.minimum(10.5) == pytest.approx(6.0)
    assert estimator.minimum(11.0) is None


def test_a_longer_round_trip_is_believed_after_the_window_and_a_shorter_one_at_once() -> None:
    estimator = Estimator(2.0)
    for tenth in range(100):
        estimator.add(0.1, tenth / 10)
    for tenth in range(100, 130):
        estimator.add(0.2, tenth / 10)
        if tenth <= 116:
            assert estimator.minimum(tenth / 10) == pytest.approx(0.1)
    assert estimator.minimum(12.9) == pytest.approx(0.2)
    estimator.add(0.05, 13.0)
    assert estimator.minimum(13.0) == pytest.approx(0.05)


def test_quantiles_and_mean() -> None:
    estimator = Estimator(100.0)
    for number in range(1, 1001):
        estimator.add(number * 1e-3, 1.0)
    assert estimator.count(1.0) == 1000
    assert estimator.mean(1.0) == pytest.approx(0.5005)
    for part in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        assert estimator.quantile(part, 1.0) == pytest.approx(max(1e-3, part), rel=1 / 16)


def test_the_old_is_forgotten() -> None:
    estimator = Estimator(10.0)
    for tenth in range(100):
        estimator.add(1.0, tenth / 10)
    for tenth in range(100, 200):
        estimator.add(3.0, tenth / 10)
    assert estimator.mean(19.9) == pytest.approx(3.0)
    assert estimator.quantile(0.0, 19.9) == pytest.approx(3.0, rel=1 / 16)
    assert estimator.mean(60.0) is None


@pytest.mark.parametrize("window", [0, -1.0, math.nan, math.inf, "1", None, True])
def test_bad_window(window: Any) -> None:
    with pytest.raises(ValueError, match="window must be a number of seconds"):
        Estimator(window)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1", None, True])
def test_bad_sample(value: Any) -> None:
    estimator = Estimator(1.0)
    with pytest.raises(ValueError, match="duration must be a number of seconds"):
        estimator.add(value, 1.0)
    with pytest.raises(ValueError, match="time must be a number of seconds"):
        estimator.add(1.0, value)
    with pytest.raises(ValueError, match="q must be a number from 0 to 1"):
        estimator.quantile(value, 1.0)


def seconds(nanoseconds: int) -> float:
    """A float that converts back to these nanoseconds."""
    return math.nextafter(nanoseconds * 1e-9, math.inf)


@given(
    window=st.integers(2, 40).map(lambda eighths: 8 * eighths),
    steps=st.lists(st.tuples(st.integers(0, 60), st.one_of(st.integers(0, 40), st.integers(0, 10**13))), max_size=60),
)
def test_against_every_sample_kept(window: int, steps: list[tuple[int, int]]) -> None:
    """The minimum and the mean are exact; a quantile is one of the samples, to within a sixteenth."""
    estimator, oracle = Estimator(seconds(window)), ReferenceEstimator(window)
    now = 0
    for wait, value in steps:
        now += wait
        estimator.add(seconds(value), seconds(now))
        oracle.add(value, now)
        least = oracle.minimum(now)
        assert estimator.minimum(seconds(now)) == pytest.approx(least * 1e-9, abs=1e-12)
        recent = oracle.recent(now)
        assert estimator.count(seconds(now)) == len(recent)
        assert estimator.mean(seconds(now)) == pytest.approx(sum(recent) / len(recent) * 1e-9, rel=1e-9)
        for part in (0.0, 0.5, 0.9, 1.0):
            exact = min(recent[int(part * (len(recent) - 1))], 2**43)
            assert estimator.quantile(part, seconds(now)) == pytest.approx(exact * 1e-9, rel=1 / 16)
