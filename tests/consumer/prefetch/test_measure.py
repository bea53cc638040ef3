"""Measurements: round trips and handler times of the last seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock

from fairsched.consumer.prefetch.measure import FACTOR, LEAST_SERVICE, SLACK, WINDOW, Measurements


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def measurements(clock: ManualClock) -> Measurements:
    return Measurements(clock)


def test_nothing_is_known_at_first(measurements: Measurements) -> None:
    assert (measurements.round_trip(), measurements.refill(), measurements.service()) == (None, None, None)


def test_a_refill_takes_longer_than_a_ping_and_is_what_counts(measurements: Measurements) -> None:
    measurements.pinged(0.1)
    assert measurements.round_trip() == pytest.approx(0.1)
    measurements.refilled(0.13)
    measurements.refilled(0.11)
    assert measurements.round_trip() == pytest.approx(0.11)


def test_a_refill_that_waited_for_a_publisher_is_not_believed(measurements: Measurements) -> None:
    measurements.pinged(0.1)
    measurements.refilled(30.0)
    assert measurements.round_trip() == pytest.approx(FACTOR * 0.1 + SLACK)


def test_a_longer_round_trip_is_believed_after_a_while(measurements: Measurements, clock: ManualClock) -> None:
    measurements.pinged(0.1)
    measurements.refilled(0.1)
    clock.now += WINDOW / 2
    measurements.pinged(0.2)
    measurements.refilled(0.2)
    assert measurements.round_trip() == pytest.approx(0.1)
    clock.now += WINDOW * 0.6
    assert measurements.round_trip() == pytest.approx(0.2)


def test_what_was_known_last_is_remembered(measurements: Measurements, clock: ManualClock) -> None:
    measurements.pinged(0.1)
    measurements.served(4_000_000)
    assert (measurements.round_trip(), measurements.service()) == pytest.approx((0.1, 0.004), rel=1 / 16)
    clock.now += 1000
    assert (measurements.round_trip(), measurements.service()) == pytest.approx((0.1, 0.004), rel=1 / 16)


def test_a_few_long_handlers_do_not_count(measurements: Measurements) -> None:
    for _ in range(9):
        measurements.served(1_000_000)
    measurements.served(1_000_000_000)
    assert measurements.service() == pytest.approx(0.001, rel=1 / 16)


def test_handlers_are_not_taken_to_cost_nothing(measurements: Measurements) -> None:
    measurements.served(300)
    assert measurements.service() == LEAST_SERVICE


@given(st.lists(st.floats(1e-6, 10), min_size=1), st.lists(st.floats(1e-6, 100)))
def test_between_the_shortest_ping_and_a_bound(pings: list[float], refills: list[float]) -> None:
    measurements = Measurements(lambda: 1.0)
    for seconds in pings:
        measurements.pinged(seconds)
    for seconds in refills:
        measurements.refilled(seconds)
    found = measurements.round_trip()
    assert found is not None
    assert min(pings) - 1e-8 <= found <= FACTOR * min(pings) + SLACK + 1e-8
    if refills and min(pings) <= min(refills) <= FACTOR * min(pings) + SLACK:
        assert found == pytest.approx(min(refills), abs=1e-8)
