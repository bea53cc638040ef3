"""Processes of arrivals: how many, when, and recorded ones from files."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairsched.errors import ConfigurationError
from fairsched.simulator import Arrivals, Change, ConsumerSpec, Queue, Scenario, simulate

MS = 1_000_000


def created(arrivals: Arrivals, duration: float, seed: int = 0, changes: tuple[Change, ...] = ()) -> list[int]:
    """The times at which messages came, as a consumer that is always idle sees it."""
    found = simulate(
        Scenario(
            queues=[Queue("q", arrivals=arrivals)],
            consumers=[ConsumerSpec(prefetch=0, service=1e-9, workers=64)],
            duration=duration,
            seed=seed,
            histories=1_000_000,
            changes=changes,
        )
    )
    return sorted(found.histories["created"].tolist())


def test_constant_rates_do_not_drift() -> None:
    times = created(Arrivals.constant(3), 100.5)
    assert times == [round(k * 1e9 / 3) for k in range(1, 302)]


def test_poisson() -> None:
    times = np.array(created(Arrivals.poisson(200), 100.0))
    assert len(times) == pytest.approx(20_000, abs=4 * 142)
    gaps = np.diff(times) / 1e9
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.03)


def test_bursts() -> None:
    times = created(Arrivals.bursts(1000, on="5ms", off="20ms", random=False), 0.0555)
    assert [time // MS for time in times] == [1, 2, 3, 4, 5, 26, 27, 28, 29, 30, 51, 52, 53, 54, 55]


def test_random_bursts_have_the_mean_rate() -> None:
    times = created(Arrivals.bursts(100, on=1.0, off=3.0), 2000.0)
    assert len(times) == pytest.approx(100 * 2000 / 4, rel=0.15)
    gaps = np.diff(times) / 1e9
    assert gaps.std() / gaps.mean() > 3  # far from Poisson, whose quotient is 1


def test_a_trace_is_followed_to_the_nanosecond() -> None:
    moments = [0.0, 0.000000001, 0.5, 0.5, 1.25]
    assert created(Arrivals.trace(moments), 2.0) == [0, 1, 500 * MS, 500 * MS, 1250 * MS]


def test_a_change_begins_the_process_anew() -> None:
    change = Change(at=1.0, queue="q", arrivals=Arrivals.constant(2))
    # What would have come at that very moment does not: changes come first.
    assert created(Arrivals.constant(4), 2.2, changes=(change,)) == [250 * MS * k for k in (1, 2, 3, 6, 8)]


CSV = {
    "seconds": "time\n10.5\n\n10.0\n12\n",
    "one column": "when\n10.5\n10.0\n12\n",
    "timestamps": "id,timestamp\na,2026-01-01T00:00:00.500+00:00\nb,2026-01-01T01:00:00+01:00\nc,2026-01-01T00:00:02\n",
}


@pytest.mark.parametrize("text", CSV.values(), ids=CSV)
def test_a_trace_from_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.csv").write_text(text, encoding="utf-8")
    assert Arrivals.from_file(tmp_path / "trace.csv") == Arrivals.trace([0, 0.5, 2])


BAD_CSV = {
    "": "is empty",
    "a,b\n1,2\n": "has the columns a, b; choose one with column",
    "time\n1\nsoon\n": "line 3 of file",
    "time\nnan\n": "a time that is missing or not finite",
    "time,b\n,1\n": "must have a number of seconds or an ISO 8601 timestamp, got ''",
}


@pytest.mark.parametrize(("text", "message"), BAD_CSV.items())
def test_a_bad_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        Arrivals.from_file(tmp_path / "trace.csv")


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        Arrivals.from_file(tmp_path / "trace.csv")
    with pytest.raises(ConfigurationError, match=r"ends in \.csv or \.parquet"):
        Arrivals.from_file(tmp_path / "trace.xlsx")
    (tmp_path / "trace.csv").write_text("time\n1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="has no column 'b'; known: time"):
        Arrivals.from_file(tmp_path / "trace.csv", "b")


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match="needs pyarrow: pip install pyarrow, or save the trace as CSV"):
        Arrivals.from_file(tmp_path / "trace.parquet")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "sometimes"}, "must be one of backlogged, none, constant"),
    ({"kind": "constant"}, "rate of arrivals must be a positive number"),
    ({"kind": "poisson", "rate": -1}, "rate of arrivals must be a positive number of at most 1e"),
    ({"kind": "poisson", "rate": 1, "on": 2}, "have no on; they have rate"),
    ({"kind": "backlogged", "rate": 1}, "have no rate; they have no fields"),
    ({"kind": "bursts", "rate": 10, "on": "50ms", "off": 1}, "has no message"),
    ({"kind": "bursts", "rate": 10, "on": 0, "off": 1}, "on of arrivals must be at least a nanosecond"),
    ({"kind": "trace"}, "either times or a path"),
    ({"kind": "trace", "times": [1, 0.5]}, "must ascend, got 0.5 after 1.0"),
    ({"kind": "trace", "times": [-1.0]}, "must be a number of seconds"),
    ({"kind": "trace", "times": "soon"}, "must be a list of seconds"),
    ({"kind": "poisson", "rate": 1, "path": "x.csv"}, "of kind 'poisson' have no path"),
    ({"kind": "poisson", "speed": 1}, "arrivals has no field 'speed'"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED)
def test_refusals(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Arrivals.of(table)


def test_moments_in_an_array_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="one-dimensional"):
        Arrivals.trace([[1.0]])
    with pytest.raises(ConfigurationError, match="from 0 to"):
        Arrivals.trace([np.nan])
    with pytest.raises(ConfigurationError, match="packed"):
        Arrivals(kind="trace", times=b"123")
