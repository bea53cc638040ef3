"""The experiment in process: the feeder, the meter, and what happens when either fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched import FairQueue, ShutDown
from fairsched.cli.experiment import COST, QUANTA, Feeder, Meter, Plan, run_in_process


def ignore(_served: Mapping[str, int], _seconds: float) -> None:
    """Watch nothing."""


@settings(max_examples=20)
@given(st.integers(1, 3000), st.integers(40, 60))
def test_served_is_what_deficit_round_robin_serves(messages: int, prefetch: int) -> None:
    """Every queue stays backlogged, so the order is known beforehand."""
    order = [name for name, quantum in QUANTA.items() for _ in range(quantum // COST)]
    expected = dict.fromkeys(QUANTA, 0)
    for index in range(messages):
        expected[order[index % len(order)]] += 1
    assert run_in_process(Plan(messages, 0.0, prefetch), ignore).served == expected


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    run_in_process(Plan(100, 0.0, 50), ignore)
    assert set(threading.enumerate()) <= before


def test_the_handler_is_busy_for_the_service_time() -> None:
    meter = run_in_process(Plan(200, 1e-3, 50), ignore)
    assert meter.seconds >= 0.2


def test_the_watcher_sees_growing_figures() -> None:
    seen: list[tuple[int, float]] = []
    run_in_process(Plan(500, 1e-3, 50), lambda served, seconds: seen.append((sum(served.values()), seconds)))
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert all(seconds > 0 for _, seconds in seen)


def test_a_failing_watcher_ends_the_feeder_too() -> None:
    before = set(threading.enumerate())

    def fail(_served: Mapping[str, int], _seconds: float) -> None:
        raise RuntimeError("no more ink")

    with pytest.raises(RuntimeError, match="no more ink"):
        run_in_process(Plan(10_000, 1e-3, 50), fail)
    assert set(threading.enumerate()) <= before


def test_the_feeder_keeps_the_window_filled() -> None:
    engine = FairQueue(QUANTA)
    with Feeder(engine, 8) as feeder:
        assert {stats.queued for stats in engine.stats().values()} == {8}
        for _ in range(1000):
            name, _body = engine.get(timeout=10)
            feeder.acknowledge(name)
    with pytest.raises(ShutDown):
        engine.get()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_feeder_that_fails_leaves_no_worker_waiting() -> None:
    engine = FairQueue(QUANTA)
    with Feeder(engine, 1) as feeder:
        feeder.acknowledge("no such queue")
        feeder.join(10)
        with pytest.raises(ShutDown):
            engine.get(timeout=10)


def test_the_meter_stops_at_the_last_message() -> None:
    meter = Meter(Plan(3, 0.0, 1), ignore)
    assert [meter.handle("p0") for _ in range(3)] == [True, True, False]
    assert meter.served["p0"] == meter.total == 3
    assert meter.seconds >= 0.0
