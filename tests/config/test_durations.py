"""Durations as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.config.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100us", 1e-4),
        ("100\u00b5s", 1e-4),
        ("100\u03bcs", 1e-4),
        ("4ms", 0.004),
        ("1.5s", 1.5),
        (".5 s", 0.5),
        ("25", 25.0),
        ("0", 0.0),
        ("250ns", 2.5e-7),
        ("2min", 120.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1_000ms", 1.0),
        ("1e3us", 0.001),
        (" 10 MS ", 0.01),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_what_may_be_written(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("bad", ["", "ms", "-1s", "1 week", "1,5s", "1.2.3s", "nan", "1s 2s", None, True, [], b"1s"])
def test_anything_else_is_refused_with_the_rule(bad: object) -> None:
    with pytest.raises(ValueError, match=r"such as 100us, 4ms or 1\.5s, got") as caught:
        parse_duration(bad)  # type: ignore[arg-type]
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("bad", [-1, -0.5, math.nan, math.inf, "1e999s", 10**400])
def test_numbers_that_are_no_duration(bad: float | str) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        parse_duration(bad)


@given(st.floats(1e-9, 1e6))
def test_formatting_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


def test_formatting_chooses_the_unit() -> None:
    assert [format_duration(x) for x in (0, 5e-9, 0.0001, 0.004, 1.5, 300)] == [
        "0s", "5ns", "100us", "4ms", "1.5s", "300s",
    ]  # fmt: skip
