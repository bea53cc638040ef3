"""Delays between attempts."""

from __future__ import annotations

from support.clock import ManualClock

from fairsched.amqp.backoff import Backoff


def highest(low: float, high: float) -> float:
    assert low == 0.0
    return high


def test_the_ceiling_doubles_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 30.0, uniform=highest)
    assert [round(backoff.failed(), 3) for _ in range(11)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]
    for _ in range(2000):
        assert backoff.failed() == 30.0


def test_jitter_is_full() -> None:
    backoff = Backoff(0.1, 30.0)
    delays = [Backoff(0.1, 30.0).failed() for _ in range(200)]
    assert all(0 <= delay <= 0.1 for delay in delays)
    assert min(delays) < 0.02
    assert max(delays) > 0.08
    assert 0 <= backoff.failed() <= 0.1


def test_success_starts_anew_only_when_it_lasts() -> None:
    clock = ManualClock()
    backoff = Backoff(0.1, 30.0, clock=clock, uniform=highest)
    for _ in range(6):
        backoff.failed()
    backoff.succeeded()
    clock.now += 2.0
    # Two seconds are less than the 6.4 that come next: still flapping.
    assert backoff.failed() == 6.4
    backoff.succeeded()
    clock.now += 13.0
    assert backoff.failed() == 0.1


def test_use_starts_anew_however_short_it_was() -> None:
    backoff = Backoff(0.1, 30.0, clock=ManualClock(), uniform=highest)
    for _ in range(6):
        backoff.failed()
    backoff.succeeded()
    backoff.useful()
    assert backoff.failed() == 0.1
    assert backoff.failed() == 0.2
