"""AutoWindow: which windows keep the workers busy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.consumer.prefetch.auto import (
    MEMORY,
    PATIENCE,
    PAUSE,
    AutoWindow,
    byte_window,
    start_windows,
    total_window,
)
from fairsched.prefetch import recommend

seconds = st.floats(1e-5, 2.0)


def settled(auto: AutoWindow, now: float, round_trip: float, service: float, limited: list[str]) -> dict[str, int]:
    """Let the same be measured for as long as any change takes."""
    for step in range(200):
        auto.update(now + step * 0.1, round_trip, service, limited)
    return auto.windows


def test_a_worker_needs_what_the_article_says_and_a_quarter_more() -> None:
    assert total_window(0.1, 0.004, 1, 0.1) == (33, 51)
    assert total_window(0.1, 0.004, 1, 0.0) == (26, 26)
    assert total_window(0.2, 0.004, 1, 0.1) == (64, 76)


def test_several_workers_need_several_times_as_many() -> None:
    assert total_window(0.1, 0.004, 4, 0.0) == (104, 104)
    assert total_window(0.0, 1.0, 8, 0.0) == (8, 8)


def test_nothing_moves_until_something_is_known() -> None:
    auto = AutoWindow({"a": 1, "b": 3}, 2, 0.1)
    assert auto.windows == start_windows({"a": 1, "b": 3}, 2) == {"a": 8, "b": 24}
    assert auto.update(0.0, None, 0.1, ["a"]) == auto.update(1.0, 0.1, None, ["a"]) == {"a": 8, "b": 24}


def test_queues_that_are_not_backlogged_leave_their_room_to_the_others() -> None:
    auto = AutoWindow({"a": 1, "b": 1, "c": 2}, 1, 0.0)
    assert settled(auto, 0.0, 0.1, 0.001, ["a", "b", "c"]) == {"a": 25, "b": 25, "c": 51}
    assert settled(auto, 100.0, 0.1, 0.001, ["a"]) == {"a": 101, "b": 25, "c": 51}
    assert settled(auto, 200.0, 0.1, 0.001, ["a", "c"]) == {"a": 34, "b": 25, "c": 67}


def test_a_wider_window_comes_at_once_and_a_narrower_one_after_a_while() -> None:
    auto = AutoWindow({"a": 1}, 1, 0.1)
    assert auto.update(0.0, 0.1, 0.004, ["a"]) == {"a": 33}
    assert auto.update(1.0, 0.1, 0.04, ["a"]) == {"a": 33}
    assert auto.update(1.0 + PATIENCE / 2, 0.1, 0.04, ["a"]) == {"a": 33}
    assert auto.update(1.0 + PATIENCE, 0.1, 0.04, ["a"]) == {"a": 5}


def test_what_is_beyond_the_limit_narrows_however_little_it_is() -> None:
    auto = AutoWindow({"a": 1}, 1, 0.1)
    assert settled(auto, 0.0, 0.26, 0.004, ["a"]) == {"a": 83}
    assert settled(auto, 100.0, 0.2, 0.004, ["a"]) == {"a": 64}


def test_small_changes_are_not_made() -> None:
    auto = AutoWindow({"a": 1}, 1, 0.1)
    assert settled(auto, 0.0, 0.1, 0.004, ["a"]) == {"a": 33}
    for round_trip in (0.09, 0.11, 0.1, 0.085):
        assert settled(auto, 100.0, round_trip, 0.004, ["a"]) == {"a": 33}


@given(seconds, seconds, st.integers(1, 16), seconds)
def test_busy_workers_and_a_bounded_wait(round_trip: float, service: float, workers: int, target: float) -> None:
    """The window is never below what saturates, nor so far above it that the wait exceeds the target."""
    wanted, most = total_window(round_trip, service, workers, target)
    pace = service / workers
    least = (round_trip + service) / pace
    assert wanted >= math.floor(least)
    assert wanted <= math.ceil(1.25 * least) + 1
    for window in (wanted, most):
        wait = window * pace - (round_trip + service)
        assert wait <= max(target, pace) * (1 + 1e-6)
    assert most >= wanted
    if workers == 1:
        assert wanted >= recommend(round_trip, service)


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 100), min_size=1),
    measured=st.lists(st.tuples(seconds, seconds, st.sets(st.sampled_from("abcdef"))), min_size=1, max_size=40),
    step=st.floats(0.01, 1.0),
)
def test_the_rate_of_changes_is_bounded(
    weights: dict[str, float], measured: list[tuple[float, float, set[str]]], step: float
) -> None:
    """However wild the measurements: a window changes at most once in PAUSE seconds, and is never empty."""
    auto = AutoWindow(weights, 1, 0.1)
    changed: dict[str, float] = {}
    before = auto.windows
    for number, (round_trip, service, limited) in enumerate(measured):
        now = number * step
        after = auto.update(now, round_trip, service, limited & weights.keys())
        for name in weights:
            assert after[name] >= 1
            if after[name] != before[name]:
                assert now - changed.get(name, -math.inf) >= PAUSE - 1e-9
                changed[name] = now
        before = after


def test_a_queue_is_remembered_as_backlogged_for_a_while() -> None:
    auto = AutoWindow({"a": 1, "b": 1}, 1, 0.0)
    settled(auto, 0.0, 0.1, 0.001, ["a", "b"])
    auto.update(100.0, 0.1, 0.001, ["a", "b"])
    assert auto.update(100.0 + MEMORY - 0.1, 0.1, 0.001, ["a"]) == {"a": 51, "b": 50}
    assert auto.update(100.0 + MEMORY + 0.1, 0.1, 0.001, ["a"]) == {"a": 101, "b": 50}


@pytest.mark.parametrize(("budget", "size", "window"), [(1000, 100, 10), (99, 100, 1), (1e12, 1, 65_535), (10, 0, 10)])
def test_bytes(budget: float, size: float, window: int) -> None:
    assert byte_window(budget, size) == window
