"""The plot of ``fairsched simulate``: shares, busy workers, waiting times, queue depths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fairsched.cli.output.shares_plot import GRID, INK, draw_shares_and_ideals, remove_frame
from fairsched.simulator import Result

#: More lines than this cannot be told apart; those with the most messages are drawn.
_LINES = 10


def draw_simulation(result: Result, path: Path) -> None:
    """Draw shares beside ideals (of several queues), and, over time, busy workers, waits and messages at the broker.

    Parameters
    ----------
    result : Result
        Of a simulation.
    path : Path
        The PNG file to write.

    Notes
    -----
    Touches no global state of matplotlib.
    """
    several = len(result.queues) > 1
    figure = Figure(figsize=(9, 10 if several else 8), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(4 if several else 3, 1))
    figure.suptitle(result.scenario.name, x=0.02, ha="left", fontsize=13, weight="bold", color=INK)
    if several:
        _shares(panels.pop(0), result)
    _busy(panels[0], result)
    _lines(panels[1], result, result.timeline.wait * 1e3, "wait in the client [ms]")
    _lines(panels[2], result, result.timeline.depth.astype(np.float64), "messages at the broker")
    for axes in panels:
        axes.set_xlim(0, float(result.timeline.times[-1]) if len(result.timeline.times) else 1.0)
        axes.grid(axis="y", color=GRID, zorder=0)
        remove_frame(axes)
    panels[-1].set_xlabel("seconds", color=INK)
    figure.savefig(path, format="png")


def _shares(axes: Axes, result: Result) -> None:
    places = draw_shares_and_ideals(axes, [(queue.share, queue.ideal) for queue in result.queues], "ideal")
    if len(result.queues) <= 4 * _LINES:
        axes.set_xticks(places, [queue.name for queue in result.queues], color=INK)
    axes.set_ylabel("share of the service", color=INK)
    remove_frame(axes)
    axes.legend(frameon=False, fontsize=8.5)


def _busy(axes: Axes, result: Result) -> None:
    most = np.argsort([-consumer.served for consumer in result.consumers], kind="stable")[:_LINES]
    for index in sorted(most):
        axes.plot(
            result.timeline.times,
            result.timeline.utilisation[:, index],
            linewidth=1.8,
            label=result.consumers[index].name,
        )
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("workers busy", color=INK)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.legend(frameon=False, fontsize=8.5, loc="lower left", ncols=5)


def _lines(axes: Axes, result: Result, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], label: str) -> None:
    most = np.argsort([-queue.served for queue in result.queues], kind="stable")[:_LINES]
    for index in sorted(most):
        axes.plot(result.timeline.times, values[:, index], linewidth=1.8, label=result.queues[index].name)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label, color=INK)
    if len(result.queues) > 1:
        axes.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=5)
