"""The report of ``fairsched pipeline``, as a page or a picture: shares of the queues, and ages of the messages."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fairsched.cli.output.pipeline_table import COLUMNS, cells, summary
from fairsched.cli.output.shares_plot import GRID, INK, draw_bars
from fairsched.fairness import report as judged_report
from fairsched.spark.pipeline.progress import BatchAges, PipelineReport

__all__ = ["write_report"]

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:62rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.25rem .9rem;border-bottom:1px solid #e3e6ea;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}"""


def write_report(path: Path, title: str, report: PipelineReport, ages: Sequence[BatchAges]) -> None:
    """Write a report.

    Parameters
    ----------
    path : Path
        Ending in ``.html`` for a self-contained page, or ``.png`` for the picture alone.
    title : str
        Name of the pipeline.
    report : PipelineReport
        Messages read, and how fair that was.
    ages : sequence of BatchAges
        One for each batch, in order.
    """
    if path.suffix == ".png":
        path.write_bytes(_picture(report, ages, summary(report)))
    else:
        # The page has the summary as text.
        path.write_text(_page(title, report, ages, _picture(report, ages, [])), encoding="utf-8")


def _picture(report: PipelineReport, ages: Sequence[BatchAges], lines: Sequence[str]) -> bytes:
    figure = Figure(figsize=(9, 8), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if report["jain"] is None and not lines:
        _draw_ages(figure.add_subplot(), ages)
    else:
        shares, old = figure.subplots(2, 1, height_ratios=[3, 2])
        _draw_shares(shares, report, lines)
        _draw_ages(old, ages)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _draw_shares(axes: Axes, report: PipelineReport, lines: Sequence[str]) -> None:
    if report["jain"] is None:
        axes.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", transform=axes.transAxes, color="#555555")
        axes.set_axis_off()
        return
    judged = {row["name"]: row["judged"] for row in report["queues"]}
    quanta = {row["name"]: row["quantum"] for row in report["queues"]}
    draw_bars(axes, judged_report(judged, quanta, report["seconds"]), "    ".join(lines))


def _draw_ages(axes: Axes, ages: Sequence[BatchAges]) -> None:
    axes.set_title("Age of messages when they were read", loc="left", fontsize=13, weight="bold")
    known = [age.p50 for age in ages if age.p50 is not None]
    if known:
        batches = [age.batch for age in ages if age.p50 is not None]
        oldest = [age.p99 for age in ages if age.p99 is not None]
        axes.plot(batches, oldest, color="#b3261e", marker=".", label="99th percentile")
        axes.plot(batches, known, color="#3b7dd8", marker=".", label="median")
        axes.legend(frameon=False, fontsize=9.5)
        axes.set_ylim(bottom=0)
    else:
        axes.text(0.5, 0.5, "the messages carry no timestamp", ha="center", transform=axes.transAxes, color="#555555")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("batch", color=INK)
    axes.set_ylabel("seconds", color=INK)
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _page(title: str, report: PipelineReport, ages: Sequence[BatchAges], picture: bytes) -> str:
    shares = _table(COLUMNS, cells(report))
    batches = _table(
        ["batch", "rows", "age p50", "age p99", "age max"],
        [[str(age.batch), f"{age.rows:,}", *map(_seconds, (age.p50, age.p99, age.max))] for age in ages],
    )
    image = base64.b64encode(picture).decode()
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
        f"<h1>{name}</h1><p>{html.escape('. '.join(summary(report)))}.</p>"
        f'<img alt="share and ideal of each queue, and ages by batch" src="data:image/png;base64,{image}">'
        f"{shares}{batches}</html>\n"
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"
