"""Shares, errors and Jain's index."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.fairness import jain, report, shares, weighted_jain

SEED_QUANTA = {f"p{i}": 4 * (i + 1) for i in range(10)}
SEED_SERVED = dict(zip(SEED_QUANTA, (3741, 7377, 11031, 14556, 18195, 21828, 25408, 29024, 32605, 36250), strict=True))

amounts = st.integers(0, 10**12)
quanta = st.dictionaries(st.text(max_size=5), st.integers(1, 10**9), min_size=1, max_size=12)


def test_the_article_s_own_figures() -> None:
    rows = shares(SEED_SERVED, SEED_QUANTA)
    errors = [round(100 * row.error, 2) for row in rows]
    assert errors == [2.87, 1.43, 1.11, 0.06, 0.06, 0.04, -0.19, -0.24, -0.38, -0.32]
    assert weighted_jain(SEED_SERVED, SEED_QUANTA) == pytest.approx(0.99990, abs=5e-6)
    assert sum(row.served for row in rows) == 200_015


@pytest.mark.parametrize(
    ("values", "index"),
    [([], 1), ([0, 0, 0], 1), ([7], 1), ([2, 2, 2], 1), ([1, 0, 0, 0], 0.25), ([1, 2], 0.9), ([1e300, 1e300], 1)],
)
def test_jain_of_known_values(values: list[float], index: float) -> None:
    assert jain(values) == pytest.approx(index, rel=1e-12)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, -math.inf])
def test_jain_names_the_bad_value(bad: float) -> None:
    with pytest.raises(ValueError, match=f"finite and not negative, got {float(bad)!r}"):
        jain([1, bad])


@given(st.lists(st.floats(0, 1e200), min_size=1))
def test_jain_lies_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) * (1 - 1e-12) <= jain(values) <= 1.0


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 10**6))
def test_jain_does_not_change_with_the_unit(values: list[int], factor: int) -> None:
    assert jain(value * factor for value in values) == pytest.approx(jain(values), rel=1e-9)


@given(quanta, st.data())
def test_shares_add_up_and_errors_agree_with_them(weights: dict[str, int], data: st.DataObject) -> None:
    served = {name: data.draw(amounts) for name in weights if data.draw(st.booleans())}
    rows = shares(served, weights)
    assert [row.name for row in rows] == list(weights)
    assert sum(row.ideal for row in rows) == pytest.approx(1)
    if sum(served.values()):
        assert sum(row.share for row in rows) == pytest.approx(1)
        for row in rows:
            assert row.error == pytest.approx(row.share / row.ideal - 1, rel=1e-9, abs=1e-9)
    else:
        assert all(row.share == row.error == 0.0 for row in rows)


@given(quanta, st.integers(1, 10**6))
def test_exact_proportion_has_no_error_at_all(weights: dict[str, int], rounds: int) -> None:
    served = {name: quantum * rounds for name, quantum in weights.items()}
    assert all(row.error == 0.0 for row in shares(served, weights))
    assert weighted_jain(served, weights) == 1.0


@pytest.mark.parametrize(
    ("served", "weights", "message"),
    [
        ({"x": 1}, {"a": 1}, "served names 'x', which has no quantum"),
        ({}, {"a": 0}, "quantum of 'a' must be positive, got 0"),
        ({}, {"a": math.nan}, "quantum of 'a' must be positive, got nan"),
        ({"a": -1}, {"a": 1}, "served of 'a' must not be negative, got -1"),
    ],
)
def test_shares_name_what_is_wrong(served: dict[str, int], weights: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shares(served, weights)


def test_report_is_the_documented_object() -> None:
    found = report({"gold": 30}, {"gold": 3, "free": 1}, 2.0)
    assert json.loads(json.dumps(found)) == {
        "queues": [
            {"name": "gold", "quantum": 3, "served": 30, "rate": 15.0, "share": 1.0, "ideal": 0.75, "error": 1 / 3},
            {"name": "free", "quantum": 1, "served": 0, "rate": 0.0, "share": 0.0, "ideal": 0.25, "error": -1.0},
        ],
        "jain": 0.5,
        "total": 30,
        "seconds": 2.0,
    }


def test_report_of_nothing_has_numbers_everywhere() -> None:
    text = json.dumps(report({}, SEED_QUANTA, 0.0), allow_nan=False)
    assert json.loads(text)["jain"] == 1.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_report_refuses_an_impossible_time(bad: float) -> None:
    with pytest.raises(ValueError, match="seconds must be finite"):
        report({}, {"a": 1}, bad)
