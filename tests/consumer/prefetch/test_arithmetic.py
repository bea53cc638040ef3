"""The arithmetic of prefetch, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import ConfigurationError
from fairsched.config.weights import normalise, split
from fairsched.consumer.prefetch import arithmetic as window

TEN = {f"p{number}": 4 * (number + 1) for number in range(10)}


def test_weights_are_divided_by_their_common_divisor() -> None:
    assert normalise({"a": 40, "b": 4, "c": 12}) == {"a": 10, "b": 1, "c": 3}
    assert normalise({"a": 7}) == {"a": 1}
    assert normalise({"a": 6, "b": 4}) == {"a": 3, "b": 2}


@pytest.mark.parametrize("weight", [0, -1, 1.5, "3", True, None, math.nan])
def test_a_weight_that_is_not_a_positive_whole_number_is_named(weight: object) -> None:
    with pytest.raises(ConfigurationError, match=r"weight of 'b' must be a whole number of at least 1"):
        normalise({"a": 1, "b": weight})


def test_a_total_is_divided_by_largest_remainder() -> None:
    assert split(220, TEN) == TEN
    assert split(100, {"a": 1, "b": 1, "c": 1}) == {"a": 34, "b": 33, "c": 33}
    # 10 * 5/8 = 6.25, 10 * 2/8 = 2.5, 10 * 1/8 = 1.25: the missing one goes to the largest remainder.
    assert split(10, {"a": 5, "b": 2, "c": 1}) == {"a": 6, "b": 3, "c": 1}


def test_every_queue_gets_at_least_one() -> None:
    assert split(5, {"a": 1000, "b": 1, "c": 1}) == {"a": 3, "b": 1, "c": 1}
    assert split(1, {"a": 9, "b": 1}) == {"a": 1, "b": 1}


@given(
    st.integers(1, 10_000),
    st.dictionaries(st.text(min_size=1), st.integers(1, 1000), min_size=1, max_size=30),
)
def test_a_split_adds_up_and_is_in_proportion(total: int, weights: dict[str, int]) -> None:
    windows = split(total, weights)
    assert windows.keys() == weights.keys()
    assert min(windows.values()) >= 1
    assert sum(windows.values()) == max(total, len(weights))
    if total >= sum(weights.values()):
        whole = sum(weights.values())
        assert all(abs(windows[name] - total * weights[name] / whole) < 1 for name in weights)


def test_needed_is_the_rule_against_flattening() -> None:
    # The demo's model: quanta 4..40 with cost 4, service 0.1 ms: a round is 55 messages, 5.5 ms.
    units = {f"p{number}": number + 1.0 for number in range(10)}
    # At a round trip of 0.5 ms each queue needs two rounds: 50 per queue is plenty, 5 is not.
    assert window.needed(units, 0.5e-3, 100e-6) == {name: 2 * unit for name, unit in units.items()}
    # At 11 ms (2 rounds exactly): three rounds, the 30 of the model for the largest.
    assert window.needed(units, 11e-3, 100e-6)["p9"] == 30
    assert window.needed(units, 11.1e-3, 100e-6)["p9"] == 40
    assert window.needed({"a": 1.0}, 1.0, 0.0) == {"a": window.LARGEST_PREFETCH}


def test_defaults_are_in_proportion_and_large_enough() -> None:
    units = {name: weight / 4 for name, weight in TEN.items()}
    windows = window.default_windows(units)
    assert sum(windows.values()) >= window.LEAST_TOTAL
    assert all(
        windows[name] >= least
        for name, least in window.needed(units, window.ASSUMED_ROUND_TRIP, window.ASSUMED_SERVICE).items()
    )
    assert windows["p9"] == pytest.approx(10 * windows["p0"], rel=0.1)
    # One queue of weight 1: a round is 20 us, 50 of them pass in a millisecond.
    assert window.needed({"a": 1.0}, 1e-3, 20e-6) == {"a": 51}
    assert window.default_windows({"a": 1.0}) == {"a": window.LEAST_TOTAL}
    assert window.default_windows({"a": 1000.0, "b": 1.0})["a"] == 2000


@pytest.mark.parametrize(("queues", "each"), [(10, 50), (25, 20), (100, 20), (250, 20), (500, 10), (5000, 2)])
def test_defaults_grow_with_the_queues_up_to_a_bound(queues: int, each: int) -> None:
    windows = window.default_windows({f"q-{number}": 1.0 for number in range(queues)})
    assert set(windows.values()) == {each}
    assert sum(windows.values()) <= max(window.MOST_TOTAL, 2 * queues)


def test_prefetch_may_be_a_total_a_mapping_or_nothing() -> None:
    weights = {"a": 3, "b": 1}
    assert window.windows_for(8, weights, weights) == {"a": 6, "b": 2}
    assert window.windows_for({"a": 5, "b": 7}, weights, weights) == {"a": 5, "b": 7}
    assert window.windows_for(None, weights, weights) == window.default_windows(weights)


@pytest.mark.parametrize("prefetch", [0, -1, 1.5, True, "10", {"a": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 1, "c": 1},
                                      {"a": 65_536, "b": 1}])  # fmt: skip
def test_an_impossible_prefetch_is_refused(prefetch: object) -> None:
    with pytest.raises(ConfigurationError, match="prefetch"):
        window.windows_for(prefetch, {"a": 3, "b": 1}, {"a": 3, "b": 1})


def test_a_shortfall_comes_with_its_arithmetic() -> None:
    units = {"a": 10.0, "b": 1.0}
    assert window.shortfall({"a": 20, "b": 2}, units, 1e-3, 100e-6) is None
    reason = window.shortfall({"a": 10, "b": 2}, units, 1e-3, 100e-6)
    assert reason is not None
    assert reason.startswith(
        "1 of 2 queues have too small a window: 'a' has 10 and needs 10 * (1 + ceil(1 ms / 1.1 ms)) = 20"
    )


def test_measured_windows_hold_a_second_of_work_and_what_shares_need() -> None:
    units = {"a": 10.0, "b": 1.0}
    before = window.default_windows(units)
    # Fast handlers: the default. 0.1 s: what the turns of a round need, and as much again; 500 s: likewise.
    assert window.measured_windows(before, units, 1e-3, 20e-6) == before
    assert window.measured_windows(before, units, None, 1e-3) == before
    assert window.measured_windows(before, units, 1e-3, 0.1) == {"a": 20, "b": 2}
    assert window.measured_windows(before, units, 1e-3, 500.0) == {"a": 20, "b": 2}
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 0.1) == {"a": 10}
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 0.01) == {"a": 100}
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 3.0, 0.1) == {"a": 39}
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 60.0) == {"a": 2}
    # A hundred handlers of 10 s side by side: each has a message, and there are some to spare.
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 0.1, 100) == {"a": 126}


def test_a_measured_window_keeps_all_workers_busy_if_all_other_queues_are_empty() -> None:
    names = [f"q{number}" for number in range(50)]
    units = dict.fromkeys(names, 1.0)
    # Eight handlers of 0.2 s; one of 10 ms, and 50 ms to the broker.
    assert set(window.measured_windows(dict.fromkeys(names, 20), units, 1e-3, 0.025, 8).values()) == {11}
    assert set(window.measured_windows(dict.fromkeys(names, 20), units, 0.05, 0.01).values()) == {8}


def test_no_worker_is_without_a_message() -> None:
    assert window.busying(0.1, 0.004, 1) == 26
    assert window.busying(1e-3, 0.0125, 4) == 5
    assert window.busying(0.0, 1.0, 100) == 100


def test_a_measured_window_has_messages_for_most_worker_queues() -> None:
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 0.125, 8) == {"a": 11}
    assert window.measured_windows({"a": 500}, {"a": 1.0}, 1e-3, 0.125, 8, worker_queues=8) == {"a": 64}
