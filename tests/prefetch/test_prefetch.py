"""The theory of prefetch: the article's figures, each row of them, and what holds for any."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.prefetch import Analysis, analyse, recommend

#: prefetch, one-way delay and service in ms; then utilisation, waiting ahead, seed wait and exact wait in ms.
ROWS = [
    pytest.param(1, 50, 4, 4 / 104, 0, 0, 0, id="1"),
    pytest.param(26, 50, 4, 1, 0, 0, 0, id="3"),
    pytest.param(25, 50, 4, 100 / 104, 0, 0, 0, id="3b-25"),
    pytest.param(27, 50, 4, 1, 1, 4, 4, id="3b-27"),
    pytest.param(26, 100, 4, 104 / 204, 0, 0, 0, id="4"),
    pytest.param(51, 100, 4, 1, 0, 0, 0, id="5"),
    pytest.param(50, 100, 4, 200 / 204, 0, 0, 0, id="5-50"),
    pytest.param(51, 50, 4, 1, 25, 100, 100, id="6"),
    pytest.param(26, 50, 40, 1, 22, 880, 900, id="7"),
    pytest.param(51, 50, 40, 1, 47, 1880, 1900, id="8"),
    pytest.param(26, 50, 20, 1, 20, 400, 400, id="9b-26"),
    pytest.param(51, 50, 20, 1, 45, 900, 900, id="9b-51"),
]


@pytest.mark.parametrize(("prefetch", "delay", "service", "utilisation", "ahead", "seed", "exact"), ROWS)
def test_the_articles_rows(
    prefetch: int, delay: int, service: int, utilisation: float, ahead: int, seed: int, exact: int
) -> None:
    found = analyse(prefetch, delay / 1000, service / 1000)
    assert found.utilisation == pytest.approx(utilisation, abs=1e-12)
    assert found.throughput == pytest.approx(1000 * utilisation / service, abs=1e-9)
    assert found.waiting_ahead == ahead
    assert found.whole_message_wait == pytest.approx(seed / 1000, abs=1e-12)
    assert found.exact_wait == pytest.approx(exact / 1000, abs=1e-12)
    assert found.residual_service == pytest.approx((exact - seed) / 1000, abs=1e-12)
    assert found.latency == pytest.approx((delay + exact) / 1000, abs=1e-12)
    assert found.saturating == recommend(2 * delay / 1000, service / 1000) == math.ceil((2 * delay + service) / service)


def test_the_articles_sentences() -> None:
    assert round(100 * analyse(1, 0.05, 0.004).utilisation, 1) == 3.8
    assert recommend(0.1, 0.004) == 26
    assert recommend(0.2, 0.004) == 51
    assert analyse(26, 0.05, 0.004).latency == 0.05
    assert analyse(51, 0.05, 0.004).latency == 0.15
    for prefetch, counted, exact in ((26, 0.946, 0.947), (51, 0.974, 0.974)):
        slow = analyse(prefetch, 0.05, 0.04)
        assert round(slow.whole_message_wait / (slow.whole_message_wait + slow.one_way_delay), 3) == counted
        assert round(slow.buffer_share, 3) == exact
    # From an empty client the first window arrives at once.
    assert analyse(51, 0.05, 0.004).cold_start_wait == 0.2


@pytest.mark.parametrize("service", [4, 20, 40])
@pytest.mark.parametrize("delay", [50, 100])
def test_every_prefetch_agrees_with_messages_counted_one_by_one(delay: int, service: int) -> None:
    for prefetch in range(1, 61):
        busy, wait, latency = follow(prefetch, delay, service)
        found = analyse(prefetch, delay / 1000, service / 1000)
        assert found.utilisation == pytest.approx(busy, abs=1e-9)
        assert found.exact_wait == pytest.approx(wait / 1000, abs=1e-9)
        assert found.latency == pytest.approx(latency / 1000, abs=1e-9)


def follow(prefetch: int, delay: int, service: int) -> tuple[Fraction, int, int]:
    """Utilisation, wait and latency of the last messages, in ms: each leaves when the one it replaces is acked."""
    rounds = 40
    starts: list[int] = []
    arrivals: list[int] = []
    free = 0
    for number in range(rounds * prefetch):
        sent = 0 if number < prefetch else starts[number - prefetch] + service + delay
        arrivals.append(sent + delay)
        starts.append(max(free, arrivals[-1]))
        free = starts[-1] + service
    first, last = (rounds - 2) * prefetch, (rounds - 1) * prefetch
    wait = starts[-1] - arrivals[-1]
    return Fraction(prefetch * service, starts[last] - starts[first]), wait, delay + wait


def test_rounding_adds_no_message() -> None:
    for messages in range(1, 3000):
        assert recommend((messages - 1) * 0.004, 0.004) == messages
        assert recommend((messages - 1) * 1e-7, 1e-7) == messages
    assert recommend(0.3, 0.1) == recommend(0.1 + 0.2, 0.1) == 4
    assert recommend(0, 1) == 1
    assert recommend(0.1, 0.004, headroom=1.0001) == 27


def test_integers_are_seconds() -> None:
    assert recommend(3, 1) == 4
    assert analyse(5, 1, 1).exact_wait == 2.0


times = st.floats(1e-6, 1e3, allow_nan=False)


@given(times, times, st.floats(1, 10))
def test_the_recommendation_is_the_least_that_saturates(round_trip: float, service: float, headroom: float) -> None:
    least = recommend(round_trip, service)
    assert analyse(least, round_trip / 2, service).utilisation == pytest.approx(1, abs=1e-9)
    if least > 1:
        assert analyse(least - 1, round_trip / 2, service).utilisation < 1
    assert recommend(round_trip, service, headroom=headroom) >= least


@given(st.integers(1, 65535), times, times)
def test_figures_that_belong_together(prefetch: int, delay: float, service: float) -> None:
    found = analyse(prefetch, delay, service)
    assert 0 < found.utilisation <= 1
    assert found.exact_wait == pytest.approx(found.whole_message_wait + found.residual_service, rel=1e-9)
    assert 0 <= found.residual_service <= service
    assert found.exact_wait == 0 or found.utilisation == 1
    assert found.latency == pytest.approx(delay + found.exact_wait, rel=1e-9)
    more = analyse(prefetch + 1, delay, service)
    assert (more.utilisation, more.exact_wait) >= (found.utilisation, found.exact_wait)


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, "1", None, True, 10**400])
def test_refused_times(bad: float) -> None:
    with pytest.raises(ValueError, match="round_trip must be a number of at least 0, got"):
        recommend(bad, 1)
    with pytest.raises(ValueError, match="service_time must be a number above 0, got"):
        recommend(1, bad)
    with pytest.raises(ValueError, match="one_way_delay must be a number of at least 0, got"):
        analyse(1, bad, 1)
    with pytest.raises(ValueError, match="service_time must be a number above 0, got"):
        analyse(1, 1, bad)


@pytest.mark.parametrize("bad", [0.99, 0, math.nan, "2"])
def test_refused_headroom(bad: float) -> None:
    with pytest.raises(ValueError, match="headroom must be a number of at least 1, got"):
        recommend(1, 1, headroom=bad)


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "26", None])
def test_refused_prefetch(bad: int) -> None:
    with pytest.raises(ValueError, match="prefetch must be a whole number of at least 1, got"):
        analyse(bad, 1, 1)


def test_zero_service_is_refused() -> None:
    with pytest.raises(ValueError, match="service_time must be a number above 0, got 0"):
        recommend(1, 0)


def test_an_analysis_is_a_record() -> None:
    assert Analysis._fields[:3] == ("prefetch", "one_way_delay", "service_time")
