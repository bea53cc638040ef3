"""The table of ``fairsched demo``: share, ideal and error of each queue."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairsched.fairness import Report

#: Relative errors up to these are shown in green and in yellow.
GOOD, TOLERABLE = 0.01, 0.03


def figures_table(report: Report, title: str) -> Table:
    """Lay out a report.

    Parameters
    ----------
    report : Report
        What `fairsched.fairness.report` returned.
    title : str
        Stands above the table.

    Returns
    -------
    rich.table.Table
        One row for each queue.
    """
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.ROUNDED)
    table.add_column("queue")
    for heading in ("quantum", "served", "msg/s", "share", "ideal", "error"):
        table.add_column(heading, justify="right")
    for row in report["queues"]:
        table.add_row(
            Text(row["name"]),  # not markup, whatever brackets there are
            str(row["quantum"]),
            f"{row['served']:,}",
            f"{row['rate']:,.0f}",
            f"{row['share']:.2%}",
            f"{row['ideal']:.2%}",
            Text(f"{row['error']:+.2%}", style=error_style(row["error"])),
        )
    return table


def error_style(error: float) -> str:
    """Return the colour for a relative error."""
    return "green" if abs(error) <= GOOD else "yellow" if abs(error) <= TOLERABLE else "red"


def ratio(report: Report) -> float | None:
    """Return how many times as much as the first queue the last one was served; None if the first got nothing."""
    first, last = report["queues"][0], report["queues"][-1]
    return last["served"] / first["served"] if first["served"] else None


def summary(report: Report) -> str:
    """Sum up in one line how fair it was."""
    first, last = report["queues"][0], report["queues"][-1]
    quotient = ratio(report)
    shown = "undefined" if quotient is None else f"{quotient:.2f}"
    return (
        f"Jain's index {report['jain']:.5f}   {last['name']}/{first['name']} {shown} "
        f"(ideal {last['quantum'] / first['quantum']:.2f})   "
        f"{report['total']:,} messages in {report['seconds']:.1f} s"
    )


def view(report: Report, title: str) -> Group:
    """Put table and summary together."""
    return Group(figures_table(report, title), Text(summary(report)))
