"""The table of ``fairsched pipeline``: the batches whose shares can be judged, and the rest."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairsched.cli.output.shares_table import error_style
from fairsched.spark.pipeline.progress import PipelineReport

#: Names of the columns, here and in the HTML report.
COLUMNS = ("queue", "quantum", "judged", "share", "ideal", "error", "rest", "rows")


def cells(report: PipelineReport) -> list[list[str]]:
    """Return a row for each queue, in the order of `COLUMNS`."""
    return [
        [
            row["name"],
            str(row["quantum"]),
            f"{row['judged']:,}",
            _percent(row["share"], ".2%"),
            _percent(row["ideal"], ".2%"),
            _percent(row["error"], "+.2%"),
            f"{row['served'] - row['judged']:,}",
            f"{row['served']:,}",
        ]
        for row in report["queues"]
    ]


def _percent(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)


def summary(report: PipelineReport) -> list[str]:
    """Sum up in one line how fair it was, and in another how much was read."""
    batches, judged = report["batches"], report["judged_batches"]
    if not batches:
        verdict = "No verdict: nothing was read"
    elif report["jain"] is None:
        verdict = f"No verdict: none of {batches:,} batches left every queue a backlog, so weights did not count"
    else:
        verdict = f"Jain's index {report['jain']:.5f}, judged by the {judged:,} of {batches:,} batches that left every "
        verdict += "queue a backlog"
    return [verdict, f"{report['total']:,} messages in {report['seconds']:.1f} s"]


def view(report: PipelineReport, title: str) -> Group:
    """Put table and summary together."""
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.ROUNDED)
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading == "queue" else "right")
    for row, found in zip(cells(report), report["queues"], strict=True):
        error = found["error"]
        style = "" if error is None else error_style(error)
        styles = (style if heading == "error" else "" for heading in COLUMNS)
        # Not markup, whatever brackets there are.
        table.add_row(*(Text(cell, style=one) for cell, one in zip(row, styles, strict=True)))
    return Group(table, *map(Text, summary(report)))
