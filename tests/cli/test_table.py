"""The contents of the table and the summary."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fairsched.cli.output.shares_table import error_style, ratio, summary, view
from fairsched.fairness import report


def shown(served: dict[str, int], seconds: float = 2.0) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(report(served, {"p0": 4, "p1": 40}, seconds), "a title"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_row_has_all_figures() -> None:
    text = shown({"p0": 1000, "p1": 9000})
    assert "a title" in text
    cells = [cell.strip() for line in text.splitlines() if "p0 " in line for cell in line.split("│")]
    assert cells[1:8] == ["p0", "4", "1,000", "500", "10.00%", "9.09%", "+10.00%"]


def test_nothing_served_is_shown_too() -> None:
    text = shown({}, 0.0)
    assert "p1/p0 undefined (ideal 10.00)" in text
    assert "nan" not in text.lower()


def test_brackets_are_text() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(report({"[/a]": 1}, {"[/a]": 1, "[bold]": 1}, 1.0), "orders[/red]"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(part in text for part in ("orders[/red]", "│ [/a] ", "│ [bold] "))


def test_ratio() -> None:
    assert ratio(report({"p0": 2, "p1": 19}, {"p0": 1, "p1": 10}, 1.0)) == 9.5
    assert ratio(report({"p1": 19}, {"p0": 1, "p1": 10}, 1.0)) is None
    assert "p1/p0 9.50 (ideal 10.00)" in summary(report({"p0": 2, "p1": 19}, {"p0": 1, "p1": 10}, 1.0))


@pytest.mark.parametrize(
    ("error", "style"), [(0.0, "green"), (-0.01, "green"), (0.02, "yellow"), (-0.03, "yellow"), (0.031, "red")]
)
def test_colours(error: float, style: str) -> None:
    assert error_style(error) == style
