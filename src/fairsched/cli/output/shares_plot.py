"""The plot of ``fairsched demo``: actual and ideal share of each queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fairsched.cli.output.shares_table import GOOD, TOLERABLE, ratio
from fairsched.fairness import Report

SHARE, IDEAL, INK, GRID = "#3b7dd8", "#1b2a41", "#222222", "#e3e6ea"
ERRORS = {"good": "#2e7d4f", "tolerable": "#b07400", "bad": "#b3261e"}


def draw_shares(report: Report, path: Path) -> None:
    """Plot a bar for the share of each queue, a mark for its ideal share, and the error above them.

    Parameters
    ----------
    report : Report
        What `fairsched.fairness.report` returned.
    path : Path
        The PNG file to write.

    Notes
    -----
    Touches no global state of matplotlib.
    """
    figure = Figure(figsize=(9, 5), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    draw_bars(figure.add_subplot(), report, _note(report))
    figure.savefig(path, format="png")


def draw_bars(axes: Axes, report: Report, note: str) -> None:
    """Plot the same into axes of a larger figure, with a line below the title."""
    _bars(axes, report)
    _frame(axes, note)


def _note(report: Report) -> str:
    first, last = report["queues"][0], report["queues"][-1]
    quotient = ratio(report)
    shown = "undefined" if quotient is None else f"{quotient:.2f}"
    return (
        f"{report['total']:,} messages in {report['seconds']:.1f} s    Jain's index {report['jain']:.5f}    "
        f"{last['name']}/{first['name']} = {shown} (ideal {last['quantum'] / first['quantum']:.2f})"
    )


def _bars(axes: Axes, report: Report) -> None:
    rows = report["queues"]
    shares = [(row["share"], row["ideal"]) for row in rows]
    places = draw_shares_and_ideals(axes, shares, "ideal (its quantum over the sum)")
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f"{row['error']:+.1%}" if row["error"] else "exact",
            (place, max(row["share"], row["ideal"])),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=ERRORS[_grade(row["error"])],
        )
    # A name is text, not mathematics between dollars.
    axes.set_xticks(places, [f"{row['name']}\n{row['quantum']}" for row in rows], color=INK, parse_math=False)
    axes.set_xlabel("queue, and its quantum", color=INK)


def draw_shares_and_ideals(axes: Axes, shares: Sequence[tuple[float, float]], ideal: str) -> range:
    """Draw a bar for each share and a mark for its ideal share, which `ideal` labels; return the places of the bars."""
    places = range(len(shares))
    axes.bar(places, [share for share, _ in shares], width=0.62, color=SHARE, label="share received", zorder=2)
    axes.hlines(
        [wanted for _, wanted in shares],
        [place - 0.42 for place in places],
        [place + 0.42 for place in places],
        color=IDEAL,
        linewidth=2.2,
        label=ideal,
        zorder=3,
    )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    return places


def remove_frame(axes: Axes) -> None:
    """Leave of the frame and its ticks only the line below the plot."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _grade(error: float) -> str:
    return "good" if abs(error) <= GOOD else "tolerable" if abs(error) <= TOLERABLE else "bad"


def _frame(axes: Axes, note: str) -> None:
    axes.set_title("Actual and ideal share of each queue", loc="left", fontsize=13, weight="bold", pad=26)
    axes.text(0, 1.03, note, transform=axes.transAxes, fontsize=9.5, color="#555555", parse_math=False)
    axes.set_ylabel("share of messages", color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, zorder=0)
    axes.set_axisbelow(True)
    remove_frame(axes)
    axes.legend(frameon=False, loc="best", fontsize=9.5)
