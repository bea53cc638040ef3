"""The plot of ``fairsched bench``: how long each message of a quiet tenant waited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
from matplotlib.figure import Figure

from fairsched.cli.flood import Outcome, Plan
from fairsched.cli.output.bench_table import format_wait
from fairsched.config.durations import format_duration

COLOURS = {
    "FIFO": "#b3261e", "pika": "#b07400", "round robin": "#3b7dd8", "fairsched": "#2e7d4f", "lanes": "#7b3fa0",
}  # fmt: skip
INK, GRID = "#222222", "#e3e6ea"
#: A wait shorter than this cannot be told from none.
_SHORTEST = 1e-4


def draw_waits(outcomes: Sequence[Outcome], plan: Plan, path: Path) -> None:
    """Plot the wait of each message over the time at which it was published.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of each contestant.
    plan : Plan
        What was published.
    path : Path
        The PNG file to write.

    Notes
    -----
    Touches no global state of matplotlib.
    """
    figure = Figure(figsize=(9, 4.4), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for one in outcomes:
        times, waits = zip(*sorted(one.waits), strict=True)
        label = f"{one.name}: p99 {format_wait(one.p99)}, {one.rate:,.0f} messages per second"
        axes.plot(
            times,
            [max(_SHORTEST, wait) for wait in waits],
            ".",
            markersize=4,
            color=COLOURS[one.name],
            label=label,
            alpha=0.7,
        )
    axes.set_yscale("log")
    axes.set_xlabel("published, seconds after the worker started", color=INK)
    axes.set_ylabel("wait, seconds", color=INK)
    axes.set_title(
        f"Waits of {plan.tenants} quiet tenants while one floods the worker\n"
        f"with {plan.flood:,} messages of {format_duration(plan.service_time)}",
        loc="left", fontsize=11, color=INK,
    )  # fmt: skip
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize=9)
    figure.savefig(path, format="png")
