"""Draw docs/design/anticipation.svg: what each of ten queues gets when the broker is the bottleneck.

    PYTHONPATH=benchmarks:tests python benchmarks/draw_anticipation.py [ROUNDS]

It starts a RabbitMQ of its own and takes a minute for every few rounds.

The same run as bench_anticipation.py, with and without waiting for turns, interleaved.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench_anticipation import QUANTA, Run, run
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from support.rabbitmq import Node

PATH = Path(__file__).parents[1] / "docs" / "design" / "anticipation.svg"
SIDES = {"passed over": 0.0, "waited for (the default)": None}
BAR, INK, GRID, GOOD, BAD = "#3b7dd8", "#222222", "#e3e6ea", "#2e7d4f", "#b3261e"


def measure(rounds: int) -> dict[str, list[Run]]:
    """Run both sides in turn."""
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    with Node() as node:
        for _ in range(rounds):
            for side, anticipation in SIDES.items():
                runs[side].append(run(node, 0.0, anticipation))
    return runs


def draw_side(axes: Axes, title: str, runs: list[Run]) -> None:
    """A bar for the median share of each queue over its ideal, and a line for the range over all rounds."""
    shares = list(zip(*(one.shares for one in runs), strict=True))
    middle = [statistics.median(values) for values in shares]
    places = range(len(shares))
    axes.axhspan(0.95, 1.05, color="#dcefe2", zorder=0)
    axes.axhline(1, color=INK, linewidth=1, zorder=1)
    axes.bar(places, middle, width=0.62, color=BAR, zorder=2)
    axes.vlines(places, [min(values) for values in shares], [max(values) for values in shares], color=INK, zorder=3)
    for place, value in zip(places, middle, strict=True):
        good = 0.95 <= value <= 1.05
        axes.annotate(
            f"{value:.2f}", (place, max(shares[place])), xytext=(0, 4), textcoords="offset points", ha="center",
            fontsize=8.5, color=GOOD if good else BAD,
        )  # fmt: skip
    rate = statistics.median(one.rate for one in runs)
    axes.set_title(f"An empty slot's turn is {title}\n{rate:,.0f} messages a second", loc="left", fontsize=10.5)
    axes.set_xticks(places, [str(quantum) for quantum in QUANTA.values()])
    axes.set_xlabel("quantum of the queue")
    axes.grid(axis="y", color=GRID, zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    runs = measure(rounds)
    figure = Figure(figsize=(10, 4.2), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, (title, found) in zip((left, right), runs.items(), strict=True):
        draw_side(axes, title, found)
        rates = [one.rate for one in found]
        least, most = min(min(one.shares) for one in found), max(max(one.shares) for one in found)
        print(
            f"{title}: {statistics.median(rates):.0f}/s ({min(rates):.0f} to {max(rates):.0f}), {least:.3f} {most:.3f}"
        )
    left.set_ylabel("share received : share of the quantum")
    figure.savefig(PATH, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
