"""The plot of ``fairsched prefetch``: utilisation and latency over prefetch."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fairsched.cli.output.shares_plot import GRID, IDEAL, INK, SHARE
from fairsched.config.durations import format_duration
from fairsched.prefetch import Analysis, analyse, recommend

#: Points of a curve at most; the one where it bends is always drawn.
_POINTS = 400


def draw_prefetch(one_way_delay: float, service_time: float, chosen: int, path: Path) -> None:
    """Plot utilisation and latency over prefetch, with the smallest saturating prefetch and the chosen one marked.

    Parameters
    ----------
    one_way_delay, service_time : float
        Seconds.
    chosen : int
        The prefetch that is marked.
    path : Path
        The PNG file to write.

    Notes
    -----
    Touches no global state of matplotlib.
    """
    least = recommend(2 * one_way_delay, service_time)
    last = max(2 * least, chosen + chosen // 5, 10)
    places = sorted({*range(1, last + 1, max(1, last // _POINTS)), least, chosen, last})
    rows = [analyse(place, one_way_delay, service_time) for place in places]
    figure = Figure(figsize=(9, 6), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    above.set_title(
        f"Round trip {format_duration(2 * one_way_delay)}, service {format_duration(service_time)}",
        loc="left", fontsize=13, weight="bold",
    )  # fmt: skip
    above.plot(places, [row.utilisation for row in rows], color=SHARE, linewidth=2.4)
    above.set_ylabel("handler busy", color=INK)
    above.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _latency(below, places, rows)
    for axes in (above, below):
        _frame(axes, least, chosen)
    below.set_xlabel("prefetch", color=INK)
    figure.savefig(path, format="png")


def _latency(axes: Axes, places: list[int], rows: list[Analysis]) -> None:
    latency = [1000 * row.latency for row in rows]
    network = 1000 * rows[0].one_way_delay
    axes.fill_between(places, network, latency, color=SHARE, alpha=0.18, label="in the client's buffer")
    axes.plot(places, latency, color=SHARE, linewidth=2.4)
    axes.axhline(network, color=IDEAL, linewidth=1.4, linestyle=":", label="on the network")
    axes.set_ylabel("from broker to handler, ms", color=INK)
    axes.legend(frameon=False, loc="upper left", fontsize=9.5)


def _frame(axes: Axes, least: int, chosen: int) -> None:
    marks = {least: "least that saturates", chosen: "chosen"} if chosen != least else {least: "least that saturates"}
    for place, text in marks.items():
        axes.axvline(place, color="#b07400" if place == chosen != least else IDEAL, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"{place}: {text}", (place, 0.04), xycoords=("data", "axes fraction"), xytext=(5, 0),
            textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
